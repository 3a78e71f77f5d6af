"""Any encoder-decoder language model of `transformers` as a base: the prompt is the source, the point the target.

The encoder reads the prompt as it is: the EOS token that the model's tokenizer appends belongs to the prompt, and an empty
source is refused. A BOS token, the model's `decoder_start_token_id`, stands before the target and belongs neither to prompt nor
to point. The distribution is the plain softmax of the logits; tokens that `generate` forces or forbids take no part. The space
is that of the targets; sources may have another vocabulary. Left out: gradients through steps, models without
`past_key_values`, and models that derive positions from padding tokens, so that steps do not equal scores (M2M100, ProphetNet).
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from esscher.bases.causal_lm import (
    DEFAULT_MAX_LENGTH,
    IGNORE_INDEX,
    cache_full_error,
    check_vocab,
    forward_parameters,
    label_log_probs,
    last_log_probs,
    special_token_ids,
    step_mode,
    text_config,
)
from esscher.bases.logits import check_length, split_rows
from esscher.bases.output_head import PROBE_LENGTH, LabelScores, can_chunk, chunked_label_scores, label_scores
from esscher.core.space import Sequences, Space, point_values, scatter_point_values, sequences, unique_prompts
from esscher.core.target import State
from esscher.heads.chunked_log_softmax import LOGITS_PER_CHUNK, accumulation_dtype
from esscher.networks.network import shift_right

REQUIRED_INPUTS = ("input_ids", "attention_mask", "decoder_input_ids", "encoder_outputs", "past_key_values")


@dataclass(frozen=True)
class _CacheState:
    """A cache of `transformers`; and, if sources are not shared, the encoder's output for each row with its mask."""

    cache: Any
    source: tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"]] | None
    filled: int  # positions of the targets that were read, BOS included


class Seq2SeqLM(nn.Module):
    """The distribution of an encoder-decoder model over the targets of a space, given their sources."""

    model: Any

    def __init__(self, model: nn.Module, space: Space, bos: int):
        super().__init__()
        alternative = "a text model of AutoModelForSeq2SeqLM that has a key-value cache, or causal_lm for one without encoder"
        forward_parameters(model, REQUIRED_INPUTS, alternative)
        check_vocab(model, space, bos, "seq2seq_lm")
        self.model, self.space, self.bos = model, space, bos
        self._shares_source: bool | None = None  # whether steps can share sources; determined by the first step
        self._chunks_logits: bool | None = None  # whether long targets are scored in chunks; determined by the first of them

    @property
    def max_positions(self) -> int | None:
        """The longest target that the model can read; None is no limit."""
        return _max_positions(self.model.get_decoder(), "decoder")

    def logits(self, x: Sequences) -> Float[Tensor, "B T V"]:
        """Logits of every token at position t given the source and the target before t; 0 outside the point."""
        self._check(x, int(x.lengths.max()) if len(x) else 0)
        return scatter_point_values(x, self._read(x)[0])

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        return torch.cat([scatter_point_values(piece, self._score(piece)) for piece in self._pieces(x)])

    def log_probs_and_logsumexp(self, x: Sequences) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
        scores = [[scatter_point_values(piece, part) for part in self._score_and_logsumexp(piece)] for piece in self._pieces(x)]
        log_probs, logsumexp = (torch.cat(parts) for parts in zip(*scores, strict=True))
        return log_probs, logsumexp

    @torch.no_grad()
    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        from transformers.cache_utils import DynamicCache, EncoderDecoderCache

        from esscher.bases import shared_source_cache

        self._check(prompts, self.space.max_length)
        token = torch.full((len(prompts),), self.bos, device=prompts.tokens.device)
        cache: Any = EncoderDecoderCache(DynamicCache(), DynamicCache())
        with step_mode(self.model):
            hidden, mask = self._encode(prompts)
            log_prob = self._step(cache, (hidden, mask), token)
            if self._shares_source is None:
                self._shares_source = shared_source_cache.can_share(self.model, cache, mask, token)
        if self._shares_source:
            return log_prob, _CacheState(shared_source_cache.share(cache, mask, self.space.max_length), None, 1)
        return log_prob, _CacheState(cache, (hidden, mask), 1)

    @torch.no_grad()
    def advance(self, state: _CacheState, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        if state.filled == self.space.max_length:
            raise cache_full_error(state.filled)
        with step_mode(self.model):
            log_prob = self._step(state.cache, state.source, token)
        return log_prob, _CacheState(state.cache, state.source, state.filled + 1)

    @torch.no_grad()
    def select(self, state: _CacheState, index: Int[Tensor, "K"]) -> _CacheState:
        from transformers.cache_utils import EncoderDecoderCache

        from esscher.bases import shared_prompt_cache, shared_source_cache

        if state.source is None:
            return _CacheState(shared_source_cache.select(state.cache, index), None, state.filled)
        caches = state.cache.self_attention_cache, state.cache.cross_attention_cache
        cache = EncoderDecoderCache(*(shared_prompt_cache.select(part, index) for part in caches))
        hidden, mask = (part.index_select(0, index) for part in state.source)
        return _CacheState(cache, (hidden, mask), state.filled)

    def _step(self, cache: Any, source: tuple[Tensor, Tensor] | None, token: Int[Tensor, "B"]) -> Float[Tensor, "B V"]:
        from esscher.bases import shared_source_cache

        if source is None:
            return last_log_probs(shared_source_cache.step(self.model, cache, token))
        inputs = {**_encoder_inputs(*source), "decoder_input_ids": token[:, None]}
        return last_log_probs(self.model(past_key_values=cache, use_cache=True, **inputs))

    def _encode(self, x: Sequences) -> tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"]]:
        """The encoder's output for the sources, and their mask; padding holds the model's padding token."""
        prompts, padding = x.prompts(), getattr(self.model.config, "pad_token_id", None)
        ids = torch.where(prompts.inside, prompts.tokens, 0 if padding is None else padding)
        mask = prompts.inside.long()
        return self.model.get_encoder()(input_ids=ids, attention_mask=mask).last_hidden_state, mask

    def _score(self, x: Sequences) -> Float[Tensor, "B L"]:
        """The log-probabilities by position in the point, 0 after the end."""
        if self._in_chunks(x):
            return self._score_and_logsumexp(x)[0]
        return label_log_probs(*self._read(x))

    def _score_and_logsumexp(self, x: Sequences) -> LabelScores:
        if not self._in_chunks(x):
            return label_scores(*self._read(x))
        ids, source = shift_right(x, self.bos), self._sources(x)
        one = ids[:1, :1].expand(1, ids.numel()), (source[0][:1], source[1][:1])
        decode, run = partial(self._decode, ids, source), partial(self._run, *one)
        return chunked_label_scores(self.model.get_decoder(), decode, run, self._labels(x), self.space.vocab_size)

    def _in_chunks(self, x: Sequences) -> bool:
        """Whether these are scored in chunks of logits: where all of them are many, no gradient is needed and the model can."""
        logits = len(x) * (int(x.lengths.max()) if len(x) else 0) * self.space.vocab_size
        if logits <= LOGITS_PER_CHUNK or torch.is_grad_enabled():
            return False
        if self._chunks_logits is None:
            ids = torch.arange(PROBE_LENGTH, device=x.tokens.device)[None] % self.space.vocab_size
            source = self._encode(x.rows(slice(0, 1)))
            decode, run = partial(self._decode, ids, source), partial(self._run, ids, source)
            self._chunks_logits = can_chunk(self.model.get_decoder(), self.model, decode, run)
        return self._chunks_logits

    def _decode(self, ids: Int[Tensor, "B L"], source: tuple[Tensor, Tensor]) -> Any:
        decoder, (hidden, mask) = self.model.get_decoder(), source
        return decoder(input_ids=ids, encoder_hidden_states=hidden, encoder_attention_mask=mask, use_cache=False)

    def _run(self, ids: Int[Tensor, "1 L"], source: tuple[Tensor, Tensor], length: int) -> Any:
        return self.model(**_encoder_inputs(*source), decoder_input_ids=ids[:, :length], use_cache=False)

    def _sources(self, x: Sequences) -> tuple[Float[Tensor, "B S D"], Int[Tensor, "B S"]]:
        """The encoder's output for the source of each row, and its mask; equal sources are encoded once."""
        sources, index = unique_prompts(x)
        hidden, mask = (part.index_select(0, index) for part in self._encode(sources))
        return hidden, mask

    def _labels(self, x: Sequences) -> Int[Tensor, "B L"]:
        """The tokens by position in the point, `IGNORE_INDEX` after the end."""
        longest = int(x.lengths.max()) if len(x) else 0
        position = torch.arange(longest, device=x.tokens.device)
        return torch.where(position < x.lengths[:, None], point_values(x, x.tokens, longest), IGNORE_INDEX)

    def _read(self, x: Sequences) -> tuple[Float[Tensor, "B L V"], Int[Tensor, "B L"]]:
        """Logits by position in the point, and the label of each."""
        ids = shift_right(x, self.bos)
        if ids.numel() == 0:
            shape, dtype = (*ids.shape, self.space.vocab_size), accumulation_dtype(self.model.dtype)
            return torch.zeros(shape, dtype=dtype, device=ids.device), torch.zeros_like(ids)
        logits = self.model(**_encoder_inputs(*self._sources(x)), decoder_input_ids=ids, use_cache=False).logits
        return logits.to(accumulation_dtype(logits.dtype)), self._labels(x)

    def _pieces(self, x: Sequences) -> list[Sequences]:
        """The rows in parts whose logits are computed at once."""
        longest = int(x.lengths.max()) if len(x) else 0
        self._check(x, longest)
        return split_rows(x, self.space.vocab_size, longest)

    def _check(self, x: Sequences, longest: int) -> None:
        """Refuse empty sources, and sources or targets longer than the model can read."""
        if bool((x.start == 0).any()):
            raise ValueError(
                f"The source in row {int((x.start == 0).nonzero()[0, 0])} is empty, and an encoder-decoder model needs a token "
                f"to attend to. Nothing was computed; put the end symbol into the prompt, as the model's tokenizer does."
            )
        source = int(x.start.max()) if len(x) else 0
        check_length(_max_positions(self.model.get_encoder(), "encoder"), source, f"a source of up to {source} tokens")
        check_length(self.max_positions, longest, f"a target of up to {longest} tokens")


def seq2seq_lm(
    model: Any, *, max_length: int | None = None, eos: int | Literal["model"] | None = "model", bos: int | None = None
) -> Seq2SeqLM:
    """A base around a model of `AutoModelForSeq2SeqLM`. `max_length` is that of its targets, by default the decoder's
    positions, at most 256; `eos=None` makes all targets of that length; `bos` defaults to the decoder start token, or BOS."""
    if eos == "model":
        ends = special_token_ids(model, "eos_token_id")
        eos = ends[0] if ends else None
    candidates = [] if bos is None else [bos]
    candidates += special_token_ids(model, "decoder_start_token_id") + special_token_ids(model, "bos_token_id")
    if not candidates:
        raise ValueError(
            f"{type(model).__name__} states neither a decoder start token nor a BOS token, so no token can stand before the "
            f"first. Nothing was made; pass bos=, the token with which it was trained to begin targets."
        )
    positions = _max_positions(model.get_decoder(), "decoder") or DEFAULT_MAX_LENGTH
    length = min(positions, DEFAULT_MAX_LENGTH) if max_length is None else max_length
    base = Seq2SeqLM(model, Space(int(text_config(model).vocab_size), length, eos), candidates[0])
    check_steps_match_scores(base)
    return base


@torch.no_grad()
def check_steps_match_scores(base: Seq2SeqLM) -> None:
    """Refuse a model whose steps do not equal its scores, which shows after a padding token in a target."""
    padding, size = getattr(base.model.config, "pad_token_id", None), base.space.vocab_size
    first = base.bos if padding is None or padding >= size else padding
    tokens = [first, (first + 1) % size, first][: base.space.max_length]
    x = sequences([tokens], [[base.bos]]).to(base.model.device)
    with step_mode(base.model):
        scores = log_softmax(base.logits(x)[0, 1:], -1)
    step, state = base.begin(x.prompts())
    tolerance = 1e-3 if accumulation_dtype(base.model.dtype) == base.model.dtype else 0.1
    for position, score in enumerate(scores):
        gap = float((step[0].exp() - score.exp()).abs().max())
        if not gap <= tolerance:
            raise ValueError(
                f"Steps of {type(base.model).__name__} do not equal its scores: at position {position} of a target that begins "
                f"with a padding token, probabilities differ by {gap:.2g}. No base was made; use a model that counts positions "
                f"by all tokens."
            )
        if position + 1 < len(scores):
            step, state = base.advance(state, x.tokens[:, 1 + position])


def _encoder_inputs(hidden: Float[Tensor, "B S D"], mask: Int[Tensor, "B S"]) -> dict[str, Any]:
    """The model's keyword arguments for encoded sources."""
    from transformers.modeling_outputs import BaseModelOutput

    output: Any = BaseModelOutput(last_hidden_state=hidden)  # type: ignore[arg-type]
    return {"encoder_outputs": output, "attention_mask": mask}


def _max_positions(part: Any, side: Literal["encoder", "decoder"]) -> int | None:
    """The number of positions of the encoder or the decoder; None is no limit."""
    limit: int | None = getattr(part.config, f"max_{side}_position_embeddings", None)
    return getattr(part.config, "max_position_embeddings", None) if limit is None else limit
