"""Any encoder-decoder language model of `transformers` as a base: the prompt is the source, the point the target.

    base = seq2seq_lm(AutoModelForSeq2SeqLM.from_pretrained(folder), max_length=40)

A source is read exactly as it stands in the prompt: the end symbol that the model's tokenizer puts after it belongs to the
prompt, and an empty source is refused, because there is nothing to attend to. The target is written after an opening token,
the model's `decoder_start_token_id`, which belongs neither to prompt nor to point. Its distribution is the plain softmax of
the logits, a bias of the model included; tokens that `generate` forces or forbids take no part.

Scoring encodes each different source of a batch once. For steps a source is encoded once for all its draws, which share the
keys and values that are made of it (`esscher.bases.shared_source`); models that this cannot serve step on copies.

As in `NetworkBase`, dropout acts in training mode and on scoring only. Sources may have a vocabulary of their own: the space
is that of the targets. What it leaves out: gradients through steps, models without `past_key_values`, and models whose steps
are not their scores, because they tell positions by padding symbols (M2M100, ProphetNet): these are refused.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

from esscher.bases.causal_lm import (
    IGNORED,
    LONGEST_BY_DEFAULT,
    check_tokens,
    first_stated,
    stepping,
    takes_of,
    text_config,
)
from esscher.bases.logits import in_pieces
from esscher.heads.softmax import exact
from esscher.networks.opening import answered
from esscher.space import Sequences, Space, at_columns, by_position, distinct_prompts, sequences
from esscher.target import State

NEEDED = ("input_ids", "attention_mask", "decoder_input_ids", "encoder_outputs", "past_key_values")


@dataclass(frozen=True)
class _State:
    """A cache of `transformers`; and, where it is not shared, each row's source as the encoder left it, with its mask."""

    cache: Any
    source: tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"]] | None
    filled: int  # positions of the targets that were read, the opening's included


class Seq2SeqLM(nn.Module):
    """The distribution that an encoder-decoder model gives to the targets of a space, given their sources."""

    model: Any

    def __init__(self, model: nn.Module, space: Space, opening: int):
        super().__init__()
        otherwise = "a text model of AutoModelForSeq2SeqLM that has a key-value cache, or causal_lm for one without encoder"
        takes_of(model, NEEDED, otherwise)
        check_tokens(model, space, opening, "seq2seq_lm")
        self.model, self.space, self.opening = model, space, opening
        self._shares: bool | None = None  # whether steps may share sources; found by the first of them

    @property
    def max_positions(self) -> int | None:
        """The longest target it can read, if it has a limit."""
        return _positions(self.model.get_decoder(), "decoder")

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        """Logits of every token at position t given the source and the target before t; 0 outside the point."""
        self._check(x, int(x.lengths.max()) if len(x) else 0)
        return at_columns(x, self._read(x)[0])

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        found = []
        for piece in self._pieces(x):
            logits, answers = self._read(piece)
            score = -cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=IGNORED, reduction="none")
            found.append(at_columns(piece, score.view(answers.shape)))
        return torch.cat(found)

    def scores_and_levels(self, x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        """`log_probs`, and the logsumexp of the logits they are of, 0 where x is not counted."""
        scores, levels = [], []
        for piece in self._pieces(x):
            logits, answers = self._read(piece)
            level = logits.logsumexp(-1)
            own = logits.gather(-1, answers.clamp(min=0)[..., None])[..., 0]
            scores.append(at_columns(piece, own - level))
            levels.append(at_columns(piece, level))
        return torch.cat(scores), torch.cat(levels)

    @torch.no_grad()
    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        from transformers.cache_utils import DynamicCache, EncoderDecoderCache

        from esscher.bases import shared_source

        self._check(prompts, self.space.max_length)
        token = torch.full((len(prompts),), self.opening, device=prompts.tokens.device)
        cache: Any = EncoderDecoderCache(DynamicCache(), DynamicCache())
        with stepping(self.model):
            hidden, mask = self._encode(prompts)
            logits = self._step(cache, (hidden, mask), token)
            if self._shares is None:
                self._shares = shared_source.can_share(self.model, cache, mask, token)
        if self._shares:
            return logits, _State(shared_source.share(cache, mask, self.space.max_length), None, 1)
        return logits, _State(cache, (hidden, mask), 1)

    @torch.no_grad()
    def advance(self, state: _State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        if state.filled == self.space.max_length:
            raise ValueError(f"The state is full: it had room for {state.filled} positions, one for each token to come.")
        with stepping(self.model):
            log_prob = self._step(state.cache, state.source, token)
        return log_prob, _State(state.cache, state.source, state.filled + 1)

    @torch.no_grad()
    def select(self, state: _State, index: Int[Tensor, "K"]) -> _State:
        from transformers.cache_utils import EncoderDecoderCache

        from esscher.bases import shared_prompt, shared_source

        if state.source is None:
            return _State(shared_source.select(state.cache, index), None, state.filled)
        both = state.cache.self_attention_cache, state.cache.cross_attention_cache
        cache = EncoderDecoderCache(*(shared_prompt.select(one, index) for one in both))
        hidden, mask = (one.index_select(0, index) for one in state.source)
        return _State(cache, (hidden, mask), state.filled)

    def _step(self, cache: Any, source: tuple[Tensor, Tensor] | None, token: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
        from esscher.bases import shared_source

        if source is None:
            output = shared_source.step(self.model, cache, token)
        else:
            output = self.model(**_given(*source), decoder_input_ids=token[:, None], past_key_values=cache, use_cache=True)
        logits = output.logits[:, -1]
        return log_softmax(logits.to(exact(logits.dtype)), -1)

    def _encode(self, x: Sequences) -> tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"]]:
        """What the encoder makes of the sources, and where they have tokens; padding is the model's own symbol for it."""
        prompts, padding = x.prompts(), getattr(self.model.config, "pad_token_id", None)
        ids = torch.where(prompts.inside, prompts.tokens, 0 if padding is None else padding)
        mask = prompts.inside.long()
        return self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state, mask

    def _read(self, x: Sequences) -> tuple[Float[Tensor, "B L V"], Int[Tensor, "B L"]]:
        """Logits by the position in the point, and the token that each is asked for, `IGNORED` after the end."""
        ids = answered(x, self.opening)
        position = torch.arange(ids.shape[1], device=ids.device)
        if ids.numel() == 0:
            empty = torch.zeros(*ids.shape, self.space.vocab_size, dtype=exact(self.model.dtype), device=ids.device)
            return empty, torch.zeros_like(ids)
        sources, which = distinct_prompts(x)
        source = _given(*(one.index_select(0, which) for one in self._encode(sources)))
        logits = self.model(**source, decoder_input_ids=ids, use_cache=False).logits
        asked = torch.where(position < x.lengths[:, None], by_position(x, x.tokens, ids.shape[1]), IGNORED)
        return logits.to(exact(logits.dtype)), asked

    def _pieces(self, x: Sequences) -> list[Sequences]:
        """Rows of which logits are made at once."""
        longest = int(x.lengths.max()) if len(x) else 0
        self._check(x, longest)
        return in_pieces(x, self.space.vocab_size, longest)

    def _check(self, x: Sequences, longest: int) -> None:
        """Sources of at least one token, and nothing longer than the model can read."""
        if bool((x.start == 0).any()):
            raise ValueError(
                f"The source in row {int((x.start == 0).nonzero()[0, 0])} is empty, and an encoder-decoder model needs a token "
                f"to attend to. Nothing was computed; put the end symbol into the prompt, as the model's tokenizer does."
            )
        source = int(x.start.max()) if len(x) else 0
        limits = _positions(self.model.get_encoder(), "encoder"), self.max_positions
        for what, length, limit in zip(("source", "target"), (source, longest), limits, strict=True):
            if limit is not None and length > limit:
                raise ValueError(
                    f"The model has {limit} positions and was given a {what} of up to {length} tokens. Nothing was computed; "
                    f"shorten the sequences, or choose a smaller max_length."
                )


def seq2seq_lm(
    model: Any, *, max_length: int | None = None, eos: int | Literal["model"] | None = "model", opening: int | None = None
) -> Seq2SeqLM:
    """A base around a model of `AutoModelForSeq2SeqLM`.

    `max_length` is that of its targets, by default all positions of the model up to 256; `eos=None` makes targets of exactly
    that length; `opening` is the model's decoder start token, or its begin symbol.
    """
    if eos == "model":
        ends = decoder_symbols(model, "eos_token_id")
        eos = ends[0] if ends else None
    known = [] if opening is None else [opening]
    known += decoder_symbols(model, "decoder_start_token_id") + decoder_symbols(model, "bos_token_id")
    if not known:
        raise ValueError(
            f"{type(model).__name__} states neither a decoder start token nor a begin symbol, so nothing stands before its "
            f"first token. Nothing was made; pass opening=, the token that it was trained to begin targets with."
        )
    positions = _positions(model.get_decoder(), "decoder") or LONGEST_BY_DEFAULT
    length = min(positions, LONGEST_BY_DEFAULT) if max_length is None else max_length
    base = Seq2SeqLM(model, Space(spoken_tokens(model), length, eos), known[0])
    check_steps(base)
    return base


@torch.no_grad()
def check_steps(base: Seq2SeqLM) -> None:
    """Refuse a model whose steps are not its scores; where that is so, it shows after a padding symbol in a target."""
    padding, size = getattr(base.model.config, "pad_token_id", None), base.space.vocab_size
    first = base.opening if padding is None or padding >= size else padding
    tokens = [first, (first + 1) % size, first][: base.space.max_length]
    x = sequences([tokens], [[base.opening]]).to(base.model.device)
    with stepping(base.model):
        scores = log_softmax(base.logits(x)[0, 1:], -1)
    step, state = base.begin(x.prompts())
    tolerance = 1e-3 if exact(base.model.dtype) == base.model.dtype else 0.1
    for place, score in enumerate(scores):
        gap = float((step[0].exp() - score.exp()).abs().max())
        if not gap <= tolerance:
            raise ValueError(
                f"Steps of {type(base.model).__name__} are not its scores: at position {place} of a target that begins with a "
                f"padding symbol probabilities differ by {gap:.2g}. No base was made; use a model that counts all its "
                f"tokens."
            )
        if place + 1 < len(scores):
            step, state = base.advance(state, x.tokens[:, 1 + place])


def _given(hidden: Float[Tensor, "B S D"], mask: Int[Tensor, "B S"]) -> dict[str, Any]:
    """Encoded sources as a model takes them."""
    from transformers.modeling_outputs import BaseModelOutput

    known: Any = hidden
    return {"encoder_outputs": BaseModelOutput(last_hidden_state=known), "attention_mask": mask}


def spoken_tokens(model: Any) -> int:
    """The vocabulary of the targets; sources may have another."""
    return int(text_config(model).vocab_size)


def _positions(reader: Any, side: Literal["encoder", "decoder"]) -> int | None:
    """How many positions one of the two readers has, if it has a limit."""
    own: int | None = getattr(reader.config, f"max_{side}_position_embeddings", None)
    return getattr(reader.config, "max_position_embeddings", None) if own is None else own


def decoder_symbols(model: Any, name: str) -> list[int]:
    """The tokens that a model's generation settings, or else its config, state under a name."""
    return first_stated([getattr(model, "generation_config", None), model.config, model.get_decoder().config], name)
