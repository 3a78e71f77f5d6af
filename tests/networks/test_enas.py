"""The ENAS cell: written again plainly from its equations, its arcs, what training drops and penalises, initial weights."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import torch
from small_networks import check_dropout, lively

from esscher.bases.network import build_base
from esscher.bases.scaling import parameter_count, scaled_to
from esscher.bases.wrappers import WithMemory
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, sequences
from esscher.core.target import Tilted
from esscher.networks import enas
from esscher.networks.network import PenalizedNetwork, StreamingNetwork
from esscher.networks.recurrent_config import EnasConfig
from esscher.networks.registry import NETWORKS
from esscher.objectives.likelihood import Likelihood
from esscher.testing import check_base, check_stream

SPACE = Space(5, 4)
CALM = {"dropout": 0.0, "input_dropout": 0.0, "hidden_dropout": 0.0, "word_dropout": 0.0}
FUNCTIONS = {0: torch.tanh, 1: lambda x: x.clamp(min=0), 2: lambda x: x, 3: lambda x: 1 / (1 + (-x).exp())}
ARCS = {
    "found": EnasConfig().arc,
    "one node": (3,),
    "a chain": (0, 0, 1, 1, 2, 2, 3),
    "a star": (1, 0, 3, 0, 0, 0, 3, 0, 2, 0, 1),
}


def weights_of(cell, arc, width):
    """The matrix of each node, [2 H, I + H] or [2 H, H], taken out of those that are kept together."""
    readers = {}
    for number in range(1, len(arc) // 2 + 1):
        readers.setdefault(arc[2 * number - 1], []).append((arc[2 * number], number))
    actual = {0: torch.cat([cell.read.weight, cell.nodes[0].weight], 1)}
    for place, source in enumerate(sorted(readers), 1):
        ordered = [number for _, number in sorted(readers[source])]
        both = cell.nodes[place].weight.view(2, len(ordered), width, width)
        for at, number in enumerate(ordered):
            actual[number] = torch.cat([both[0, at], both[1, at]])
    return actual


def plainly(network, tokens, masks=None):
    """The output after each token of one row, node by node; masks are of words, input, what is read, and output."""
    config = network.config
    words, given, heard, said = masks or (None, 1.0, 1.0, 1.0)
    rows = [network.embedding.weight[token] * (1.0 if words is None else words[token]) for token in tokens]
    for cell in network.cells:
        matrices, state, actual = weights_of(cell, config.arc, config.width), torch.zeros(config.width).double(), []
        for x in rows:
            nodes, read = [], set()
            for number in range(len(config.arc) // 2 + 1):
                source = state if number == 0 else nodes[config.arc[2 * number - 1]]
                read |= set() if number == 0 else {config.arc[2 * number - 1]}
                seen = torch.cat([x * given, source * heard]) if number == 0 else source * heard
                h, t = (matrices[number] @ seen).chunk(2)
                f = FUNCTIONS[config.arc[2 * number]]
                nodes.append(source + 1 / (1 + (-t).exp()) * (f(h) - source))
            state = sum(node for number, node in enumerate(nodes) if number not in read) / (len(nodes) - len(read))
            actual.append(state)
        rows = actual
    return torch.stack(rows) * said


@pytest.mark.parametrize("name", ARCS)
@pytest.mark.parametrize("layers", [1, 2])
def test_equals_its_equations(name, layers):
    network = lively(EnasConfig(6, layers, arc=ARCS[name]), SPACE).double().network
    tokens = [5, 0, 3, 1, 1, 4]
    actual, _ = network.read(torch.tensor([tokens]), network.init_memory(1))
    assert torch.allclose(actual[0], plainly(network, tokens), atol=1e-12)


def reads_what_is_not_dropped_too(self, input_gates, state, weights, mask):
    return right(self, input_gates, state, weights, None)


def mean_of_all(self, input_gates, state, weights, mask):
    return right(enas._CellGraph(self.groups, tuple(range(12))), input_gates, state, weights, mask)


right = enas._CellGraph.__call__


def gate_turned(self, source, gates):
    """s = p + (1 - sigmoid(t)) (f(h) - p)."""
    h, t = gates.chunk(2, 1)
    return readers(self, source, torch.cat([h, -t], 1))


def functions_in_another_order(self, source, gates):
    return readers(enas._NodeGroup(self.source, self.nodes, tuple(reversed(self.functions))), source, gates)


readers = enas._NodeGroup.__call__
WRONG = {
    "the mean of all nodes": (enas._CellGraph, mean_of_all),
    "gates turned round": (enas._NodeGroup, gate_turned),
    "functions changed about": (enas._NodeGroup, functions_in_another_order),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_cells_are_caught(wrong, monkeypatch):
    monkeypatch.setattr(WRONG[wrong][0], "__call__", WRONG[wrong][1])
    with pytest.raises(AssertionError):
        test_equals_its_equations("found", 1)


class StepsWithoutTheInput(enas._EnasCellStep):
    def __call__(self, below, hidden, cell):
        hidden.copy_(self.plan(0 * self.reader.input_gates(below), hidden, self.weights, None))


def test_wrong_steps_and_memories_are_caught(monkeypatch):
    config = EnasConfig(8)
    check_base(lively(config, Space(3, 3)), [[], [1, 2]])
    forgets = lively(config, Space(3, 3))
    forgets.network.init_memory = lambda rows: tuple(torch.full((rows, 8), 0.3) for _ in range(1))
    with pytest.raises(AssertionError, match="stepping must equal scoring"):
        check_base(forgets, [[], [1, 2]])
    stale = lively(config, Space(3, 3))
    pass_ = stale.network._pass
    stale.network._pass = lambda inputs, memory, inside: (pass_(inputs, memory, inside)[0], memory)
    with pytest.raises(AssertionError, match="a stream in pieces"):
        check_stream(stale)
    monkeypatch.setattr(enas, "_EnasCellStep", StepsWithoutTheInput)
    with pytest.raises(AssertionError, match="stepping must equal scoring"):
        check_base(lively(config, Space(3, 3)), [[], [1, 2]])


def test_large_vocabularies_are_multiplied_and_not_looked_up(monkeypatch):
    monkeypatch.setattr("esscher.networks.recurrent.INPUT_TABLE_MAX_VOCAB", 0)
    check_base(lively(EnasConfig(8, 2), SPACE), [[], [1, 2]])


def test_dropout_is_one_mask_a_row_in_four_places():
    """A pass in training is the plain cell under masks drawn in the same order."""
    config = EnasConfig(6, dropout=0.5, input_dropout=0.4, hidden_dropout=0.3, word_dropout=0.5)
    network = lively(config, SPACE).double().train().network
    tokens = torch.tensor([[5, 0, 3, 0, 1, 3], [5, 2, 2, 0, 0, 2]])
    with SeededRng(1).fork_torch_rng():
        actual, _ = network.read(tokens, network.init_memory(2))
    drop, ones = torch.nn.functional.dropout, partial(torch.ones, dtype=torch.double)
    with SeededRng(1).fork_torch_rng():
        present = [sorted(set(row.tolist())) for row in tokens]
        words = drop(ones(sum(map(len, present)), 1), 0.5)[:, 0]
        given, heard = drop(ones(2, 1, 6), 0.4)[:, 0], drop(ones(2, 6), 0.3)
        said = drop(ones(2, 1, 6), 0.5)[:, 0]
    by_row = words.split([len(item) for item in present])
    for row in range(2):
        kept = dict(zip(present[row], by_row[row].tolist(), strict=True))
        expected = plainly(network, tokens[row].tolist(), (kept, given[row], heard[row], said[row]))
        assert torch.allclose(actual[row], expected, atol=1e-12)
    assert {0.0, 2.0} == set(words.tolist())


def test_a_mask_that_is_forgotten_is_caught(monkeypatch):
    monkeypatch.setattr(enas._CellGraph, "__call__", reads_what_is_not_dropped_too)
    with pytest.raises(AssertionError):
        test_dropout_is_one_mask_a_row_in_four_places()


@pytest.mark.parametrize("place", CALM)
def test_every_dropout_acts_in_training_alone(place):
    check_dropout(replace(EnasConfig(8, 2), **{**CALM, place: 0.5}), SPACE)


def test_penalties():
    """`beta` for the width is the published slowness for the sum over units; padding is not counted."""
    base = build_base(EnasConfig(8, **CALM, alpha=3.0, beta=8e-3), SPACE, rng=SeededRng(0)).double()
    x = sequences([[1, 2, 3, 4], [4, 3]])
    outputs = [base.eval().network.hidden(sequences([row]))[0].detach() for row in ([1, 2, 3, 4], [4, 3])]
    size = torch.cat(outputs).square().mean()
    slow = torch.cat([output[1:] - output[:-1] for output in outputs]).square().sum() / 4
    loss = Likelihood()(Tilted(base.train()), x, rng=SeededRng(0))
    assert loss.metrics["penalty"] == pytest.approx(float(3 * size + 1e-3 * slow)) and base.penalty() is None
    with_memory = WithMemory(base, base.init_memory(2))
    segment = Sequences(torch.tensor([[1, 2], [3, 2]]), torch.zeros(2, dtype=torch.long), torch.full((2,), 2))
    assert Likelihood()(Tilted(with_memory), segment, rng=SeededRng(0)).metrics["penalty"] > 0
    base.log_probs(x)
    assert copy.deepcopy(base).penalty() is None and base.penalty() is not None
    assert isinstance(base.network, StreamingNetwork) and isinstance(base.network, PenalizedNetwork)


@pytest.mark.parametrize("point", [[], [2]])
def test_gradients_are_finite_at_length_0_and_1(point):
    base = build_base(EnasConfig(8), SPACE, rng=SeededRng(0)).train()
    loss = base.log_probs(sequences([point])).sum()
    if point:
        (loss + base.penalty()).backward()
        slopes = [weight.grad for weight in base.parameters()]
        assert all(slope is not None and bool(slope.isfinite().all()) for slope in slopes)


def test_initial_weights():
    """The seed is fixed, so there is no false alarm."""
    for width, bound in ((8, 0.1), (320, 0.05), (420, 0.04)):
        for name, weight in build_base(EnasConfig(width, arc=(0, 0, 1)), Space(9, 4), rng=SeededRng(0)).named_parameters():
            highest = float(weight.detach().abs().max())
            assert 0.9 * bound < highest <= bound, name


def test_sizes():
    """24 million were published for the Penn Treebank; the matrices of the released program make 22."""
    assert parameter_count(EnasConfig(), 9_999) == 10_000 * 748 + 2 * 748 * 748 * (2 + 11)
    config = EnasConfig(40, arc=(0, 0, 1))
    wanted = 2 * parameter_count(config, 500)
    assert abs(parameter_count(scaled_to(config, 500, wanted), 500) - wanted) / wanted < 0.08


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"arc": []}, r"odd number of entries, not 0"),
        ({"arc": [0, 0]}, r"input node and activation of each further node.*not 2"),
        ({"arc": [4]}, r"Node 0 of the arc has the unknown activation 4; the known ones are 0 tanh, 1 relu"),
        ({"arc": [0, 0, 7]}, r"Node 1 of the arc has the unknown activation 7"),
        ({"arc": [0, 0, 1, 2, 1]}, r"Node 2 of the arc reads node 2; it may read only nodes 0 to 1"),
        ({"arc": [0, -1, 1]}, r"Node 1 of the arc reads node -1"),
        ({"embedding": 20}, r"output has 748, the embeddings 20"),
        ({"embedding": 0}, r"at least one unit"),
        ({"hidden_dropout": 1.0}, r"dropout rate"),
        ({"beta": -1.0}, r"beta is at least 0, not -1"),
    ],
)
def test_wrong_settings_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        NETWORKS.from_dict({"kind": "enas", **values})
