"""Conditional noise-contrastive estimation: an energy learns to tell data from draws of the base after the same prompts.

With K negatives for each sequence of the data, and u(x) = -E(x) the log-ratio that the energy claims,

    binary    -log s(u(x+) - log K) - sum_k log s(log K - u(x_k)),          s the logistic function
    ranking   -log [ exp u(x+) / (exp u(x+) + sum_k exp u(x_k)) ]

At the optimum of the binary form a(x) exp(-E(x)) is the distribution of the data, so log Z = 0. The ranking form determines E
up to a constant for each prompt (Ma and Collins, 2018). Negatives from a `noise` that is not the base add log a(x) - log
noise(x) to u(x). With `Exhaustive` the gradient of the binary form is exact. The base is not trained.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import softplus

from esscher.core.device import place, widest
from esscher.core.draws import Draws, Sampler, checked_sampler
from esscher.core.objective import Loss
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, Space, concatenate, refuse_foreign, unique_prompts
from esscher.core.storage import read_tensors, write_tensors
from esscher.core.target import Base, Tilted
from esscher.energies.serialization import base_digest
from esscher.samplers.ancestral import Ancestral, draw


@checked_sampler
@dataclass(frozen=True)
class StoredNegatives:
    """A sampler that picks from a table of draws of a base; `digest` is the hash of the base. Other prompts are refused."""

    x: Sequences  # prompt-major
    log_base: Tensor  # [P, N]
    digest: str = ""
    places: dict[tuple[int, ...], int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        each = self.log_base.shape[1]
        places = {prompt: row for row, prompt in enumerate(self.x.rows(slice(0, None, each)).prompt_keys())}
        object.__setattr__(self, "places", places)

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        """Distinct draws of each prompt: neighbours in the table, from a random place."""
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
        rows = [self.places.get(key, -1) for key in prompts.prompt_keys()]
        missing = rows.count(-1)
        if missing:
            raise ValueError(
                f"The table has no negatives after {missing} of {len(rows)} prompts, the first in row {rows.index(-1)}. "
                f"Nothing was drawn; store negatives after these prompts, too (after all prefixes, where they are mixed)."
            )
        return torch.tensor(rows)

    def to(self, device: torch.device | str) -> "StoredNegatives":
        """The table itself, which stays on the CPU: what is picked from it goes to the device of the prompts."""
        return self

    def save(self, file: str | Path) -> None:
        name = torch.tensor(list(self.digest.encode()), dtype=torch.uint8)
        tensors = {"tokens": self.x.tokens, "start": self.x.start, "stop": self.x.stop, "log_base": self.log_base}
        write_tensors(Path(file), {**tensors, "base": name})


def store_negatives(base: Base, data: Sequences, each: int, *, rng: Rng, known: str | None = None) -> StoredNegatives:
    """`each` draws of the base after every distinct prompt of the data; `known` is its fingerprint, if known already."""
    if each < 1:
        raise ValueError(f"A table has at least 1 negative of each prompt, not {each}.")
    prompts, _ = unique_prompts(data)
    x, log_base = draw(base, prompts, each, rng=rng)
    return StoredNegatives(x.to("cpu"), log_base, base_fingerprint(base) if known is None else known)


def concatenate_negatives(parts: Sequence[StoredNegatives]) -> StoredNegatives:
    """Tables of one base as one: with more prompts, or with more negatives of the single prompt that all of them have."""
    x = concatenate([part.x for part in parts])
    same = all(list(part.places) == list(parts[0].places) for part in parts) and len(parts[0].places) == 1
    sizes = sorted({part.log_base.shape[1] for part in parts})
    if (len(sizes) > 1 and not same) or len({part.digest for part in parts}) > 1:
        raise ValueError(
            f"Tables of {sizes} negatives a prompt, or of different bases, are not joined. Nothing was changed; draw them with "
            f"the same settings, or use another folder."
        )
    return StoredNegatives(x, torch.cat([part.log_base for part in parts], 1 if same else 0), parts[0].digest)


def base_fingerprint(base: Base) -> str:
    """The digest of the weights of a base; empty if it is no module."""
    return base_digest(base) if isinstance(base, nn.Module) else ""


def load_negatives(file: str | Path, base: Base, *, known: str | None = None) -> StoredNegatives:
    """The table of a file; refused if it was drawn from another base."""
    tensors = read_tensors(Path(file))
    digest = bytes(tensors["base"].tolist()).decode()
    now = base_fingerprint(base) if known is None else known
    if digest != now:
        raise ValueError(
            f"The negatives in {file} were drawn from another base (digest {digest[:12]}, and this one has {now[:12]}): an "
            f"energy would learn to tell the wrong things apart. Nothing was loaded; draw them anew."
        )
    return StoredNegatives(Sequences(tensors["tokens"], tensors["start"], tensors["stop"]), tensors["log_base"], digest)


Form = Literal["binary", "ranking"]


@dataclass(frozen=True)
class NoiseContrast:
    """The mean over sequences of the binary or ranking loss; negatives are fresh draws of the base unless `sampler` has stored
    ones: `NoiseContrast(store_negatives(base, data, each=8, rng=rng), negatives=2)`. `prefixes` varies the prompts: each row
    keeps a random one of these numbers of its first tokens, at most its own prompt, and its point begins there. `noise` is the
    base by default."""

    sampler: Sampler = field(default_factory=Ancestral)
    negatives: int = 1
    form: Form = "binary"
    prefixes: tuple[int, ...] = ()
    noise: Base | None = None

    def __post_init__(self) -> None:
        if self.negatives < 1:
            raise ValueError(f"Each data sequence needs at least 1 negative, not {self.negatives}.")
        if self.form not in get_args(Form):
            raise ValueError(f"Unknown form {self.form!r} of noise contrast; the known ones are {', '.join(get_args(Form))}.")
        if any(length < 0 for length in self.prefixes):
            raise ValueError(f"A prefix has 0 tokens or more: {self.prefixes}.")

    def __call__(self, target: Tilted, data: Sequences, *, rng: Rng, step: int = 0) -> Loss:
        if len(data) == 0:
            raise ValueError("There is no sequence to learn from. Nothing was computed; give some data.")
        if self.prefixes:
            data = shorter_prompts(data, self.prefixes, target.space, rng=rng)
        refuse_foreign(data, target.space, prompt_vocab_size=target.prompt_vocab_size)
        noise = target.base if self.noise is None else self.noise
        drawn = self.sampler(Tilted(noise), data.prompts(), self.negatives, rng=rng)
        both = concatenate([data, drawn.x])
        log_ratio = -widest(target.energies(both))
        energies = -log_ratio.detach()
        if self.noise is not None:
            with torch.no_grad():
                log_noise = torch.cat(
                    [widest(noise.log_probs(data)).sum(-1), place(drawn.log_base.view(-1), data.tokens.device)]
                )
                correction = widest(target.base.log_probs(both)).sum(-1) - log_noise
            log_ratio = log_ratio + correction
        data_ratio, noise_ratio = log_ratio[: len(data)], log_ratio[len(data) :].view(len(data), -1)
        log_weight = place(drawn.log_weight, log_ratio.device) - math.log(noise_ratio.shape[1])  # sums to 1 in expectation
        log_count = math.log(self.negatives)
        if self.form == "binary":
            noise_loss = (log_weight.exp() * softplus(noise_ratio - log_count)).sum(-1)
            loss = softplus(log_count - data_ratio) + self.negatives * noise_loss
        else:
            others = torch.logsumexp(noise_ratio + log_weight, -1) + log_count
            loss = torch.logaddexp(data_ratio, others) - data_ratio
        metrics = self._metrics(data_ratio.detach(), noise_ratio.detach(), log_weight.exp(), energies)
        return Loss(loss.mean(), metrics, len(data))

    def _metrics(
        self, data: Float[Tensor, "B"], noise: Float[Tensor, "B N"], weight: Float[Tensor, "B N"], energies: Float[Tensor, "M"]
    ) -> dict[str, float]:
        """`accuracy` is that of telling data from noise at even odds; `log_z` the log of the mean Z over these prompts."""
        if self.form == "binary":
            right = (widest(data > 0) + (weight * (noise <= 0)).sum(-1)) / 2
        else:
            right = (weight * (widest(data[:, None] > noise) + widest(data[:, None] == noise) / 2)).sum(-1)
        log_z = torch.logsumexp((noise + weight.log()).view(-1), 0) - math.log(len(noise))
        negative = (weight * energies[len(data) :].view(noise.shape)).sum(-1)
        return {
            "accuracy": float(right.mean()),
            "energy_data": float(energies[: len(data)].mean()),
            "energy_noise": float(negative.mean()),
            "log_z": float(log_z),
        }


def shorter_prompts(x: Sequences, lengths: tuple[int, ...], space: Space, *, rng: Rng) -> Sequences:
    """Rows whose prompts are shortened to a random one of `lengths`, and whose points begin there. Lengths above that of a
    row's prompt are not considered; a row without any stays as it is."""
    choice = torch.tensor(sorted(set(lengths)), device=x.tokens.device)
    fits = (choice <= x.start[:, None]) & (choice < x.stop[:, None])
    pick = choice[rng.categorical(widest(torch.where(fits, 0.0, -torch.inf)))[:, 0]]
    start = torch.where(fits.any(-1), pick, x.start)
    stop = torch.minimum(x.stop, start + space.max_length)
    if space.eos is not None:
        column = torch.arange(x.tokens.shape[1], device=x.tokens.device)
        ends = (x.tokens == space.eos) & (column >= start[:, None]) & (column < stop[:, None])
        first = torch.where(ends, column, x.tokens.shape[1]).amin(-1) if ends.shape[1] else stop
        stop = torch.minimum(stop, first + 1)
    return Sequences(x.tokens, start, stop)
