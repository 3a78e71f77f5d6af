"""`generate` of `transformers` with an energy: candidates from the model, one of them kept by its weight exp(-E).

    model.generate(ids, custom_generate=TiltedGenerate(energy, pool=64), do_sample=True, top_k=0, max_new_tokens=40)

It is a `custom_generate`: `transformers` prepares the call as ever, and this draws in place of its loop. It works for any
causal language model and for our own (`esscher.hub.network_lm`), and honours temperature, top_k, top_p, the lengths, one end
symbol, padding and num_return_sequences. What the settings leave of the model is the base that is tilted: without top_k=0
that is what 50 tokens leave of it, the default of `generate`. Each sequence has a pool of its own, and follows
p(x) ~ a(x) exp(-E(x)) in the limit of a large pool.

The model reads exactly what it is given. The energy sees the same, except for a begin symbol in front; with `opening`, that
symbol stands before every prompt, written or not, as in our bases. Ways to generate, to change logits or to stop that this
cannot do are refused (`esscher.hub.generate_settings`). An assistant and a streamer have no effect: `transformers` does not
hand them on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList
from transformers.utils.generic import ModelOutput

from esscher.bases.causal_lm import CausalLM, stated_symbols, text_config
from esscher.bases.seq2seq_lm import Seq2SeqLM
from esscher.energies.saved import load_energy
from esscher.hub import load_base
from esscher.hub.causal_lm import sampling_of
from esscher.hub.generate_settings import Asked, asked
from esscher.hub.network_lm import NetworkLM, generation, network_lm
from esscher.randomness import Seeded
from esscher.samplers.pool import Pool
from esscher.space import Sequences, Space, prompts_of
from esscher.target import Base, Energy, Tilted


@dataclass
class TiltedOutput(ModelOutput):
    """What `return_dict_in_generate=True` gives: beside the sequences log a(x), and the effective size of each one's pool."""

    sequences: Int[Tensor, "B T"] | None = None
    log_base: Float[Tensor, "B"] | None = None
    effective: Float[Tensor, "B"] | None = None


@dataclass(frozen=True)
class TiltedGenerate:
    """Resampling by energy; without a `seed` chance follows torch's own generator, as elsewhere in `generate`."""

    energy: Energy
    pool: int = 64
    seed: int | None = None
    opening: int | None = None
    """The token that stands before every prompt; None leaves prompts as they are given."""

    def __call__(
        self,
        model: Any,
        input_ids: Int[Tensor, "B T"],
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Int[Tensor, "B U"] | TiltedOutput:
        """Draw for each row; `transformers` has written every prompt as often as sequences are asked of it."""
        wanted = asked(model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)
        mask = model_kwargs.get("attention_mask")
        prompts = _prompts(input_ids[:: wanted.copies], None if mask is None else mask[:: wanted.copies])
        seed = int(torch.randint(2**62, ())) if self.seed is None else self.seed
        points: dict[int, list[int]] = {}
        numbers = torch.zeros(2, len(input_ids), dtype=torch.float64)
        for part in self._parts(model, wanted, prompts):
            target, rng = Tilted(wanted.left_of(part.base), part.energy), Seeded(seed).stream("first", part.rows[0])
            draws = Pool(self.pool)(target, part.prompts.to(model.device), wanted.copies, rng=rng)
            rows = [row * wanted.copies + copy for row in part.rows for copy in range(wanted.copies)]
            points.update(zip(rows, draws.x.points(), strict=True))
            numbers[:, rows] = torch.stack([draws.log_base.flatten(), draws.info["effective"].flatten()])
        sequences = _joined(input_ids, [points[row] for row in range(len(input_ids))], wanted.pad)
        return TiltedOutput(sequences, *numbers) if generation_config.return_dict_in_generate else sequences

    def _parts(self, model: Any, wanted: Asked, prompts: Sequence[list[int]]) -> "list[_Part]":
        """The rows by what the base opens them with, and what is then left of their prompts."""
        every = list(range(len(prompts)))
        if isinstance(model, NetworkLM):
            own = model.base
            own.space = replace(own.space, max_length=wanted.length, eos=wanted.eos)
            return [_Part(own, self.energy, every, prompts_of([_without(model.opening, one) for one in prompts]))]
        space = Space(text_config(model).vocab_size, wanted.length, wanted.eos)
        if self.opening is not None:
            left = [one[1:] if one[:1] == [self.opening] else one for one in prompts]
            return [_Part(CausalLM(model, space, self.opening), self.energy, every, prompts_of(left))]
        return [
            _Part(
                CausalLM(model, space, first),
                self.energy if first in stated_symbols(model, "bos_token_id") else _seeing(first, self.energy),
                rows := [row for row in every if prompts[row][0] == first],
                prompts_of([prompts[row][1:] for row in rows]),
            )
            for first in _firsts(prompts)
        ]


@dataclass(frozen=True)
class _Part:
    """Rows that share a base, with their prompts after its opening."""

    base: Base
    energy: Energy
    rows: list[int]
    prompts: Sequences


def load_tilted(base: str | Path, energy: str | Path, *, pool: int = 64, device: str = "cpu") -> PreTrainedModel:
    """The model of a base's folder, of `transformers` or ours, whose `generate` draws by the energy of another folder.

    Its default settings are the tilted model itself: no truncation, points as the energy was trained on. Saving it saves the
    base alone.
    """
    saved = load_energy(energy)
    loaded, tokenizer = load_base(
        base, max_length=saved.cut.max_length, eos=saved.cut.eos, chunks=saved.cut.given is not None, device=device
    )
    if isinstance(loaded, Seq2SeqLM):
        raise ValueError(
            f"The model in {base} reads with an encoder; `generate` by energy draws from causal language models only. Nothing "
            f"was made; draw with a sampler: Pool(64)(Tilted(base, energy), prompts, 1, rng=...)."
        )
    saved.check_base(loaded)
    target = Tilted(loaded, saved.energy(None if tokenizer is None else tokenizer.decode, loaded))
    model: Any
    if isinstance(loaded, CausalLM):
        model, opening = loaded.model, loaded.opening
        model.generation_config = generation(sampling_of(loaded))
    else:
        model, opening = network_lm(loaded), None
    model.generate = partial(model.generate, custom_generate=TiltedGenerate(target.energy, pool, opening=opening))
    return model


def _prompts(ids: Int[Tensor, "P T"], mask: Tensor | None) -> list[list[int]]:
    """The tokens of each row that its mask leaves."""
    read = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask.bool().to(ids.device)
    return [row[some].tolist() for row, some in zip(ids, read, strict=True)]


def _without(opening: int, prompt: list[int]) -> list[int]:
    return [token for token in prompt if token != opening]


def _firsts(prompts: Sequence[list[int]]) -> list[int]:
    """The different first tokens, in order of appearance."""
    if not all(prompts):
        empty = next(row for row, one in enumerate(prompts) if not one)
        raise ValueError(
            f"Prompt {empty} has no token to go on from. Nothing was drawn; begin prompts with the begin symbol, or state it "
            f"as opening=."
        )
    return list(dict.fromkeys(one[0] for one in prompts))


def _seeing(first: int, energy: Energy) -> Energy:
    """The energy of sequences with this token in front of their prompts."""

    def whole(x: Sequences) -> Float[Tensor, "B"]:
        return energy(Sequences(pad(x.tokens, (1, 0), value=first), x.start + 1, x.stop + 1))

    return whole


def _joined(ids: Int[Tensor, "B T"], points: Sequence[list[int]], padding: int) -> Int[Tensor, "B U"]:
    """What was given and what was drawn, padded on the right."""
    longest = max(map(len, points))
    drawn = [[*one, *[padding] * (longest - len(one))] for one in points]
    return torch.cat([ids, torch.tensor(drawn, dtype=ids.dtype, device=ids.device)], 1)
