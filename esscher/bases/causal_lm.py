"""Any causal language model of `transformers` as a base: `causal_lm(AutoModelForCausalLM.from_pretrained(folder),
max_length=40)`.

Its distribution is the plain softmax of its logits: `generate` and its defaults take no part. A BOS token (the model's, or its
EOS token if it has none, as GPT-2 was trained) stands before every prompt and belongs neither to prompt nor to point, so token
ids must come without the BOS token that a tokenizer adds. Dropout acts in training mode and on scoring only. Steps share the
keys and values of a prompt among its rows (`esscher.bases.shared_prompt_cache`), if the model allows it. Left out: gradients
through steps.
"""

import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, pad, rms_norm

from esscher.bases.logits import check_length, eval_mode, split_rows
from esscher.bases.output_head import (
    PROBE_LENGTH,
    LabelScores,
    can_chunk,
    chunked_label_scores,
    decoder_of,
    label_scores,
)
from esscher.core.space import Sequences, Space
from esscher.core.target import State
from esscher.heads.chunked_log_softmax import LOGITS_PER_CHUNK, accumulation_dtype, step_log_probs
from esscher.networks.network import prepend_bos

DEFAULT_MAX_LENGTH = 256
PADDING_WARNING = "warn_if_padding_and_no_attention_mask"  # a method of models of transformers
REQUIRED_INPUTS = ("input_ids", "attention_mask", "past_key_values")
IGNORE_INDEX = -100  # the label of positions that are not scored


@dataclass(frozen=True)
class _CacheState:
    """A cache of `transformers`; `mask` has a column for each position, read or still to come, and is 0 in padding; None where
    nothing is padded."""

    cache: Any
    mask: Int[Tensor, "B R"] | None
    slots: int  # columns that the cache has room for
    length: Int[Tensor, "B"]  # tokens that each row has read, BOS included: the position of the next
    filled: int  # columns of the cache


class CausalLM(nn.Module):
    """The distribution of a causal language model over the points of a space, after a BOS token."""

    model: Any

    def __init__(self, model: nn.Module, space: Space, bos: int):
        super().__init__()
        self._forward_parameters = forward_parameters(
            model, REQUIRED_INPUTS, "a model of AutoModelForCausalLM that has a key-value cache"
        )
        check_vocab(model, space, bos, "causal_lm")
        self.model, self.space, self.bos = model, space, bos
        self._shares_prompt: bool | None = None  # whether steps can share prompts; determined by the first step
        self._chunks_logits: bool | None = None  # whether long texts are scored in chunks; determined by the first of them

    @property
    def max_positions(self) -> int | None:
        """The longest sequence that the model can read; None is no limit."""
        return getattr(text_config(self.model), "max_position_embeddings", None)

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        """Logits of every token at position t given the tokens before t; columns that are padding in all rows hold 0."""
        longest = self._checked_length(x)
        logits = self._read(x, 0, longest)
        return pad(logits, (0, 0, 0, x.tokens.shape[1] - longest))

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        self._checked_length(x)
        return torch.cat([self._score(piece) for piece in split_rows(x, self.space.vocab_size, x.tokens.shape[1])])

    def log_probs_and_logsumexp(self, x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        self._checked_length(x)
        pieces = split_rows(x, self.space.vocab_size, x.tokens.shape[1])
        parts = [self._score_and_logsumexp(piece) for piece in pieces]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    @torch.no_grad()
    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        from transformers.cache_utils import DynamicCache

        from esscher.bases import shared_prompt_cache

        shortest, longest = torch.stack(prompts.start.aminmax()).tolist()
        max_new_tokens = self.space.max_length
        what = f"a prompt of {longest} tokens with a point of up to {max_new_tokens}"
        check_length(self.max_positions, longest + max_new_tokens, what)
        ids, column = prepend_bos(prompts.prompts(), self.bos), torch.arange(longest + 1, device=prompts.tokens.device)
        position = column - (longest - prompts.start)[:, None]  # of left-padded rows; below 0 in padding
        ids = ids.gather(1, position.clamp(min=0))
        mask = pad((position >= 0).long(), (0, max_new_tokens - 1), value=1)
        cache: Any = DynamicCache(config=self.model.config)
        with step_mode(self.model):
            if self._shares_prompt is None:
                self._shares_prompt = shared_prompt_cache.can_share(self.model, ids[:1, -2:])
            inputs = self._step_inputs(ids, mask[:, : longest + 1], position.clamp(min=0))
            output = self.model(past_key_values=cache, use_cache=True, **inputs)
        if self._shares_prompt:
            cache = shared_prompt_cache.share(cache, len(ids), max_new_tokens - 1, ids.device)
        slots, padding = mask.shape[1], mask if shortest < longest else None
        return last_log_probs(output), _CacheState(cache, padding, slots, prompts.start + 1, longest + 1)

    @torch.no_grad()
    def advance(self, state: _CacheState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        from esscher.bases import shared_prompt_cache

        filled = state.filled + 1
        if filled > state.slots:
            raise cache_full_error(state.filled)
        mask = None if state.mask is None else state.mask[:, :filled]
        inputs = self._step_inputs(token[:, None], mask, state.length[:, None])
        with step_mode(self.model):
            if self._shares_prompt:
                output = shared_prompt_cache.step(self.model, state.cache, **inputs)
            else:
                output = self.model(past_key_values=state.cache, use_cache=True, **inputs)
        return last_log_probs(output), replace(state, length=state.length + 1, filled=filled)

    @torch.no_grad()
    def select(self, state: _CacheState, index: Int[Tensor, "K"]) -> _CacheState:
        from esscher.bases import shared_prompt_cache

        mask = None if state.mask is None else state.mask[index]
        return replace(state, cache=shared_prompt_cache.select(state.cache, index), mask=mask, length=state.length[index])

    def _step_inputs(
        self, ids: Int[Tensor, "B T"], mask: Int[Tensor, "B R"] | None, position: Int[Tensor, "B T"]
    ) -> dict[str, Any]:
        """The keyword arguments of a step that the model's `forward` takes."""
        optional = {"position_ids": position, "logits_to_keep": 1}
        accepted = {name: value for name, value in optional.items() if name in self._forward_parameters}
        return {"input_ids": ids, "attention_mask": mask, **accepted}

    def _score(self, x: Sequences) -> Float[Tensor, "B T"]:
        first, labels = self._labels(x)
        around = (first, x.tokens.shape[1] - first - labels.shape[1])
        if labels.numel() == 0:
            return torch.zeros(x.tokens.shape, dtype=accumulation_dtype(self.model.dtype), device=x.tokens.device)
        if self._in_chunks(labels):
            return pad(self._chunked_scores(x, first, labels)[0], around)
        return pad(label_log_probs(self._read(x, first, first + labels.shape[1]), labels), around)

    def _score_and_logsumexp(self, x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        first, labels = self._labels(x)
        if labels.numel() and self._in_chunks(labels):
            scores = self._chunked_scores(x, first, labels)
        else:
            scores = label_scores(self._read(x, first, first + labels.shape[1]), labels)
        around = (first, x.tokens.shape[1] - first - labels.shape[1])
        return pad(scores[0], around), pad(scores[1], around)

    def _labels(self, x: Sequences) -> tuple[int, Int[Tensor, "B U"]]:
        """The first counted column, and the labels from there to the last one, `IGNORE_INDEX` outside the points."""
        counted = x.counted
        used = counted.any(0).nonzero()[:, 0]
        first, longest = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)
        return first, torch.where(counted, x.tokens, IGNORE_INDEX)[:, first:longest]

    def _in_chunks(self, labels: Int[Tensor, "B U"]) -> bool:
        """Whether these are scored in chunks of logits: where all of them are many, no gradient is needed and the model can."""
        if labels.numel() * self.space.vocab_size <= LOGITS_PER_CHUNK or torch.is_grad_enabled():
            return False
        if self._chunks_logits is None:
            ids = torch.arange(PROBE_LENGTH, device=labels.device)[None] % self.space.vocab_size
            run = partial(self._run, ids)
            self._chunks_logits = can_chunk(decoder_of(self.model), self.model, partial(self._decode, ids), run)
        return self._chunks_logits

    def _chunked_scores(self, x: Sequences, first: int, labels: Int[Tensor, "B U"]) -> LabelScores:
        ids = self._inputs(x, first + labels.shape[1])
        decode, run = partial(self._decode, ids), partial(self._run, ids[:1, :1].expand(1, ids.numel()))
        return chunked_label_scores(decoder_of(self.model), decode, run, labels, self.space.vocab_size)

    def _decode(self, ids: Int[Tensor, "B T"]) -> Any:
        return decoder_of(self.model)(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)

    def _run(self, ids: Int[Tensor, "1 T"], length: int) -> Any:
        return self.model(input_ids=ids[:, :length], attention_mask=torch.ones_like(ids[:, :length]), use_cache=False)

    def _inputs(self, x: Sequences, longest: int) -> Int[Tensor, "B U"]:
        """What the model reads before the columns up to `longest`."""
        return prepend_bos(Sequences(x.tokens[:, :longest], x.start, x.stop), self.bos)[:, :-1]

    def _read(self, x: Sequences, first: int, longest: int) -> Float[Tensor, "B U V"]:
        """Logits of the columns from `first` up to `longest`; only these are computed if the model has `logits_to_keep`."""
        width = longest - first
        if len(x) == 0 or width == 0:
            shape, dtype = (len(x), width, self.space.vocab_size), accumulation_dtype(self.model.dtype)
            return torch.zeros(shape, dtype=dtype, device=x.tokens.device)
        ids = self._inputs(x, longest)
        keep = {"logits_to_keep": width} if "logits_to_keep" in self._forward_parameters else {}
        output = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **keep)
        return output.logits[:, -width:].to(accumulation_dtype(output.logits.dtype))

    def _checked_length(self, x: Sequences) -> int:
        """The length of the longest row; an error where the model cannot read it."""
        longest = int(x.stop.max()) if len(x) else 0
        check_length(self.max_positions, longest, f"a sequence of {longest} tokens")
        return longest


def causal_lm(
    model: nn.Module, *, max_length: int | None = None, eos: int | Literal["model"] | None = "model", bos: int | None = None
) -> CausalLM:
    """A base around a model of `AutoModelForCausalLM`. `max_length` is that of its points, by default the model's positions, at
    most 256; `eos=None` makes all points of that length; `bos` defaults to the model's BOS or EOS token."""
    config = text_config(model)
    ends = special_token_ids(model, "eos_token_id")
    if eos == "model":
        eos = ends[0] if ends else None
    candidates = [*([] if bos is None else [bos]), *special_token_ids(model, "bos_token_id"), *ends]
    if not candidates:
        raise ValueError(
            f"{type(model).__name__} states neither a BOS nor an EOS token, so no token can stand before the first. Nothing "
            f"was made; pass bos=, a token with which it was trained to begin texts."
        )
    positions = getattr(config, "max_position_embeddings", None) or DEFAULT_MAX_LENGTH
    length = min(positions, DEFAULT_MAX_LENGTH) if max_length is None else max_length
    return CausalLM(model, Space(config.vocab_size, length, eos), candidates[0])


def forward_parameters(model: nn.Module, required: Sequence[str], alternative: str) -> frozenset[str]:
    """The parameters of a model's `forward`; an error where a required one is missing."""
    parameters = inspect.signature(model.forward).parameters
    missing = [name for name in required if name not in parameters]
    if missing:
        raise ValueError(f"{type(model).__name__} takes no {missing[0]}, so it cannot step token by token; use {alternative}.")
    return frozenset(parameters)


def check_vocab(model: Any, space: Space, bos: int, maker: str) -> None:
    """Refuse a space or a BOS token that is not the model's."""
    size = text_config(model).vocab_size
    if size != space.vocab_size or not 0 <= bos < size:
        raise ValueError(
            f"The model has {size} tokens; the space has {space.vocab_size}, and the BOS token is {bos}. Nothing was made; "
            f"take the space of `{maker}`."
        )


def cache_full_error(positions: int) -> ValueError:
    """The error of a step after the last token of a point."""
    return ValueError(f"The cache is full: it has {positions} positions, enough for points of max_length tokens. Begin again.")


def special_token_ids(model: Any, name: str) -> list[int]:
    """The token ids under a name such as "eos_token_id" in the model's generation config, or else in its config."""
    config = model.config
    configs = [config, model.get_decoder().config] if config.is_encoder_decoder else [text_config(model), config]
    for stated in (getattr(config, name, None) for config in (getattr(model, "generation_config", None), *configs)):
        if stated is not None:
            return [int(token) for token in stated] if isinstance(stated, list | tuple) else [int(stated)]
    return []


def text_config(model: Any) -> Any:
    """The part of a model's config that describes its (decoder's) tokens."""
    return model.config.get_text_config(decoder=True)


def label_log_probs(logits: Float[Tensor, "B T V"], labels: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """The log-probability of each label, 0 for `IGNORE_INDEX`."""
    losses = cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX, reduction="none")
    return -losses.view(labels.shape)


def last_log_probs(output: Any) -> Float[Tensor, "B V"]:
    """The log-probabilities of the next token from the output of a step of a model."""
    return step_log_probs(output.logits[:, -1])


@contextmanager
def step_mode(model: nn.Module) -> Iterator[None]:
    """Within it, a model is in evaluation mode, and GELU and RMSNorm, which `transformers` composes of six to eight operations,
    take fewer, and no token is compared with that of padding, for which the host waits; afterwards it is as before."""
    from transformers import PreTrainedModel
    from transformers.activations import NewGELUActivation

    fused: dict[nn.Module, Callable[[Tensor], Tensor]] = {}
    warning: list[nn.Module] = []
    for part in model.modules():
        is_composed = type(part) is NewGELUActivation or type(part).__name__.endswith("RMSNorm")
        if is_composed and (forward := _fused_forward(part)) is not None:
            fused[part] = forward
        elif isinstance(part, PreTrainedModel):
            warning.append(part)
    for part, forward in fused.items():
        vars(part)["forward"] = forward
    for part in warning:
        vars(part)[PADDING_WARNING] = lambda *_: None
    try:
        with eval_mode(model):
            yield
    finally:
        for part in fused:
            del vars(part)["forward"]
        for part in warning:
            vars(part).pop(PADDING_WARNING, None)


def _fused_forward(part: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """The same function of a part in fewer operations, if there is one."""
    if "forward" in vars(part) or isinstance(part, nn.RMSNorm):
        return None
    if not type(part).__name__.endswith("RMSNorm"):
        return _fused_gelu_tanh
    weight, eps = getattr(part, "weight", None), getattr(part, "variance_epsilon", None)
    if not isinstance(weight, Tensor) or weight.dim() != 1 or not isinstance(eps, float) or weight.device.type == "cpu":
        return None
    forward = partial(rms_norm, normalized_shape=weight.shape, weight=weight, eps=eps)
    if type(part) not in _IS_RMS_NORM:  # the name alone tells nothing: some add 1 to the weight
        x = torch.linspace(-1, 3, weight.numel(), dtype=weight.dtype, device=weight.device)
        tolerance = 16 * torch.finfo(weight.dtype).eps
        _IS_RMS_NORM[type(part)] = torch.allclose(part(x), forward(x), rtol=tolerance, atol=tolerance)
    return forward if _IS_RMS_NORM[type(part)] else None


_IS_RMS_NORM = dict[type, bool]()


def _fused_gelu_tanh(x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """The tanh form of GELU, x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3); on the CPU, where the kernel is slow,
    as x sigmoid(2 u)."""
    if x.device.type != "cpu":
        return gelu(x, approximate="tanh")
    return torch.addcmul(x, x * x, x, value=0.044715).mul_(math.sqrt(8 / math.pi)).sigmoid_().mul_(x)
