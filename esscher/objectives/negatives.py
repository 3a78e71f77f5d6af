"""Negatives drawn once and used often: a table of the base's draws, kept in memory or in a file.

    stored = store_negatives(base, data, each=8, rng=rng)
    NoiseContrast(stored, negatives=2)

A table is a sampler: asked for K draws after prompts, it picks K of those it has for each, by chance. It knows its prompts by
their tokens, and refuses one it does not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor, nn

from esscher.draws import Draws
from esscher.energies.origin import base_digest
from esscher.randomness import Rng
from esscher.samplers.ancestral import draw
from esscher.space import Sequences, concatenate, distinct_prompts
from esscher.storage import read_tensors, write_tensors
from esscher.target import Base, Tilted


@dataclass(frozen=True)
class StoredNegatives:
    """Draws of a base after some prompts, from which a sampler's are picked; `digest` names the base."""

    x: Sequences  # prompt-major
    log_base: Tensor  # [P, N]
    digest: str = ""
    places: dict[tuple[int, ...], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        each = self.log_base.shape[1]
        places = {prompt: row for row, prompt in enumerate(self.x.rows(slice(0, None, each)).prompt_names())}
        object.__setattr__(self, "places", places)

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        """Different ones of a prompt's draws, neighbours in the table from a place chosen by chance."""
        each = self.log_base.shape[1]
        if draws > each:
            raise ValueError(f"The table has {each} negatives of each prompt, not {draws}. Nothing was drawn; store more.")
        row = self._rows(prompts)
        first = rng.categorical(torch.zeros(len(prompts), each, dtype=torch.float64))
        column = (first.cpu() + torch.arange(draws)) % each
        chosen = (row[:, None] * each + column).view(-1)
        log_base = self.log_base[row].gather(1, column)
        x = self.x.rows(chosen).to(prompts.tokens.device)
        return Draws(x, torch.zeros_like(log_base), log_base, estimates_z=True, independent=True, cost=0)

    def _rows(self, prompts: Sequences) -> Int[Tensor, "P"]:
        found = [self.places.get(key, -1) for key in prompts.prompt_names()]
        missing = found.count(-1)
        if missing:
            raise ValueError(
                f"The table has no negatives after {missing} of {len(found)} prompts, the first in row {found.index(-1)}. "
                f"Nothing was drawn; store negatives after these prompts, too (after all prefixes, where they are mixed)."
            )
        return torch.tensor(found)

    def save(self, file: str | Path) -> None:
        """Write a safetensors file."""
        name = torch.tensor(list(self.digest.encode()), dtype=torch.uint8)
        tensors = {"tokens": self.x.tokens, "start": self.x.start, "stop": self.x.stop, "log_base": self.log_base}
        write_tensors(Path(file), {**tensors, "base": name})


def store_negatives(base: Base, data: Sequences, each: int, *, rng: Rng, known: str | None = None) -> StoredNegatives:
    """`each` draws of the base after every different prompt of the data; `known` is its name, where that was found before."""
    if each < 1:
        raise ValueError(f"A table has at least 1 negative of each prompt, not {each}.")
    prompts, _ = distinct_prompts(data)
    x, log_base = draw(base, prompts, each, rng=rng)
    return StoredNegatives(x.to("cpu"), log_base, name_of(base) if known is None else known)


def joined(parts: Sequence[StoredNegatives]) -> StoredNegatives:
    """Tables of one base as one: more prompts, or more negatives of the only prompt that all of them have."""
    x = concatenate([part.x for part in parts])
    same = all(list(part.places) == list(parts[0].places) for part in parts) and len(parts[0].places) == 1
    sizes = sorted({part.log_base.shape[1] for part in parts})
    if (len(sizes) > 1 and not same) or len({part.digest for part in parts}) > 1:
        raise ValueError(
            f"Tables of {sizes} negatives a prompt, or of different bases, are not joined. Nothing was changed; draw them with "
            f"the same settings, or use another folder."
        )
    return StoredNegatives(x, torch.cat([part.log_base for part in parts], 1 if same else 0), parts[0].digest)


def name_of(base: Base) -> str:
    """What tells a base from others: the digest of its weights, if it is a module."""
    return base_digest(base) if isinstance(base, nn.Module) else ""


def load_negatives(file: str | Path, base: Base, *, known: str | None = None) -> StoredNegatives:
    """The table of a file; one that was drawn from another base is refused."""
    found = read_tensors(Path(file))
    digest = bytes(found["base"].tolist()).decode()
    now = name_of(base) if known is None else known
    if digest != now:
        raise ValueError(
            f"The negatives in {file} were drawn from another base (digest {digest[:12]}, and this one has {now[:12]}): an "
            f"energy would learn to tell the wrong things apart. Nothing was loaded; draw them anew."
        )
    return StoredNegatives(Sequences(found["tokens"], found["start"], found["stop"]), found["log_base"], digest)
