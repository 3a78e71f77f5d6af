"""TrellisNet: written again plainly, one distribution however a text is cut, what training drops, penalises and adds."""

import copy
import warnings
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
from esscher.networks import trellisnet
from esscher.networks.network import PenalizedNetwork, StreamingNetwork
from esscher.networks.recurrent_config import TrellisNetConfig
from esscher.networks.registry import NETWORKS
from esscher.objectives.likelihood import Likelihood
from esscher.testing import check_base, check_stream

SPACE = Space(5, 4)
PLACES = ("dropout", "input_dropout", "hidden_dropout", "word_dropout", "weight_dropout")
CALM = dict.fromkeys(PLACES, 0.0)
CASES = {
    "published": TrellisNetConfig(4, 5, inner=3),
    "one level": TrellisNetConfig(4, 1, inner=3),
    "dilated": TrellisNetConfig(4, 6, 6, inner=0, dilations=(1, 4, 2), tied=False),
}


def sigmoid(x):
    return 1 / (1 + (-x).exp())


def plainly(network, tokens, masks=None):
    """Hidden vectors of each level, [levels, T, H], position by position; masks are of input, what is read, and two weights."""
    config, units = network.config, network.past.in_features
    given, heard, input_past, past = masks or (1.0, 1.0, 1.0, 1.0)
    nothing = torch.zeros(units).double()
    x = [network.embedding.weight[token] * given for token in tokens]
    hidden, cell, actual = [nothing] * len(x), [nothing] * len(x), []
    for level in range(config.layers):
        span, new_hidden, new_cell = config.dilations[level % len(config.dilations)], [], []
        for t in range(len(x)):
            gates = network.input_now.weight @ x[t] + network.input_now.bias + network.now.weight @ (hidden[t] * heard)
            if t >= span:
                gates = gates + (network.input_past.weight * input_past) @ x[t - span]
                gates = gates + (network.past.weight * past) @ (hidden[t - span] * heard)
            i, o, g, f = gates.chunk(4)
            c = sigmoid(f) * (cell[t - span] if t >= span else nothing) + sigmoid(i) * g.tanh()
            new_hidden.append(sigmoid(o) * c.tanh())
            new_cell.append(c)
        hidden, cell = new_hidden, new_cell
        actual.append(torch.stack(hidden))
    return torch.stack(actual)


@pytest.mark.parametrize("case", CASES)
def test_equals_its_equations(case):
    network = lively(CASES[case], SPACE).double().network
    tokens = [5, 0, 3, 1, 1, 4, 2, 2, 0]
    actual, _ = network.read(torch.tensor([tokens]), network.init_memory(1))
    assert torch.allclose(actual[0], plainly(network, tokens)[-1, :, -4:], atol=1e-12)


right = trellisnet._lstm_gates


def other_order(gates, cell):
    """i, f, g, o: the order of torch's LSTM."""
    i, o, g, f = gates.chunk(4, -1)
    return right(torch.cat([i, f, g, o], -1), cell)


def cell_of_the_same_place(self, hidden, cell, share, weights, keep):
    length = len(share)
    seen = hidden[:length].flatten(0, 1) @ weights.past + hidden[-length:].flatten(0, 1) @ weights.now
    return right(share + seen.view_as(share), cell[-length:])


def taps_changed_about(self, *, training, steps=0):
    actual = weights(self, training=training, steps=steps)
    return replace(actual, past=actual.now, now=actual.past)


weights = trellisnet.TrellisNetwork._weights
WRONG = {
    "gates in another order": (trellisnet, "_lstm_gates", other_order),
    "cells that are not shifted": (trellisnet.TrellisNetwork, "_layer", cell_of_the_same_place),
    "past and present changed about": (trellisnet.TrellisNetwork, "_weights", taps_changed_about),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_levels_are_caught(wrong, monkeypatch):
    monkeypatch.setattr(*WRONG[wrong])
    with pytest.raises(AssertionError):
        test_equals_its_equations("published")


def rows(length, count=3):
    tokens = torch.randint(5, (count, length), generator=torch.Generator().manual_seed(0))
    return Sequences(tokens, torch.zeros(count, dtype=torch.long), torch.full((count,), length))


@pytest.mark.parametrize("case", CASES)
def test_steps_and_streams_are_long_rows(case):
    """Longer than all dilations together; prompts of different lengths."""
    base, x = lively(CASES[case], Space(5, 30)).double(), rows(30)
    whole = base.log_probs(x)
    check_stream(base, length=25, tolerance=1e-12)
    at = torch.tensor([0, 9, 4])
    steps, state = base.begin(Sequences(x.tokens[:, :9], at, at))
    for offset in range(20):
        token = x.tokens.gather(1, at[:, None] + offset)
        assert torch.allclose(steps.gather(1, token), whole.gather(1, at[:, None] + offset), atol=1e-12)
        steps, state = base.advance(state, token[:, 0])


def published_history(base):
    """The last level's vectors of the last position stand for all levels' past, as in the released program."""
    read = base.network._layers

    def levels(inputs, memory, length, *, training):
        actual, (tokens, hidden, cells) = read(inputs, memory, length, training=training)
        return actual, (tokens, hidden[:, -1:].expand_as(hidden), cells[:, -1:].expand_as(cells))

    base.network._layers = levels
    return base


def slots_by_one(self, state, token):
    """Steps that look one too far back at once."""
    return advance(self, replace(state, count=state.count + 1), token)


advance = trellisnet.TrellisNetwork.advance


def test_wrong_memories_and_steps_are_caught(monkeypatch):
    with pytest.raises(AssertionError, match="a stream in pieces"):
        check_stream(published_history(lively(CASES["published"], SPACE)))
    monkeypatch.setattr(trellisnet.TrellisNetwork, "advance", slots_by_one)
    with pytest.raises(AssertionError, match="stepping must equal scoring"):
        check_base(lively(CASES["dilated"], SPACE), [[], [1, 2]])


def test_dropout_is_the_same_at_all_levels_and_positions():
    """A pass in training is the plain network under masks drawn in the same order."""
    config = replace(CASES["published"], dropout=0.0, input_dropout=0.4, hidden_dropout=0.3, word_dropout=0.0, auxiliary=0.0)
    network = lively(config, SPACE).double().train().network
    tokens = torch.tensor([[5, 0, 3, 0, 1, 3], [5, 2, 2, 0, 0, 2]])
    with SeededRng(1).fork_torch_rng():
        actual, _ = network.read(tokens, network.init_memory(2))
    drop, ones = torch.nn.functional.dropout, partial(torch.ones, dtype=torch.double)
    with SeededRng(1).fork_torch_rng():
        input_past, past = (drop(torch.ones_like(part.weight), 0.5) for part in (network.input_past, network.past))
        given, heard = drop(ones(2, 1, 4), 0.4)[:, 0], drop(ones(2, 7), 0.3)
    for row in range(2):
        expected = plainly(network, tokens[row].tolist(), (given[row], heard[row], input_past, past))[-1, :, -4:]
        assert torch.allclose(actual[row], expected, atol=1e-12)


def test_a_mask_of_each_level_is_caught(monkeypatch):
    level = trellisnet.TrellisNetwork._layer

    def fresh(self, hidden, cell, share, weights, keep):
        return level(self, hidden, cell, share, weights, torch.nn.functional.dropout(torch.ones_like(keep), 0.3))

    monkeypatch.setattr(trellisnet.TrellisNetwork, "_layer", fresh)
    with pytest.raises(AssertionError):
        test_dropout_is_the_same_at_all_levels_and_positions()


@pytest.mark.parametrize("place", PLACES)
def test_every_dropout_acts_in_training_alone(place):
    check_dropout(replace(CASES["published"], **{**CALM, place: 0.5}), SPACE)


def test_penalties_and_the_auxiliary_loss():
    """Of six levels, 2, 4 and 6 are scored; padding and prompts are not counted, and a stream is penalised too."""
    config = TrellisNetConfig(4, 6, inner=3, **CALM, alpha=3.0, beta=5.0, auxiliary=0.2, auxiliary_every=2)
    base = lively(config, SPACE).double()
    network, x = base.network, sequences([[1, 2, 3, 4], [4, 3]], [[], [2]])
    read = [[5, 1, 2, 3], [5, 2, 4]]
    levels = [plainly(network, row)[:, :, -4:].detach() for row in read]
    last = [item[-1] for item in levels]
    size, change = torch.cat(last).square().mean(), torch.cat([item[1:] - item[:-1] for item in last]).square().mean()
    scored = 0.0
    for level in (1, 3, 5):
        for item, row, first in zip(levels, ([1, 2, 3, 4], [2, 4, 3]), (0, 1), strict=True):
            log_prob = network.output(item[level]).detach().log_softmax(-1)
            scored -= float(sum(log_prob[t, row[t]] for t in range(first, len(row)))) / 6
    expected = float(3 * size + 5 * change) + 0.2 * scored
    loss = Likelihood()(Tilted(base.train()), x, rng=SeededRng(0))
    assert loss.metrics["penalty"] == pytest.approx(expected) and base.penalty() is None
    leveled = base.log_probs_and_logsumexp(x)
    assert leveled[0].shape == (2, 4) and float(base.penalty().detach()) == pytest.approx(expected)
    with_memory = WithMemory(base, base.init_memory(2))
    segment = Sequences(torch.tensor([[1, 2], [3, 2]]), torch.zeros(2, dtype=torch.long), torch.full((2,), 2))
    assert Likelihood()(Tilted(with_memory), segment, rng=SeededRng(0)).metrics["penalty"] > 0
    base.log_probs(x)
    assert copy.deepcopy(base).penalty() is None and base.penalty() is not None
    assert isinstance(network, StreamingNetwork) and isinstance(network, PenalizedNetwork)
    assert base.eval().log_probs(x).shape == (2, 4) and base.penalty() is None


def test_an_auxiliary_loss_that_cannot_be_is_told_once():
    base = build_base(TrellisNetConfig(4, 2, inner=3, auxiliary_every=1), SPACE, rng=SeededRng(0)).train()
    x = sequences([[1, 2, 3, 4]])
    base.logits(x)
    with pytest.warns(UserWarning, match=r"not scored.*auxiliary loss of weight 0\.05.*set auxiliary = 0"):
        assert base.penalty() is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        base.logits(x)
        base.penalty()


def test_gradients_are_finite_at_length_1_and_reach_every_weight():
    base = build_base(replace(CASES["published"], **CALM, auxiliary_every=2), SPACE, rng=SeededRng(0)).train()
    for point in ([2], [1, 2, 3]):
        base.zero_grad()
        (base.log_probs(sequences([point])).sum() + base.penalty()).backward()
        slopes = {name: weight.grad for name, weight in base.named_parameters()}
        assert all(slope is not None and bool(slope.isfinite().all()) for slope in slopes.values())
    assert all(bool(slope.any()) for slope in slopes.values())


def test_a_position_depends_on_those_before_it_and_on_no_other():
    network = lively(CASES["dilated"], SPACE).double().network
    given = torch.randn(14, 1, 6, dtype=torch.double, generator=torch.Generator().manual_seed(1), requires_grad=True)
    network._embed = lambda tokens, *, training: torch.nn.functional.pad(given, (0, 0, 0, 0, 4, 0))
    hidden = network.read(torch.zeros(1, 14, dtype=torch.long), network.init_memory(1))[0]
    for position in range(14):
        (slope,) = torch.autograd.grad(hidden[0, position].sum(), given, retain_graph=True)
        size = slope[:, 0].abs().sum(-1)
        assert float(size[position + 1 :].sum()) == 0 and float(size[max(0, position - 1) : position + 1].min()) > 0


def test_initial_weights():
    """The seed is fixed, so there is no false alarm."""
    network = build_base(TrellisNetConfig(30, 2, inner=40), Space(99, 4), rng=SeededRng(0)).network
    for part in (network.input_past.weight, network.input_now.weight, network.input_now.bias, network.past.weight):
        assert float(part.detach().std()) == pytest.approx(0.01, rel=0.1)
    assert float(network.embedding.weight.detach().abs().max()) == pytest.approx(0.1, rel=0.01)
    assert not bool(network.head.bias.any())


def test_sizes():
    """24 million were published for the Penn Treebank with 1,000 units in all; the released program has 400 more."""
    assert parameter_count(TrellisNetConfig(inner=600), 10_000) == pytest.approx(15.2e6, rel=0.02)
    config = TrellisNetConfig(40, 3, inner=20)
    wanted = 2 * parameter_count(config, 500)
    assert abs(parameter_count(scaled_to(config, 500, wanted), 500) - wanted) / wanted < 0.08


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dilations": []}, r"at least one position, and one dilation"),
        ({"dilations": [0]}, r"looks back by at least one position"),
        ({"auxiliary_every": 0}, r"auxiliary_every is at least 1, not 0"),
        ({"inner": -1}, r"inner is at least 0, not -1"),
        ({"embedding": 20}, r"output has 400, the embeddings 20"),
        ({"weight_dropout": 1.0}, r"dropout rate"),
        ({"auxiliary": -1.0}, r"auxiliary is at least 0, not -1"),
    ],
)
def test_wrong_settings_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        NETWORKS.from_dict({"kind": "trellisnet", **values})
