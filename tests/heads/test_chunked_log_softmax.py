"""Scores without all logits: against cross-entropy, for every incoming gradient, in every precision, and what it saves."""

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from esscher.core.randomness import SeededRng
from esscher.heads import chunked_log_softmax
from esscher.heads.chunked_log_softmax import softmax_log_probs

ROWS, WIDTH, TOKENS = 10, 4, 6
GIVEN = {
    "a mean": torch.full((ROWS,), -0.1),
    "few masked": torch.tensor([1.0] * 7 + [0] * 3),
    "most masked": torch.tensor([0.0] * 7 + [2] * 3),
    "two kinds": torch.tensor([3.0, -1] * 5),
    "varied": torch.linspace(-1, 2, ROWS),
    "nothing": torch.zeros(ROWS),
}


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(chunked_log_softmax, "LOGITS_IN_CACHE", 1)
    monkeypatch.setattr(chunked_log_softmax, "LEAST_ROWS", 3)


def ends(dtype=torch.float64, *, rows=ROWS, bias=True, seed=0):
    """Hidden vectors, weights, biases and tokens."""
    rng = SeededRng(seed).stream("ends")
    with rng.fork_torch_rng():
        hidden, weight, more = torch.randn(rows, WIDTH), torch.randn(TOKENS, WIDTH), torch.randn(TOKENS)
        tokens = torch.randint(TOKENS, (rows,))
    leaves = [item.to(dtype).requires_grad_() for item in (hidden, weight, more)]
    return (*leaves[:2], leaves[2] if bias else None, tokens)


def plainly(hidden, weight, bias, tokens):
    return -cross_entropy(linear(hidden, weight, bias), tokens, reduction="none")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 3, ROWS])
def test_scores(rows, bias):
    inputs = ends(rows=rows, bias=bias)
    actual = softmax_log_probs(*inputs)
    assert actual.shape == (rows,) and actual.requires_grad
    assert torch.allclose(actual, plainly(*inputs), atol=1e-12)
    with torch.no_grad():
        assert torch.equal(softmax_log_probs(*inputs), actual)


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_for_any_incoming_one(given, bias):
    *leaves, tokens = ends(bias=bias)
    wanted = [leaf for leaf in leaves if leaf is not None]
    gradients = torch.autograd.grad(softmax_log_probs(*leaves, tokens), wanted, given.double())
    expected = torch.autograd.grad(plainly(*leaves, tokens), wanted, given.double())
    assert all(torch.allclose(item, other, atol=1e-12) for item, other in zip(gradients, expected, strict=True))


@pytest.mark.parametrize("learning", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_gradients_by_differences(learning):
    """Also when only some of the three learn."""
    *leaves, tokens = ends()

    def score(*chosen):
        inputs = [leaf.detach() for leaf in leaves]
        for place, leaf in zip(learning, chosen, strict=True):
            inputs[place] = leaf
        return softmax_log_probs(*inputs, tokens)

    assert torch.autograd.gradcheck(score, tuple(leaves[place] for place in learning))


@pytest.mark.parametrize(
    ("kind", "again"),
    [("a mean", 0), ("few masked", 3), ("most masked", 3), ("two kinds", 5), ("varied", ROWS - 1), ("nothing", 0)],
)
def test_only_unusual_rows_are_visited_again(kind, again, monkeypatch):
    """Of the varied gradients one is 0."""
    visited, pieces = [], chunked_log_softmax._chunks

    def counting(hidden, *others):
        visited.append(len(hidden))
        return pieces(hidden, *others)

    monkeypatch.setattr(chunked_log_softmax, "_chunks", counting)
    varied = torch.arange(ROWS).double()
    softmax_log_probs(*ends()).backward(varied if kind == "varied" else GIVEN[kind].double())
    assert visited == [ROWS, again] if again else visited == [ROWS]


def pieces_seen(monkeypatch) -> list[tuple[int, int]]:
    """The rows of every piece that is scored from now on, and where its logits stand."""
    seen, score = [], chunked_log_softmax._softmax

    def looking(piece):
        seen.append((len(piece.logits), piece.logits.data_ptr()))
        return score(piece)

    monkeypatch.setattr(chunked_log_softmax, "_softmax", looking)
    return seen


def test_logits_come_in_pieces_and_in_one_memory(monkeypatch):
    seen = pieces_seen(monkeypatch)
    softmax_log_probs(*ends()).sum().backward()
    assert [rows for rows, _ in seen] == [3, 3, 3, 1] and len({place for _, place in seen}) == 1


def test_without_gradient_there_is_no_work_for_one(monkeypatch):
    inputs = ends()
    monkeypatch.setattr(chunked_log_softmax, "_GradientSums", None)
    with torch.no_grad():
        assert not softmax_log_probs(*inputs).requires_grad
    assert not softmax_log_probs(*(item if item is None else item.detach() for item in inputs)).requires_grad
    with pytest.raises(TypeError):
        softmax_log_probs(*inputs)


def test_two_players_differentiate_one_score():
    *leaves, tokens = ends()
    score = softmax_log_probs(*leaves, tokens)
    first = torch.autograd.grad(score.mean(), leaves, retain_graph=True)
    kept = [item.clone() for item in first]
    for item in first:
        item.zero_()
    assert all(torch.equal(item, other) for item, other in zip(torch.autograd.grad(score.mean(), leaves), kept, strict=True))


def test_second_derivatives_are_refused():
    """By torch's own mark they would silently be 0 here, where the incoming gradient is a constant."""
    hidden, *others = ends()
    with pytest.raises(RuntimeError, match="only first ones"):
        torch.autograd.grad(softmax_log_probs(hidden, *others).sum(), hidden, create_graph=True)


def test_logits_far_apart():
    """The likeliest token is e^300 times as likely as the others, in float32."""
    hidden, weight = torch.tensor([[300.0], [-300]], requires_grad=True), torch.tensor([[1.0], [0], [0]], requires_grad=True)
    actual = softmax_log_probs(hidden, weight, None, torch.tensor([1, 1]))
    assert actual.tolist() == pytest.approx([-300, -torch.tensor(2.0).log().item()])
    actual.sum().backward()
    assert bool(hidden.grad.isfinite().all()) and bool(weight.grad.isfinite().all())


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("given", ["a mean", "varied"])
def test_low_precision_keeps_its_sums(autocast, given):
    """Products in bfloat16; the gradient of many pieces is as near as one product of its size can be."""
    hidden, weight, bias, tokens = ends(torch.float32, rows=1000)
    incoming = GIVEN[given].repeat(100)
    exact = torch.autograd.grad(plainly(hidden, weight, bias, tokens), (hidden, weight, bias), incoming)
    kind = torch.float32 if autocast else torch.bfloat16
    leaves = [item.detach().to(kind).requires_grad_() for item in (hidden, weight, bias)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        actual = softmax_log_probs(*leaves, tokens)
    assert actual.dtype == torch.float32
    slopes = torch.autograd.grad(actual, leaves, incoming)
    for slope, right in zip(slopes, exact, strict=True):
        assert slope.dtype == kind
        assert float((slope.float() - right).norm() / right.norm()) < 0.01


def test_autocast_leaves_double_alone():
    inputs = ends()
    with torch.autocast("cpu", torch.bfloat16):
        assert (
            torch.equal(softmax_log_probs(*inputs), softmax_log_probs(*inputs))
            and softmax_log_probs(*inputs).dtype == torch.float64
        )
