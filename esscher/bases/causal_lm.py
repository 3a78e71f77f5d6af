"""Any causal language model of `transformers` as a base.

    base = causal_lm(AutoModelForCausalLM.from_pretrained(folder), max_length=40)

Its distribution is the plain softmax of its logits: nothing of `generate` and its defaults takes part. Before the first
token stands an opening token, the model's begin symbol, or its end symbol where it has no other, as GPT-2 was trained; it
belongs neither to the prompt nor to the point, and stands before every prompt. Tokens of a tokenizer must therefore come
without a begin symbol of their own.

Scoring runs rows as they are, aligned at their left: nothing looks ahead, so padding needs no mask. Steps align prompts at
their right, with a mask and positions of their own, and share a prompt's keys and values among its rows
(`esscher.bases.shared_prompt`); models that this cannot serve step on the cache of `transformers`.

As in `NetworkBase`, dropout acts in training mode and on scoring only. What it leaves out: gradients through steps, and
models without `past_key_values`.
"""

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, pad

from esscher.bases.logits import in_pieces
from esscher.heads.softmax import exact
from esscher.networks.opening import opened
from esscher.space import Sequences, Space
from esscher.target import State

LONGEST_BY_DEFAULT = 256
NEEDED = ("input_ids", "attention_mask", "past_key_values")
IGNORED = -100  # the target of positions that are not scored


@dataclass(frozen=True)
class _State:
    """A cache of `transformers`; `mask` has a column for each position that was read or has room, 0 for padding."""

    cache: Any
    mask: Int[Tensor, "B R"]
    length: Int[Tensor, "B"]  # tokens that each row has read, the opening included: the position of the next
    filled: int  # columns of the cache


class CausalLM(nn.Module):
    """The distribution that a causal language model gives to the points of a space, after an opening token."""

    model: Any

    def __init__(self, model: nn.Module, space: Space, opening: int):
        super().__init__()
        self._takes = takes_of(model, NEEDED, "a model of AutoModelForCausalLM that has a key-value cache")
        check_tokens(model, space, opening, "causal_lm")
        self.model, self.space, self.opening = model, space, opening
        self._shares: bool | None = None  # whether steps may share prompts; found by the first of them

    @property
    def max_positions(self) -> int | None:
        """The longest sequence it can read, if it has a limit."""
        return getattr(text_config(self.model), "max_position_embeddings", None)

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        """Logits of every token at position t given the tokens before t; columns that are padding in all rows hold 0."""
        longest = self._longest(x)
        logits = self._read(x, 0, longest)
        return pad(logits, (0, 0, 0, x.tokens.shape[1] - longest))

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        self._longest(x)
        return torch.cat([self._score(piece) for piece in in_pieces(x, self.space.vocab_size, x.tokens.shape[1])])

    @torch.no_grad()
    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        from transformers.cache_utils import DynamicCache

        from esscher.bases import shared_prompt

        longest, room = int(prompts.start.max()), self.space.max_length
        self._check_length(longest + room, f"a prompt of {longest} tokens with a point of up to {room}")
        ids, position = _aligned_right(opened(prompts.prompts(), self.opening), prompts.start + 1)
        mask = pad((position >= 0).long(), (0, room - 1), value=1)
        cache: Any = DynamicCache(config=self.model.config)
        with stepping(self.model):
            if self._shares is None:
                self._shares = shared_prompt.can_share(self.model, ids[:1, -2:])
            given = self._given(ids, mask[:, : longest + 1], position.clamp(min=0))
            logits = self.model(past_key_values=cache, use_cache=True, **given).logits[:, -1]
        if self._shares:
            cache = shared_prompt.share(cache, len(ids), room - 1, ids.device)
        return log_softmax(logits.to(exact(logits.dtype)), -1), _State(cache, mask, prompts.start + 1, longest + 1)

    @torch.no_grad()
    def advance(self, state: _State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        from esscher.bases import shared_prompt

        filled = state.filled + 1
        if filled > state.mask.shape[1]:
            raise ValueError(f"The state is full: it had room for {state.filled} positions, one for each token to come.")
        given = self._given(token[:, None], state.mask[:, :filled], state.length[:, None])
        with stepping(self.model):
            if self._shares:
                output = shared_prompt.step(self.model, state.cache, **given)
            else:
                output = self.model(past_key_values=state.cache, use_cache=True, **given)
        log_prob = log_softmax(output.logits[:, -1].to(exact(output.logits.dtype)), -1)
        return log_prob, replace(state, length=state.length + 1, filled=filled)

    @torch.no_grad()
    def select(self, state: _State, index: Int[Tensor, "K"]) -> _State:
        from esscher.bases import shared_prompt

        return _State(shared_prompt.select(state.cache, index), state.mask[index], state.length[index], state.filled)

    def _given(self, ids: Int[Tensor, "B T"], mask: Int[Tensor, "B R"], position: Int[Tensor, "B T"]) -> dict[str, Any]:
        """What a step is called with, as far as the model takes it."""
        optional = {"position_ids": position, "logits_to_keep": 1}
        known = {name: value for name, value in optional.items() if name in self._takes}
        return {"input_ids": ids, "attention_mask": mask, **known}

    def _score(self, x: Sequences) -> Float[Tensor, "B T"]:
        counted = x.counted
        used = counted.any(0).nonzero()[:, 0]
        if len(used) == 0:
            return torch.zeros(counted.shape, dtype=exact(self.model.dtype), device=counted.device)
        first, longest = int(used[0]), int(used[-1]) + 1
        logits = self._read(x, first, longest)
        answers = torch.where(counted, x.tokens, IGNORED)[:, first:longest]
        found = -cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=IGNORED, reduction="none")
        return pad(found.view(answers.shape), (first, counted.shape[1] - longest))

    def _read(self, x: Sequences, first: int, longest: int) -> Float[Tensor, "B U V"]:
        """Logits of the columns from `first` up to `longest`; only these pass through the output weights, if the model lets."""
        width = longest - first
        if len(x) == 0 or width == 0:
            return torch.zeros(len(x), width, self.space.vocab_size, dtype=exact(self.model.dtype), device=x.tokens.device)
        ids = opened(Sequences(x.tokens[:, :longest], x.start, x.stop), self.opening)[:, :-1]
        keep = {"logits_to_keep": width} if "logits_to_keep" in self._takes else {}
        output = self.model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, **keep)
        return output.logits[:, -width:].to(exact(output.logits.dtype))

    def _longest(self, x: Sequences) -> int:
        longest = int(x.stop.max()) if len(x) else 0
        self._check_length(longest, f"a sequence of {longest} tokens")
        return longest

    def _check_length(self, length: int, what: str) -> None:
        limit = self.max_positions
        if limit is not None and length > limit:
            raise ValueError(
                f"The model has {limit} positions and was given {what}. Nothing was computed; shorten the sequences, or "
                f"choose a smaller max_length."
            )


def causal_lm(
    model: nn.Module, *, max_length: int | None = None, eos: int | Literal["model"] | None = "model", opening: int | None = None
) -> CausalLM:
    """A base around a model of `AutoModelForCausalLM`.

    `max_length` is that of its points, by default all positions of the model up to 256; `eos=None` makes points of exactly that
    length; `opening` is the model's begin symbol, or its end symbol.
    """
    config = text_config(model)
    positions = getattr(config, "max_position_embeddings", None) or LONGEST_BY_DEFAULT
    ends = end_symbols(model)
    if eos == "model":
        eos = ends[0] if ends else None
    before = [opening, *stated_symbols(model, "bos_token_id"), *ends]
    known = [token for token in before if token is not None]
    if not known:
        raise ValueError(
            f"{type(model).__name__} states neither a begin nor an end symbol, so nothing stands before its first token. "
            f"Nothing was made; pass opening=, a token that it knows as the beginning of a text."
        )
    length = min(positions, LONGEST_BY_DEFAULT) if max_length is None else max_length
    return CausalLM(model, Space(config.vocab_size, length, eos), known[0])


def takes_of(model: nn.Module, needed: Sequence[str], otherwise: str) -> frozenset[str]:
    """What a model can be called with; refuses one without something that is needed."""
    takes = inspect.signature(model.forward).parameters
    missing = [name for name in needed if name not in takes]
    if missing:
        raise ValueError(
            f"{type(model).__name__} takes no {missing[0]}, so it cannot be read token by token here. Nothing was made; use "
            f"{otherwise}."
        )
    return frozenset(takes)


def check_tokens(model: Any, space: Space, opening: int, maker: str) -> None:
    """Refuse a space, or an opening token, that is not the model's."""
    size = text_config(model).vocab_size
    if size != space.vocab_size or not 0 <= opening < size:
        raise ValueError(
            f"The model speaks {size} tokens; the space has {space.vocab_size}, and the opening token is {opening}. Nothing "
            f"was made; take the space of `{maker}`."
        )


def end_symbols(model: Any) -> list[int]:
    """The end symbols that a model states, the first one first; often one, sometimes none."""
    return stated_symbols(model, "eos_token_id")


def stated_symbols(model: Any, name: str) -> list[int]:
    """The tokens that its generation settings, or else its config, state under a name."""
    return first_stated([getattr(model, "generation_config", None), text_config(model), model.config], name)


def first_stated(places: Sequence[Any], name: str) -> list[int]:
    """The tokens that the first of some settings which knows the name states under it."""
    for stated in (getattr(place, name, None) for place in places):
        if stated is not None:
            return [int(token) for token in stated] if isinstance(stated, list | tuple) else [int(stated)]
    return []


def text_config(model: Any) -> Any:
    """The part of a model's config that speaks of its tokens."""
    return model.config.get_text_config(decoder=True)


def _aligned_right(ids: Int[Tensor, "B T"], length: Int[Tensor, "B"]) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """Rows moved to their right end, and the position of each token; padding has positions below 0."""
    position = torch.arange(ids.shape[1], device=ids.device) - (ids.shape[1] - length)[:, None]
    return ids.gather(1, position.clamp(min=0)), position


@contextmanager
def stepping(model: nn.Module) -> Iterator[None]:
    """Within it nothing is dropped, and GELU is not written out in eight operations; afterwards each module is as it was."""
    from transformers.activations import NewGELUActivation

    modules = list(model.modules())
    training = [module for module in modules if module.training]
    written_out = [module for module in modules if type(module) is NewGELUActivation and "forward" not in vars(module)]
    for module in training:
        module.training = False
    for module in written_out:
        vars(module)["forward"] = _gelu
    try:
        yield
    finally:
        for module in training:
            module.training = True
        for module in written_out:
            del vars(module)["forward"]


def _gelu(x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
    """GELU with its tanh, x (1 + tanh u) / 2 where u = sqrt(2 / pi) (x + 0.044715 x^3), by the sigmoid of 2 u."""
    return torch.addcmul(x, x * x, x, value=0.044715).mul_(math.sqrt(8 / math.pi)).sigmoid_().mul_(x)
