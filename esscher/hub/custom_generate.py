"""`generate` of `transformers` with an energy: candidates from the model, resampled by their weights exp(-E).

    model.generate(ids, custom_generate=TiltedGenerate(energy, num_candidates=64), do_sample=True, top_k=0, max_new_tokens=40)

Temperature, top_k, top_p, maximum lengths, one EOS token, padding and num_return_sequences are supported; the base that is
tilted is the model truncated by them (top_k is 50 by default). Each sequence has its own candidates, and follows p(x) ~ a(x)
exp(-E(x)) in the limit of many. The model reads exactly the given input ids; the energy sees them without a BOS token in front.
Other decoding strategies, logits processors, stopping criteria and outputs are refused; an assistant and a streamer have no
effect, because `transformers` does not pass them on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import (
    LogitNormalization,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList
from transformers.utils.generic import ModelOutput

from esscher.bases.causal_lm import CausalLM, special_token_ids, text_config
from esscher.bases.seq2seq_lm import Seq2SeqLM
from esscher.bases.truncated import truncated
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, prompts_of, sequences
from esscher.core.target import Energy, Tilted
from esscher.energies.serialization import SavedLogLinear, load_energy
from esscher.hub import load_base
from esscher.hub.auto import NetworkLM, network_lm
from esscher.hub.transformers_folder import generation_settings_of
from esscher.samplers.sir import SIR

WARPERS = {  # in the order in which `Truncated` applies them, with the setting of each
    TemperatureLogitsWarper: "temperature",
    TopKLogitsWarper: "top_k",
    TopPLogitsWarper: "top_p",
    LogitNormalization: None,
}
PREPARED_INPUTS = ("attention_mask", "position_ids", "use_cache", "logits_to_keep", "past_key_values")  # by `generate` itself
UNSUPPORTED_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


@dataclass(frozen=True)
class GenerateCall:
    """The arguments of a call of `generate` that `TiltedGenerate` supports."""

    length: int
    eos: int | None
    pad: int
    num_return_sequences: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None


def parse_generate_call(
    model: Any,
    input_ids: Int[Tensor, "B T"],
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    model_kwargs: dict[str, Any],
) -> GenerateCall:
    """Parse the arguments of a `custom_generate`; an error for those that are not supported."""
    if model.config.is_encoder_decoder:
        raise _unsupported("read with an encoder", "use a causal language model")
    mode = config.get_generation_mode()
    if mode != GenerationMode.SAMPLE:
        raise _unsupported(f"generate by {mode.value.replace('_', ' ')}", "pass do_sample=True and num_beams=1")
    outputs = [name for name in UNSUPPORTED_OUTPUTS if getattr(config, name)]
    if outputs:
        raise _unsupported(f"return what {outputs[0]} asks for", "leave it out, or score the sequences with the model")
    _refuse_inputs(model_kwargs)
    others = [type(stop).__name__ for stop in criteria if not isinstance(stop, MaxLengthCriteria | EosTokenCriteria)]
    if others:
        raise _unsupported(f"stop by {others[0]}", "stop by max_new_tokens and an EOS token only")
    ends = config._eos_token_tensor
    if ends is not None and ends.numel() > 1:
        raise _unsupported(f"end with any of {ends.tolist()}", "give one eos_token_id")
    assert config.max_length is not None
    return GenerateCall(
        length=config.max_length - input_ids.shape[1],
        eos=None if ends is None else int(ends),
        pad=0 if config._pad_token_tensor is None else int(config._pad_token_tensor),
        num_return_sequences=config.num_return_sequences or 1,
        **_truncation(processors),
    )


def _refuse_inputs(model_kwargs: dict[str, Any]) -> None:
    others = [name for name, value in model_kwargs.items() if value is not None and name not in PREPARED_INPUTS]
    if others:
        raise _unsupported(f"read {others[0]}", "give prompts as input_ids with an attention_mask")
    position, mask = model_kwargs.get("position_ids"), model_kwargs.get("attention_mask")
    if position is not None:
        default = torch.arange(position.shape[-1]) if mask is None else (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
        if not bool((position == default.to(position.device)).all()):
            raise _unsupported("take position_ids of your own", "leave them out")
    cache = model_kwargs.get("past_key_values")
    if cache is not None and cache.get_seq_length() > 0:
        raise _unsupported("go on from a cache", "give the whole prompt and no past_key_values")


def _truncation(processors: LogitsProcessorList) -> dict[str, Any]:
    """The values of temperature, top_k and top_p; an error for other logits processors, or another order."""
    settings: dict[str, Any] = {}
    order, last = list(WARPERS), -1
    for processor in processors:
        place = order.index(type(processor)) if type(processor) in order else -1
        if place <= last:
            remedy = "use temperature, top_k and top_p only, and put the rest into the energy"
            raise _unsupported(f"change logits by {type(processor).__name__}", remedy)
        last, name = place, WARPERS[order[place]]
        if name is not None:
            settings[name] = getattr(processor, name)
    return settings


def _unsupported(what: str, remedy: str) -> ValueError:
    return ValueError(f"Generation by energy draws whole sequences and cannot {what}. Nothing was drawn; {remedy}.")


@dataclass
class TiltedOutput(ModelOutput):
    """The output with `return_dict_in_generate=True`: sequences, log a(x), and the effective sample size of the candidates."""

    sequences: Int[Tensor, "B T"] | None = None
    log_base: Float[Tensor, "B"] | None = None
    ess: Float[Tensor, "B"] | None = None


@dataclass(frozen=True)
class TiltedGenerate:
    """A `custom_generate` that draws by sampling-importance-resampling (`esscher.samplers.sir.SIR`). `seed` fixes the draws
    (None: torch's generator, as in `generate`); `bos` is the token before every prompt (None: prompts are read as given)."""

    energy: Energy
    num_candidates: int = 64
    seed: int | None = None
    bos: int | None = None

    def __call__(
        self,
        model: Any,
        input_ids: Int[Tensor, "B T"],
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Int[Tensor, "B U"] | TiltedOutput:
        """Draw one sequence for each row; `transformers` has repeated every prompt num_return_sequences times."""
        call = parse_generate_call(model, input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)
        repeats, mask = call.num_return_sequences, model_kwargs.get("attention_mask")
        included = torch.ones_like(input_ids) if mask is None else mask.to(input_ids.device)
        prompts = [row[tokens.bool()].tolist() for row, tokens in zip(input_ids[::repeats], included[::repeats], strict=True)]
        seed = int(torch.randint(2**62, ())) if self.seed is None else self.seed
        points: dict[int, list[int]] = {}
        log_base_and_ess = torch.zeros(2, len(input_ids), dtype=torch.float64)
        for target, group, after in self._groups(model, call, prompts):
            base = truncated(target.base, top_k=call.top_k, top_p=call.top_p, temperature=call.temperature)
            target, rng = Tilted(base, target.energy), SeededRng(seed).stream("first", group[0])
            draws = SIR(self.num_candidates, shared=False)(target, after.to(model.device), repeats, rng=rng)
            rows = [row * repeats + copy for row in group for copy in range(repeats)]
            points.update(zip(rows, draws.x.points(), strict=True))
            log_base_and_ess[:, rows] = torch.stack([draws.log_base.flatten(), draws.info["ess"].flatten()])
        drawn = sequences([points[row] for row in range(len(input_ids))])
        ids = torch.cat([input_ids, torch.where(drawn.inside, drawn.tokens, call.pad).to(input_ids)], 1)
        return TiltedOutput(ids, *log_base_and_ess) if generation_config.return_dict_in_generate else ids

    def _groups(
        self, model: Any, call: GenerateCall, prompts: Sequence[list[int]]
    ) -> Iterator[tuple[Tilted, list[int], Sequences]]:
        """The rows grouped by the BOS token of their base: the target, the rows, and their prompts after that token."""
        all_rows = list(range(len(prompts)))
        if isinstance(model, NetworkLM):
            base = model.base
            base.space = replace(base.space, max_length=call.length, eos=call.eos)
            tokens = [[token for token in prompt if token != model.bos] for prompt in prompts]
            yield Tilted(base, self.energy), all_rows, prompts_of(tokens)
            return
        space = Space(text_config(model).vocab_size, call.length, call.eos)
        if self.bos is not None:
            tokens = [prompt[1:] if prompt[:1] == [self.bos] else prompt for prompt in prompts]
            yield Tilted(CausalLM(model, space, self.bos), self.energy), all_rows, prompts_of(tokens)
            return
        if not all(prompts):
            empty = f"Prompt {prompts.index([])} has no token"
            raise ValueError(f"{empty}. Nothing was drawn; begin prompts with the BOS token, or pass it as bos=.")
        for first in dict.fromkeys(prompt[0] for prompt in prompts):
            is_bos = first in special_token_ids(model, "bos_token_id")
            energy = self.energy if is_bos else _with_first_token(first, self.energy)
            rows = [row for row, prompt in enumerate(prompts) if prompt[0] == first]
            yield Tilted(CausalLM(model, space, first), energy), rows, prompts_of([prompts[row][1:] for row in rows])


def load_tilted(base: str | Path, energy: str | Path, *, num_candidates: int = 64, device: str = "cpu") -> PreTrainedModel:
    """The model of a base's folder, whose `generate` draws by the energy of another folder (`TiltedGenerate`). Its defaults
    draw from the tilted model: no truncation, points as in the training of the energy. Saving it saves the base alone."""
    saved = load_energy(energy)
    loaded, tokenizer = load_base(
        base,
        max_length=saved.chunking.max_length,
        eos=saved.chunking.eos,
        chunks=saved.chunking.prompt_tokens is not None,
        device=device,
    )
    if isinstance(loaded, Seq2SeqLM):
        raise ValueError(
            f"The model in {base} has an encoder; `generate` by energy draws from causal language models only. Nothing was "
            f"made; draw with a sampler: SIR(64)(Tilted(base, energy), prompts, 1, rng=...)."
        )
    saved.check_base(loaded)
    target = Tilted(loaded, saved.energy(None if tokenizer is None else tokenizer.decode, loaded))
    model: Any
    if isinstance(loaded, CausalLM):
        model, bos = loaded.model, loaded.bos
        model.generation_config = GenerationConfig(**generation_settings_of(loaded))  # type: ignore[no-untyped-call]
    else:
        model, bos = network_lm(loaded), None
    if isinstance(saved, SavedLogLinear):
        model.generation_config.update(**saved.truncation.changed_settings())
    model.generate = partial(model.generate, custom_generate=TiltedGenerate(target.energy, num_candidates, bos=bos))
    return model


def _with_first_token(first: int, energy: Energy) -> Energy:
    """The energy of sequences with this token in front of their prompts."""
    return lambda x: energy(Sequences(pad(x.tokens, (1, 0), value=first), x.start + 1, x.stop + 1))
