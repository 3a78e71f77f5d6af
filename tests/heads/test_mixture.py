"""Mixtures of softmaxes and of contexts: against their definition, their ranks, what is dropped or left out."""

import math

import pytest
import torch
from heads.test_chunked_log_softmax import pieces_seen

from esscher.core.randomness import SeededRng
from esscher.heads import chunked_log_softmax, mixture
from esscher.heads.chunked_log_softmax import mixture_log_probs
from esscher.heads.head import Head
from esscher.heads.mixture import MixtureHead
from esscher.networks.registry import NETWORKS
from esscher.networks.transformer_config import TransformerConfig

ROWS, WIDTH, CONTEXT, TOKENS, COMPONENTS = 10, 6, 4, 7, 3
GIVEN = {
    "a mean": torch.full((ROWS,), -0.1),
    "few masked": torch.tensor([1.0] * 7 + [0] * 3),
    "most masked": torch.tensor([0.0] * 7 + [2] * 3),
    "varied": torch.linspace(-1, 2, ROWS),
    "nothing": torch.zeros(ROWS),
}
FLOORS = [0.0, 0.05]


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(chunked_log_softmax, "LOGITS_IN_CACHE", 1)
    monkeypatch.setattr(chunked_log_softmax, "LEAST_ROWS", 8)  # two tokens of three components
    monkeypatch.setattr(mixture, "LOGITS_PER_CHUNK", 4 * COMPONENTS * TOKENS)


def ends(dtype=torch.float64, *, rows=ROWS, absent=False):
    """Contexts, log-priors, weights, biases, all of them leaves, and tokens; with `absent` components of prior 0."""
    with SeededRng(0).fork_torch_rng():
        leaves = [torch.randn(rows, COMPONENTS, CONTEXT), torch.randn(rows, COMPONENTS).log_softmax(-1)]
        leaves += [torch.randn(TOKENS, CONTEXT), torch.randn(TOKENS)]
        tokens = torch.randint(TOKENS, (rows,))
    if absent:
        leaves[1][torch.arange(rows) % 2 == 0, 1] = leaves[1][torch.arange(rows) % 3 == 0, 2] = -torch.inf
    return (*(leave.to(dtype).requires_grad_() for leave in leaves), tokens)


def plainly(contexts, log_prior, weight, bias, tokens, floor=0.0):
    probability = (log_prior.exp()[..., None] * (contexts @ weight.T + bias).softmax(-1)).sum(1)
    return (probability.gather(1, tokens[:, None])[:, 0] + floor).log()


@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("absent", [False, True])
@pytest.mark.parametrize("rows", [0, 1, ROWS])
def test_scores(rows, absent, floor):
    inputs = ends(rows=rows, absent=absent)
    actual = mixture_log_probs(*inputs, floor)
    assert actual.shape == (rows,) and actual.requires_grad
    assert torch.allclose(actual, plainly(*inputs, floor), atol=1e-12)
    with torch.no_grad():
        assert torch.equal(mixture_log_probs(*inputs, floor), actual)


@pytest.mark.parametrize("given", GIVEN.values(), ids=GIVEN)
@pytest.mark.parametrize("floor", FLOORS)
@pytest.mark.parametrize("absent", [False, True])
def test_gradients_for_any_incoming_one(given, floor, absent):
    *leaves, tokens = ends(absent=absent)
    gradients = torch.autograd.grad(mixture_log_probs(*leaves, tokens, floor), leaves, given.double())
    expected = torch.autograd.grad(plainly(*leaves, tokens, floor), leaves, given.double())
    assert all(torch.allclose(item, other, atol=1e-12) for item, other in zip(gradients, expected, strict=True))


@pytest.mark.parametrize("learning", [(0,), (1,), (2,), (3,), (1, 2), (0, 1, 2, 3)])
def test_gradients_by_differences(learning):
    """Also when only some of the four learn."""
    *leaves, tokens = ends(rows=5)

    def log_probs(*chosen):
        inputs = [leaf.detach() for leaf in leaves]
        for place, leaf in zip(learning, chosen, strict=True):
            inputs[place] = leaf
        return mixture_log_probs(*inputs, tokens, 0.01)

    assert torch.autograd.gradcheck(log_probs, tuple(leaves[place] for place in learning))


def test_logits_come_in_pieces_and_in_one_memory(monkeypatch):
    """Whole tokens at a time; components of prior 0 are no rows."""
    seen = pieces_seen(monkeypatch)
    mixture_log_probs(*ends()).sum().backward()
    assert [rows for rows, _ in seen] == [6] * 5 and len({place for _, place in seen}) == 1
    seen.clear()
    mixture_log_probs(*ends(absent=True)).backward(GIVEN["most masked"].double())
    counts = [1, 3, 2, 2, 2, 3, 1, 3, 2, 2]
    assert [rows for rows, _ in seen] == [8, 6, 7, 7]  # the last three tokens again
    assert sum(rows for rows, _ in seen) == sum(counts) + sum(counts[7:])


def test_a_token_with_more_components_than_a_piece_has_rows(monkeypatch):
    monkeypatch.setattr(chunked_log_softmax, "LEAST_ROWS", 2)
    inputs = ends()
    assert torch.allclose(mixture_log_probs(*inputs), plainly(*inputs), atol=1e-12)


def test_logits_far_apart():
    """A token that is e^-300 as likely in one component and in the other has its share, in float32."""
    contexts = torch.tensor([[[300.0], [0.0]], [[300.0], [300.0]]], requires_grad=True)
    weight = torch.tensor([[1.0], [0], [0]], requires_grad=True)
    log_prior = torch.tensor([[0.5, 0.5], [0.5, 0.5]]).log()
    actual = mixture_log_probs(contexts, log_prior, weight, None, torch.tensor([1, 1]))
    assert actual.tolist() == pytest.approx([math.log(1 / 6), -300])
    actual.sum().backward()
    assert bool(contexts.grad.isfinite().all()) and bool(weight.grad.isfinite().all())


@pytest.mark.parametrize("autocast", [True, False])
def test_low_precision_keeps_its_sums(autocast):
    *leaves, tokens = ends(torch.float32, rows=600)
    exact = torch.autograd.grad(plainly(*leaves, tokens).mean(), leaves)
    kind = torch.float32 if autocast else torch.bfloat16
    low = [item.detach().to(item.dtype if place == 1 else kind).requires_grad_() for place, item in enumerate(leaves)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        actual = mixture_log_probs(*low, tokens)
    assert actual.dtype == torch.float32
    for slope, right in zip(torch.autograd.grad(actual.mean(), low), exact, strict=True):
        assert float((slope.float() - right).norm() / right.norm()) < 0.02


def head_of(kind="mos", *, tied=False, **settings) -> tuple[MixtureHead, torch.nn.Embedding | None]:
    with SeededRng(3).fork_torch_rng():
        table = torch.nn.Embedding(TOKENS + 1, CONTEXT).double() if tied else None
        head = MixtureHead(TOKENS, WIDTH, COMPONENTS, CONTEXT, kind, table, **settings).double()
        for weight in head.parameters():
            torch.nn.init.normal_(weight)
    return head, table


def by_definition(head, table, hidden):
    """P(token) of every token."""
    contexts = torch.tanh(hidden @ head.latent.weight.T + head.latent.bias).view(len(hidden), COMPONENTS, CONTEXT)
    prior = (hidden @ head.prior.weight.T).softmax(-1)
    weight = head.weight if table is None else table.weight[:TOKENS]
    if head.kind == "moc":
        return (torch.einsum("nk,nke->ne", prior, contexts) @ weight.T + head.bias).softmax(-1)
    return torch.einsum("nk,nkv->nv", prior, (contexts @ weight.T + head.bias).softmax(-1))


def some(rows=ROWS):
    with SeededRng(4).fork_torch_rng():
        return torch.randn(rows, WIDTH, dtype=torch.float64, requires_grad=True), torch.randint(TOKENS, (rows,))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", ["mos", "moc"])
def test_scores_logits_and_gradients_are_the_definition(kind, tied):
    head, table = head_of(kind, tied=tied)
    hidden, tokens = some()
    expected = by_definition(head, table, hidden).log()
    assert isinstance(head, Head)
    assert torch.allclose(head.logits(hidden).log_softmax(-1), expected, atol=1e-12)
    for steps in (1, 100):
        assert torch.allclose(head.logits_fn(steps)(hidden), head.logits(hidden), atol=1e-12)
    assert torch.equal(head.logits(hidden.view(2, 5, WIDTH)).view(ROWS, TOKENS), head.logits(hidden))
    assert head.logits(hidden[0]).shape == (TOKENS,) and head.logits(hidden[:0]).shape == (0, TOKENS)
    weights = [hidden, *head.parameters(), *(() if table is None else table.parameters())]
    drawn = expected.gather(1, tokens[:, None])[:, 0]
    for actual, right in ((head.log_probs(hidden, tokens), drawn), (head.logits(hidden).log_softmax(-1), expected)):
        assert torch.allclose(actual, right, atol=1e-12)
        slopes = [torch.autograd.grad(item.square().sum(), weights, retain_graph=True) for item in (actual, right)]
        assert all(torch.allclose(item, other, atol=1e-10) for item, other in zip(*slopes, strict=True))


def test_tokens_that_are_not_asked_for():
    head, _ = head_of()
    hidden, tokens = some()
    asked = tokens.masked_fill(torch.arange(ROWS) % 3 == 0, -1)
    expected = torch.where(asked < 0, 0.0, head.log_probs(hidden, tokens))
    assert torch.allclose(head.log_probs(hidden, asked), expected)
    assert torch.allclose(head.log_probs(hidden.view(2, 5, WIDTH), asked.view(2, 5)), expected.view(2, 5))


def test_the_level_of_the_logits_is_the_prior_s():
    """What is above 0 in them is a number that learns freely, as a softmax's is."""
    head, _ = head_of()
    hidden, _ = some()
    assert torch.allclose(head.logits(hidden).logsumexp(-1), head.prior(hidden).logsumexp(-1))


@pytest.mark.parametrize(("kind", "bounded"), [("moc", True), ("mos", False)])
def test_rank_of_log_probabilities(kind, bounded):
    """At most one more than the width of a context, of one softmax of contexts; of softmaxes far more."""
    with SeededRng(5).fork_torch_rng():
        head = MixtureHead(40, 30, 5, 6, kind).double()
        for weight in head.parameters():
            torch.nn.init.normal_(weight)
        table = head.logits(torch.randn(60, 30, dtype=torch.float64)).log_softmax(-1)
    rank = int(torch.linalg.matrix_rank(table))
    assert rank <= 6 + 2 if bounded else rank == 40


def test_the_floor_of_the_released_code():
    head, table = head_of(floor=0.05)
    hidden, tokens = some()
    expected = (by_definition(head, table, hidden) + 0.05).log()
    assert torch.allclose(head.log_probs(hidden, tokens), expected.gather(1, tokens[:, None])[:, 0])
    assert torch.allclose(head.logits(hidden).log_softmax(-1), expected.log_softmax(-1))


def test_contexts_are_dropped_alike_at_all_times():
    """One mask for the positions of a row, others for other rows; never for steps, nor in evaluation."""
    head, _ = head_of(latent_dropout=0.5)
    hidden, tokens = some()
    same = hidden[:1].detach().expand(4, 5, WIDTH)
    with SeededRng(1).fork_torch_rng():
        actual = head.log_probs(same, tokens[:1].expand(4, 5))
    assert torch.allclose(actual, actual[:, :1].expand(4, 5)) and len({round(item, 9) for item in actual[:, 0].tolist()}) == 4
    with SeededRng(1).fork_torch_rng():
        logits = head.logits(same).log_softmax(-1)
    assert torch.allclose(logits[..., tokens[0]], actual)
    with SeededRng(1).fork_torch_rng():
        apart = head.log_probs(same.reshape(20, WIDTH), tokens[:1].expand(20))
    assert len({round(item, 9) for item in apart.tolist()}) > 15
    stepped = head.logits_fn(1)(hidden)
    assert torch.equal(head.eval().logits(hidden), stepped)


@torch.no_grad()
@pytest.mark.parametrize("least", [0.1, 0.3, 0.9])
def test_components_left_out_change_no_score_by_more_than_the_bound(least):
    head, _ = head_of()
    hidden, tokens = some(200)
    whole = head.log_probs(hidden, tokens)
    head.min_prior = least
    actual = head.log_probs(hidden, tokens)
    bound, change = head.pruning_error_bound(hidden, tokens), (actual - whole).abs()
    assert bool((change <= bound + 1e-12).all()) and float(change.max()) > 1e-3
    assert float((bound / change.clamp(min=1e-9))[change > 1e-3].median()) < 20  # it is of some use
    every = head.log_probs(hidden.repeat_interleave(TOKENS, 0), torch.arange(TOKENS).repeat(200)).view(200, TOKENS)
    assert torch.allclose(every.exp().sum(1), torch.ones(200).double())
    assert torch.allclose(head.logits(hidden).log_softmax(-1), every)
    kept = (head._contexts(hidden, None).prior > -torch.inf).sum(1)
    assert int(kept.min()) >= 1 and float(kept.double().mean()) < 3


def test_without_a_least_prior_the_bound_is_nothing():
    head, _ = head_of()
    assert not bool(head.pruning_error_bound(*some()).any())


def test_what_is_refused():
    with pytest.raises(ValueError, match="cannot be the output weights of 7 tokens and width 5"):
        MixtureHead(TOKENS, WIDTH, 2, 5, table=torch.nn.Embedding(8, 4))
    with pytest.raises(ValueError, match="Only a mixture of softmaxes has floor"):
        MixtureHead(TOKENS, WIDTH, 2, kind="moc", floor=1e-8)


def test_older_settings_without_an_output():
    old = {"kind": "transformer", "width": 8, "heads": 2, "cutoffs": [1, 2], "div_value": 2}
    assert (
        NETWORKS.from_dict(old) == TransformerConfig(8, heads=2, cutoffs=(1, 2), div_value=2)
        and NETWORKS.from_dict(old).output == "softmax"
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"output": "mos", "components": 0}, "components, div_value and latent_width are at least 1"),
        ({"output": "mos", "latent_dropout": 1.0}, "lie in"),
        ({"output": "mos", "cutoffs": [3]}, "A mixture has no clusters"),
        ({"output": "moc", "floor": 1e-8}, "Only a mixture of softmaxes has floor"),
        ({"output": "moc", "latent_width": 20}, "Tied weights need vectors of one width"),
    ],
)
def test_wrong_settings_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        NETWORKS.from_dict({"kind": "transformer", **values})


def test_tokens_too_unlikely_for_exponentials_still_have_logits():
    """Of one component that is all but certain: the others' logits come from logarithms."""
    head = MixtureHead(4, 3, 2).eval()
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[300.0, 0, 0], [0, 300.0, 0], [-300.0, 0, 0], [0, 0, 300.0]]))
        hidden = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
        actual, expected = head.logits(hidden), head.double().logits(hidden.double())
    assert bool(actual.isfinite().all()) and float(expected.amin() - expected.amax()) < -100
    torch.testing.assert_close(actual.double(), expected, atol=1e-3, rtol=1e-5)
