"""What a call of `generate` asks for, as far as drawing by energy can do it; everything else is refused, never ignored."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.logits_process import (
    LogitNormalization,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList

from esscher.bases.truncated import Truncated
from esscher.target import Base

IN_ORDER = (TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, LogitNormalization)  # as `Truncated` does them
PREPARED = ("attention_mask", "position_ids", "use_cache", "logits_to_keep", "past_key_values")  # by `generate` itself
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


@dataclass(frozen=True)
class Asked:
    """How long, how many, and what is left of the model."""

    length: int
    eos: int | None
    pad: int
    copies: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def left_of(self, base: Base) -> Base:
        """What temperature, top_k and top_p leave of a base."""
        if (self.temperature, self.top_k, self.top_p) == (1.0, None, None):
            return base
        return Truncated(base, self.top_k, self.top_p, self.temperature)


def asked(
    model: Any,
    input_ids: Int[Tensor, "B T"],
    processors: LogitsProcessorList,
    criteria: StoppingCriteriaList,
    config: GenerationConfig,
    given: dict[str, Any],
) -> Asked:
    """Read the arguments of a `custom_generate`; `given` are those meant for the model."""
    _refuse_modes(model, config)
    _refuse_inputs(given)
    others = [type(one).__name__ for one in criteria if not isinstance(one, MaxLengthCriteria | EosTokenCriteria)]
    if others:
        raise _refusal(f"stop by {others[0]}", "stop by max_new_tokens and an end symbol only")
    ends = config._eos_token_tensor
    if ends is not None and ends.numel() > 1:
        raise _refusal(f"end with any of {ends.tolist()}", "give one eos_token_id")
    eos = None if ends is None else int(ends)
    assert config.max_length is not None
    return Asked(
        length=config.max_length - input_ids.shape[1],
        eos=eos,
        pad=0 if config._pad_token_tensor is None else int(config._pad_token_tensor),
        copies=config.num_return_sequences or 1,
        **_truncation(processors),
    )


def _refuse_modes(model: Any, config: GenerationConfig) -> None:
    if model.config.is_encoder_decoder:
        raise _refusal("read with an encoder", "use a causal language model")
    mode = config.get_generation_mode()
    if mode != GenerationMode.SAMPLE:
        raise _refusal(f"generate by {mode.value.replace('_', ' ')}", "pass do_sample=True and num_beams=1")
    wanted = [name for name in OUTPUTS if getattr(config, name)]
    if wanted:
        raise _refusal(f"return what {wanted[0]} asks for", "leave it out, or score the sequences with the model")


def _refuse_inputs(given: dict[str, Any]) -> None:
    others = [name for name, value in given.items() if value is not None and name not in PREPARED]
    if others:
        raise _refusal(f"read {others[0]}", "give prompts as input_ids with an attention_mask")
    position, mask = given.get("position_ids"), given.get("attention_mask")
    if position is not None:
        usual = torch.arange(position.shape[-1]) if mask is None else (mask.cumsum(-1) - 1).masked_fill(mask == 0, 0)
        if not bool((position == usual.to(position.device)).all()):
            raise _refusal("take position_ids of your own", "leave them out")
    cache = given.get("past_key_values")
    if cache is not None and cache.get_seq_length() > 0:
        raise _refusal("go on from a cache", "give the whole prompt and no past_key_values")


def _truncation(processors: LogitsProcessorList) -> dict[str, Any]:
    """The settings of the three ways to cut, which come in this order or not at all."""
    found: dict[str, Any] = {}
    last = -1
    for one in processors:
        place = next((number for number, kind in enumerate(IN_ORDER) if type(one) is kind), None)
        if place is None or place <= last:
            instead = "use temperature, top_k and top_p only, and put the rest into the energy"
            raise _refusal(f"change logits by {type(one).__name__}", instead)
        last, name = place, ("temperature", "top_k", "top_p", None)[place]
        if name is not None:
            found[name] = getattr(one, name)
    return found


def _refusal(what: str, instead: str) -> ValueError:
    return ValueError(f"Generation by energy draws whole sequences and cannot {what}. Nothing was drawn; {instead}.")
