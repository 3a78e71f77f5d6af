"""Scores of a long text under a model of `transformers`, without the logits of all its positions at once.

The decoder of the model runs once for the hidden vectors. Then the model itself runs on some of them at a time, with its
decoder replaced by one that returns them: whatever the model does after its decoder (scaling, soft-capping, a bias), it does
here, too. `can_chunk` tries it once against the model's own logits; where they differ, or the model cannot be run like this,
scores come from all logits of a row. With gradients they do, too, since these need the logits again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.logits import eval_mode
from esscher.heads.chunked_log_softmax import LOGITS_PER_CHUNK, accumulation_dtype

LOGITS_AT_ONCE = LOGITS_PER_CHUNK // 2  # of a chunk: 32 MB, beside which the softmax needs as much again
PROBE_LENGTH, PROBE_PIECE = 5, 2  # tokens of the trial, and of its chunks

LabelScores = tuple[Float[Tensor, "B U"], Float[Tensor, "B U"]]
Decode = Callable[[], Any]
"""Runs the decoder on whole rows, and returns its output, a `ModelOutput`."""
RunModel = Callable[[int], Any]
"""Runs the model on one row of so many tokens; the decoder's output does not depend on them where it is replaced."""


def decoder_of(model: Any) -> Any:
    """The part of a model before its head."""
    return model.get_decoder() if hasattr(model, "get_decoder") else model.base_model


def label_scores(logits: Float[Tensor, "*S V"], labels: Int[Tensor, "*S"]) -> tuple[Float[Tensor, "*S"], Float[Tensor, "*S"]]:
    """The log-probability of each label and the logsumexp of its logits, in float32 or better; both 0 for labels below 0."""
    logits = logits.to(accumulation_dtype(logits.dtype))
    logsumexp = logits.logsumexp(-1)
    token_logit = logits.gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    scored = labels >= 0
    return torch.where(scored, token_logit - logsumexp, 0.0), torch.where(scored, logsumexp, 0.0)


@torch.no_grad()
def chunked_label_scores(
    decoder: Any, decode: Decode, run: RunModel, labels: Int[Tensor, "B U"], vocab_size: int
) -> LabelScores:
    """`label_scores` at the last U positions of each row, a chunk of logits at a time."""
    output, scored = decode(), labels >= 0
    hidden = output.last_hidden_state[:, -labels.shape[1] :][scored]
    step = max(1, LOGITS_AT_ONCE // vocab_size)
    dtype = accumulation_dtype(hidden.dtype)
    log_probs, logsumexp = (torch.zeros(labels.shape, dtype=dtype, device=labels.device) for _ in range(2))
    pieces = zip(torch.split(hidden, step), torch.split(labels[scored], step), strict=True)
    parts = [label_scores(_head_logits(decoder, output, piece, run), tokens) for piece, tokens in pieces]
    if parts:
        log_probs[scored], logsumexp[scored] = (torch.cat(part) for part in zip(*parts, strict=True))
    return log_probs, logsumexp


@torch.no_grad()
def can_chunk(decoder: Any, model: Any, decode: Decode, run: RunModel) -> bool:
    """Whether chunks of hidden vectors give the model's own logits: `decode` and `run` are of one row of `PROBE_LENGTH` tokens,
    which both read."""
    if decoder is model or any(hasattr(weight, "full_tensor") for weight in model.parameters()):
        return False  # a model without a decoder, and one whose weights are shared out, which gathers them by whole passes
    with eval_mode(model):
        expected = run(PROBE_LENGTH).logits[0].float()
        try:
            output = decode()
            pieces = torch.split(output.last_hidden_state[0], PROBE_PIECE)
            logits = torch.cat([_head_logits(decoder, output, piece, run) for piece in pieces]).float()
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
            return False
    allowed = 8 * torch.finfo(model.dtype).eps * max(1.0, float(expected.abs().max()))
    return logits.shape == expected.shape and bool(((logits - expected).abs() <= allowed).all())


def _head_logits(decoder: Any, output: Any, hidden: Float[Tensor, "R D"], run: RunModel) -> Float[Tensor, "R V"]:
    """The model's logits after these vectors."""
    given = copy(output)
    given["last_hidden_state"] = hidden[None]
    with _forward_replaced(decoder, lambda *args, **kwargs: given):
        logits: Tensor = run(len(hidden)).logits[0]
    return logits


@contextmanager
def _forward_replaced(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    """Within it, a module computes something else."""
    own = vars(module).get("forward")
    vars(module)["forward"] = forward
    try:
        yield
    finally:
        if own is None:
            del vars(module)["forward"]
        else:
            vars(module)["forward"] = own
