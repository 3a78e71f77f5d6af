"""Adaptive input and softmax: against their definition written out, against golden tensors, and what is shared or refused."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from small_networks import CONFIGS, SPACES, lively
from torch.nn.functional import log_softmax

from esscher.core.randomness import SeededRng
from esscher.core.storage import module_tensors
from esscher.heads import adaptive
from esscher.heads.adaptive import AdaptiveInput, AdaptiveSoftmax
from esscher.heads.head import Head, SoftmaxHead

VOCAB, WIDTH, CUTOFFS, ROWS = 11, 8, (3, 5, 8), 40
STARTS, STOPS = (0, *CUTOFFS), (*CUTOFFS, VOCAB)
GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "txl_adapt_div1.safetensors"

KINDS = {  # shrink, tied projections (None: nothing is tied)
    "one table": (1, "none"),
    "one table, untied": (1, None),
    "tables, own projections": (2, "none"),
    "tables, tails tied": (2, "tails"),
    "tables, all tied": (2, "all"),
    "tables, untied": (2, None),
}


@pytest.fixture(params=KINDS)
def both(request):
    return made(*KINDS[request.param])


def made(div_value, tied) -> tuple[AdaptiveInput, AdaptiveSoftmax]:
    """Input and softmax with lively weights, biases too."""
    with SeededRng(3).fork_torch_rng():
        reads = AdaptiveInput(VOCAB, WIDTH, CUTOFFS, div_value)
        if tied is None:
            head = AdaptiveSoftmax(VOCAB, WIDTH, CUTOFFS, div_value)
        else:
            head = AdaptiveSoftmax(VOCAB, WIDTH, CUTOFFS, div_value, reads, tied)
        for weight in (*reads.parameters(), *head.parameters()):
            torch.nn.init.normal_(weight, std=0.5)
    return reads.double(), head.double()


def some(rows=ROWS):
    with SeededRng(4).fork_torch_rng():
        hidden, tokens = torch.randn(rows, WIDTH, dtype=torch.float64), torch.randint(VOCAB, (rows,))
    return hidden.requires_grad_(), tokens


def vectors_of(tables, cluster):
    """The rows of a cluster, from one table for all or one for each."""
    start, stop = STARTS[cluster], STOPS[cluster]
    return tables[0][start:stop] if len(tables) == 1 else tables[cluster][: stop - start]


def by_definition(reads, head, hidden):
    """P(token) of every token by two softmaxes."""
    tables = list(head.weights) or [table.weight for table in reads.tables]

    def logits(cluster, more=None, more_bias=None):
        weight, bias = vectors_of(tables, cluster), head.bias[STARTS[cluster] : STOPS[cluster]]
        if more is not None:
            weight, bias = torch.cat([weight, more]), torch.cat([bias, more_bias])
        project = torch.eye(WIDTH, dtype=torch.float64)
        if reads.projections:
            project = (head if cluster < len(head.projections) else reads).projections[cluster]
        return torch.einsum("nd,de,ve->nv", hidden, project, weight) + bias

    first = logits(0, head.cluster_weight, head.cluster_bias).exp()
    first = first / first.sum(1, keepdim=True)
    columns = [first[:, token] for token in range(CUTOFFS[0])]
    for cluster in range(1, len(STARTS)):
        within = logits(cluster).exp()
        within = within / within.sum(1, keepdim=True)
        columns += [first[:, CUTOFFS[0] + cluster - 1] * within[:, number] for number in range(within.shape[1])]
    return torch.stack(columns, 1)


def test_scores_and_logits_are_the_definition(both):
    reads, head = both
    hidden, tokens = some()
    expected = by_definition(reads, head, hidden)
    assert torch.allclose(expected.sum(1), torch.ones(ROWS, dtype=torch.float64))
    assert torch.allclose(log_softmax(head.logits(hidden), -1), expected.log(), atol=1e-12)
    assert torch.allclose(head.log_probs(hidden, tokens), expected.log().gather(1, tokens[:, None])[:, 0], atol=1e-12)
    every = torch.arange(VOCAB).repeat(ROWS)
    total = head.log_probs(hidden.repeat_interleave(VOCAB, 0), every).exp().view(ROWS, VOCAB).sum(1)
    assert torch.allclose(total, torch.ones_like(total))
    for steps in (1, 100):
        assert torch.allclose(head.logits_fn(steps)(hidden), head.logits(hidden), atol=1e-12)
    shaped = head.logits(hidden.view(2, 4, -1, WIDTH))
    assert torch.equal(shaped.view(ROWS, VOCAB), head.logits(hidden)) and isinstance(head, Head)


@pytest.mark.parametrize("incoming", ["a mean", "varied"])
def test_gradients_are_those_of_the_definition(both, incoming):
    reads, head = both
    hidden, tokens = some()
    weights = [hidden, *(reads.parameters() if head._input[0] is reads else ()), *head.parameters()]
    inputs = torch.full((ROWS,), 0.1).double() if incoming == "a mean" else torch.linspace(-1, 1, ROWS).double()
    gradients = torch.autograd.grad(head.log_probs(hidden, tokens), weights, inputs, allow_unused=True, materialize_grads=True)
    expected = by_definition(reads, head, hidden).log().gather(1, tokens[:, None])[:, 0]
    expected = torch.autograd.grad(expected, weights, inputs, allow_unused=True, materialize_grads=True)
    assert all(torch.allclose(item, other, atol=1e-12) for item, other in zip(gradients, expected, strict=True))


def test_input_vectors(both):
    reads, _ = both
    tokens = torch.tensor([[0, 10, 4], [11, 7, 2], [5, 8, 11]])  # 11 is the BOS symbol
    rows = []
    for token in tokens.flatten().tolist():
        cluster = max(number for number, start in enumerate(STARTS) if token >= start)
        tables = [table.weight for table in reads.tables]
        vector = tables[0][token] if len(tables) == 1 else tables[cluster][token - STARTS[cluster]]
        if reads.projections:
            vector = reads.projections[cluster] @ vector
        rows.append(vector * WIDTH**0.5)
    expected = torch.stack(rows).view(3, 3, WIDTH)
    assert torch.allclose(reads(tokens), expected, atol=1e-12)
    slopes = [torch.autograd.grad(item.pow(3).sum(), list(reads.parameters())) for item in (reads(tokens), expected)]
    assert all(torch.allclose(item, other, atol=1e-12) for item, other in zip(*slopes, strict=True))
    assert reads(tokens[:0]).shape == (0, 3, WIDTH)


def test_a_tail_is_computed_for_its_own_tokens_only(monkeypatch):
    _, head = made(*KINDS["tables, tails tied"])
    rows, log_probs = [], adaptive.softmax_log_probs

    def counting(hidden, weight, bias, tokens):
        rows.append((len(tokens), len(weight)))
        return log_probs(hidden, weight, bias, tokens)

    monkeypatch.setattr(adaptive, "softmax_log_probs", counting)
    head.log_probs(some(5)[0], torch.tensor([9, 0, 3, 10, 1]))
    assert rows == [(5, 3 + 3), (1, 2), (0, 3), (2, 3)]


def test_every_weight_has_a_gradient_though_its_cluster_has_no_token():
    """Processes that add up their gradients must agree on which there are."""
    _, head = made(*KINDS["tables, untied"])
    head.log_probs(some(2)[0], torch.tensor([0, 2])).sum().backward()
    assert all(weight.grad is not None for weight in head.parameters())


def test_nothing_to_score_and_one_cluster():
    _, head = made(*KINDS["tables, tails tied"])
    assert head.log_probs(*some(0)).shape == (0,) and head.logits(some(0)[0]).shape == (0, VOCAB)
    alone, plain = AdaptiveSoftmax(VOCAB, WIDTH).double(), SoftmaxHead(VOCAB, WIDTH, bias=True).double()
    plain.load_state_dict({"weight": alone.weights[0], "bias": alone.bias})
    hidden, tokens = some()
    assert torch.equal(alone.logits(hidden), plain.logits(hidden))
    assert torch.equal(alone.log_probs(hidden, tokens), plain.log_probs(hidden, tokens))


@pytest.mark.parametrize(
    ("tied", "names"),
    [
        ("none", {"bias", "cluster_weight", "cluster_bias", *(f"projections.{number}" for number in range(4))}),
        ("tails", {"bias", "cluster_weight", "cluster_bias", "projections.0"}),
        ("all", {"bias", "cluster_weight", "cluster_bias"}),
    ],
)
def test_what_is_tied_is_no_parameter_of_the_softmax(tied, names):
    assert set(made(2, tied)[1].state_dict()) == names


def test_initial_weights():
    """Normal with standard deviation 0.02, projections 0.01, biases 0; the seed is fixed, so there is no false alarm."""
    with SeededRng(0).fork_torch_rng():
        reads = AdaptiveInput(400, 64, (100, 200), 2)
        head = AdaptiveSoftmax(400, 64, (100, 200), 2)
    for name, weight in [*reads.named_parameters(), *head.named_parameters()]:
        wanted = 0.0 if name.endswith("bias") else 0.01 if "projections" in name else 0.02
        assert float(weight.detach().std()) == pytest.approx(wanted, rel=0.2, abs=0), name


@pytest.mark.parametrize("cutoffs", [(5, 3), (3, 3), (0, 4), (4, VOCAB), (4, 20), (-1,)])
def test_cutoffs_that_do_not_part_the_vocabulary(cutoffs):
    with pytest.raises(ValueError, match=r"rise from above 0 to below the vocabulary's 11 tokens.*Nothing was built"):
        AdaptiveInput(VOCAB, WIDTH, cutoffs)
    with pytest.raises(ValueError, match="rise from above 0"):
        AdaptiveSoftmax(VOCAB, WIDTH, cutoffs)


def test_what_else_is_refused():
    with pytest.raises(ValueError, match=r"width 8 cannot be divided by div_value = 3 .* 2 further clusters"):
        AdaptiveInput(VOCAB, WIDTH, (3, 5), 3)
    with pytest.raises(ValueError, match="div_value = 0"):
        AdaptiveInput(VOCAB, WIDTH, (3, 5), 0)
    reads = AdaptiveInput(VOCAB, WIDTH, (3, 5), 2)
    with pytest.raises(ValueError, match="only equal ones can be tied"):
        AdaptiveSoftmax(VOCAB, WIDTH, (3, 6), 2, reads)
    with pytest.raises(ValueError, match="no projections to tie"):
        AdaptiveSoftmax(VOCAB, WIDTH, (3, 5), 2, tied_projections="all")
    with pytest.raises(ValueError, match="cannot be the output weights of 11 tokens and width 8"):
        SoftmaxHead(VOCAB, WIDTH, torch.nn.Embedding(12, 7), bias=False)


@pytest.mark.parametrize("kind", ["transformer, adaptive", "transformer, rotary", "gru, tied"])
def test_a_copy_of_a_network_is_tied_to_its_own_table(kind):
    base = lively(CONFIGS[kind], SPACES["fixed length"])
    other = copy.deepcopy(base)
    hidden = torch.ones(1, base.config.width)
    before = base.network.output(hidden).clone()
    with torch.no_grad():
        for weight in other.network.embedding.parameters():
            weight.add_(1.0)
    assert torch.equal(base.network.output(hidden), before)
    assert not torch.allclose(other.network.output(hidden), before)
    assert not any(name.startswith(("head.weight", "head.tables", "head._")) for name in module_tensors(base.network))


@pytest.mark.skipif(not GOLDEN.is_file(), reason="the golden tensors are not here")
def test_golden_losses_and_gradients():
    """Of the authors' softmax on the last layer's outputs; its clusters' symbols are in the opposite order."""
    with safe_open(GOLDEN, "pt") as file:
        golden = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        config = json.loads(file.metadata()["config"])
    state = {name.removeprefix("state/crit."): value for name, value in golden.items() if name.startswith("state/crit.")}
    vocab, width = state["out_layers.0.weight"].shape
    reads = AdaptiveInput(vocab, width, tuple(config["cutoffs"]), config["div_val"])
    head = AdaptiveSoftmax(vocab, width, tuple(config["cutoffs"]), config["div_val"], reads, "tails")
    reads.tables[0].weight.data[:vocab] = golden["state/word_emb.emb_layers.0.weight"]
    drawn = {"cluster_weight": state["cluster_weight"].flip(0), "cluster_bias": state["cluster_bias"].flip(0)}
    head.load_state_dict({**drawn, "bias": state["out_layers.0.bias"]})
    for segment in range(4):
        target = golden[f"recs/{segment}/target"]
        hidden = golden[f"recs/{segment}/mems/3"][-len(target) :].flatten(0, 1)
        loss = -head.log_probs(hidden, target.flatten())
        theirs = golden[f"recs/{segment}/loss"].flatten()
        assert float(loss.detach().mean()) == pytest.approx(float(theirs.mean()), abs=1e-5)
        assert torch.allclose(loss.detach().sort().values, theirs.sort().values, atol=1e-5)
        assert not torch.allclose(loss.detach(), theirs, atol=1e-2)  # theirs are sorted by cluster
    loss.mean().backward()
    assert torch.allclose(head.bias.grad, golden["grads/crit.out_layers.0.bias"], atol=1e-6)
    assert torch.allclose(head.cluster_weight.grad.flip(0), golden["grads/crit.cluster_weight"], atol=1e-6)
    assert torch.allclose(head.cluster_bias.grad.flip(0), golden["grads/crit.cluster_bias"], atol=1e-6)
