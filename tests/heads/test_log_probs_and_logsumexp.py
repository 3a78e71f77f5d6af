"""Scores and levels: those of all logits, and their gradients, kept or made again; in pieces; in low precision."""

import pytest
import torch

from esscher.heads import chunked_log_softmax
from esscher.heads.chunked_log_softmax import softmax_log_probs_and_logsumexp


def ends(kind=torch.float64, *, bias=True):
    draw = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(rows, 4, generator=draw).to(kind).requires_grad_() for rows in (7, 5))
    return hidden, weight, torch.randn(5, generator=draw).to(kind).requires_grad_() if bias else None


def direct(hidden, weight, bias, tokens):
    logits = torch.nn.functional.linear(hidden, weight, bias)
    logsumexp = logits.logsumexp(-1)
    return logits.gather(1, tokens[:, None])[:, 0] - logsumexp, logsumexp


@pytest.mark.parametrize("kept", [0, 1000], ids=["made again", "kept"])
@pytest.mark.parametrize("bias", [True, False])
def test_scores_levels_and_gradients(monkeypatch, kept, bias):
    monkeypatch.setattr(chunked_log_softmax, "LOGITS_KEPT", kept)
    monkeypatch.setattr(chunked_log_softmax, "LEAST_ROWS", 3)
    monkeypatch.setattr(chunked_log_softmax, "LOGITS_IN_CACHE", 15)
    tokens = torch.tensor([0, 4, 2, 2, 1, 3, 0])
    leaves = [end for end in ends(bias=bias) if end is not None]
    inputs = torch.linspace(-1, 1, 7, dtype=torch.float64), torch.linspace(2, -1, 7, dtype=torch.float64)
    actual, right = (way(*ends(bias=bias)[:2], ends(bias=bias)[2], tokens) for way in (softmax_log_probs_and_logsumexp, direct))
    for end, other in zip(actual, right, strict=True):
        torch.testing.assert_close(end, other, atol=1e-12, rtol=0)

    def slopes(way):
        hidden, weight, *rest = leaves
        return torch.autograd.grad(way(hidden, weight, rest[0] if rest else None, tokens), leaves, inputs)

    for end, other in zip(slopes(softmax_log_probs_and_logsumexp), slopes(direct), strict=True):
        torch.testing.assert_close(end, other, atol=1e-12, rtol=0)


def test_a_graph_that_is_kept_can_be_gone_back_twice():
    hidden, weight, bias = ends()
    value = sum(part.sum() for part in softmax_log_probs_and_logsumexp(hidden, weight, bias, torch.zeros(7, dtype=torch.long)))
    first, second = (torch.autograd.grad(value, hidden, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


def test_no_rows_and_no_gradient():
    hidden, weight, bias = ends()
    nothing = softmax_log_probs_and_logsumexp(hidden[:0], weight, bias, torch.zeros(0, dtype=torch.long))
    assert [tuple(part.shape) for part in nothing] == [(0,), (0,)]
    with torch.no_grad():
        log_probs, logsumexp = softmax_log_probs_and_logsumexp(hidden, weight, bias, torch.zeros(7, dtype=torch.long))
    assert not log_probs.requires_grad and not logsumexp.requires_grad


def test_low_precision_keeps_sums_in_single():
    hidden, weight, bias = ends(torch.bfloat16)
    tokens = torch.tensor([0, 4, 2, 2, 1, 3, 0])
    log_probs, logsumexp = softmax_log_probs_and_logsumexp(hidden, weight, bias, tokens)
    exact = direct(*(item.detach().float() for item in (hidden, weight, bias)), tokens)
    assert log_probs.dtype == logsumexp.dtype == torch.float32
    torch.testing.assert_close(log_probs, exact[0], atol=0.05, rtol=0.05)
    gradients = torch.autograd.grad(log_probs.sum() + logsumexp.sum(), [hidden, weight, bias])
    assert [item.dtype for item in gradients] == [torch.bfloat16] * 3
    single = [item.detach().float() for item in (hidden, weight, bias)]
    with torch.autocast("cpu", torch.bfloat16):
        under, _ = softmax_log_probs_and_logsumexp(*single, tokens)
    assert under.dtype == torch.float32
    torch.testing.assert_close(under, log_probs.detach(), atol=1e-6, rtol=0)
