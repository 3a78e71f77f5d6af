"""What every head must obey, as assertions that name the law they find broken."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.heads.head import Head
from esscher.testing.laws import equal


def check_head(head: Head, hidden: Float[Tensor, "N D"], *, tolerance: float = 1e-10) -> None:
    """The laws of a head, on hidden vectors in double precision.

    Its scores are those of its normalised logits, and sum to 1 over all tokens; levels are the logsumexps; both are 0 for
    tokens below 0, in any shape; prepared logits are the logits; gradients of scores and levels are those of the logits.
    """
    hidden = hidden.detach().requires_grad_()
    logits = head.logits(hidden)
    rows, size = logits.shape
    every = torch.arange(size).expand(rows, size)
    told = head.score(hidden[:, None].expand(-1, size, -1), every)
    equal(told.exp().sum(-1), torch.ones(rows), tolerance, "scores must sum to 1 over all tokens")
    equal(told, logits.log_softmax(-1), tolerance, "scores must be the normalised logits")
    tokens = (torch.arange(rows) * 3) % (size + 1) - 1  # -1 is not asked for
    score, level = head.score_and_level(hidden, tokens)
    asked, own = tokens >= 0, logits.log_softmax(-1).gather(1, tokens.clamp(min=0)[:, None])[:, 0]
    expected = torch.where(asked, own, 0.0), torch.where(asked, logits.logsumexp(-1), 0.0)
    equal(head.score(hidden, tokens), expected[0], tolerance, "a token below 0 must score 0, and the others as they do alone")
    equal(score, expected[0], tolerance, "scores beside levels must be the scores")
    equal(level, expected[1], tolerance, "levels must be logsumexps of the logits, and 0 below token 0")
    for steps in (1, 100):
        equal(head.prepared(steps)(hidden), logits, tolerance, f"logits prepared for {steps} steps must be the logits")
    weights = [hidden, *(head.parameters() if isinstance(head, nn.Module) else ())]
    given = torch.linspace(-1, 2, rows, dtype=hidden.dtype)
    for name, found, right in (
        ("scores", (head.score(hidden, tokens),), expected[:1]),
        ("scores and levels", (score, level), expected),
    ):
        slopes, wanted = (
            torch.autograd.grad(one, weights, [given] * len(one), retain_graph=True, allow_unused=True, materialize_grads=True)
            for one in (found, right)
        )
        for slope, other in zip(slopes, wanted, strict=True):
            allowed = tolerance * max(1.0, float(other.abs().max()))
            equal(slope, other, allowed, f"gradients of {name} must be those of the logits")
