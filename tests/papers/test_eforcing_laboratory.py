"""The exact laboratory of E-Forcing: networks, divergences and objectives against brute force and the library, its recipe."""

import json
import math
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import nn

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space
from esscher.core.target import Tilted
from esscher.exact.enumeration import enumerate_points
from esscher.objectives.config import EForcingConfig
from esscher.objectives.exposure_bias import EForcing
from esscher.objectives.likelihood import Likelihood
from esscher.papers.eforcing import laboratory, laboratory_tables
from esscher.papers.eforcing.prefix_tree import NETWORKS, TreeLstm, TreeScores, divergences, joint_masses
from esscher.papers.eforcing.tree_training import (
    LIKELIHOOD,
    ONCE,
    PUBLISHED,
    SMOOTHING,
    Method,
    Setting,
    TrainingPlan,
    TreeData,
    contrast,
    negative_masses,
    nll,
    scheduled_nll,
    shares,
    train,
)
from esscher.papers.study import StudyContext
from esscher.samplers.importance import Exhaustive

LENGTH = 5
SPACE = Space(2, LENGTH)
POINTS = enumerate_points(SPACE)


class OneReplica:
    """A base of the library with the logits of one replica of a tree network."""

    space = SPACE

    def __init__(self, scores: TreeScores, replica: int = 0):
        self.levels = [logits[replica] for logits in scores.logits]

    def logits(self, x: Sequences):
        place = 2 ** torch.arange(LENGTH - 1, -1, -1)
        number = (x.tokens * place).sum(-1)
        return torch.stack([level[number // 2 ** (LENGTH - k)] for k, level in enumerate(self.levels)], 1)

    def log_probs(self, x: Sequences):
        return self.logits(x).log_softmax(-1).gather(-1, x.tokens[..., None])[..., 0]

    def begin(self, prompts):
        raise NotImplementedError

    advance = select = begin


def lively(kind: str, seeds=(0, 1), length: int = LENGTH) -> nn.Module:
    """A network whose levels differ much from prefix to prefix."""
    network = NETWORKS[kind](2, length, 4, seeds)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(2.5)
    return network


@pytest.fixture(autouse=True)
def double_precision():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def strings_of(tree: TreeScores, replica: int):
    return tree.log_prefix[-1][replica]


def test_an_lstm_on_the_tree_is_the_one_of_torch_on_each_string():
    tree = lively("LSTM")
    reference = nn.LSTM(3, 4, batch_first=True)
    for replica in range(2):
        reference.weight_ih_l0.data = tree.input[replica].T
        reference.weight_hh_l0.data = tree.recurrent[replica].T
        reference.bias_ih_l0.data.zero_()
        reference.bias_hh_l0.data.zero_()
        start = torch.full((len(POINTS), 1), 2)
        inputs = nn.functional.one_hot(torch.cat([start, POINTS.tokens[:, :-1]], 1), 3).double()
        logits = reference(inputs)[0] @ tree.output[replica] + tree.bias[replica]
        torch.testing.assert_close(OneReplica(tree(), replica).logits(POINTS), logits)


@pytest.mark.parametrize("length", [2, 3, 5])
def test_a_transformer_on_the_tree_is_the_one_of_torch_on_each_string(length):
    tree, points = lively("Transformer", length=length), enumerate_points(Space(2, length)).tokens
    start = torch.full((len(points), 1), 2)
    for replica in range(2):
        x = tree.embedding[replica][torch.cat([start, points[:, :-1]], 1)] + tree.position[replica]
        for layer in tree.layers:
            reference = nn.TransformerEncoderLayer(4, 1, 8, 0.0, "gelu", batch_first=True, norm_first=True).eval()
            attention = reference.self_attn
            attention.in_proj_weight.data = layer["qkv_proj"][replica].T
            attention.out_proj.weight.data = layer["o_proj"][replica].T
            reference.linear1.weight.data, reference.linear2.weight.data = (
                layer[f"{n}_proj"][replica].T for n in ("up", "down")
            )
            for bias in (attention.in_proj_bias, attention.out_proj.bias, reference.linear2.bias):
                bias.data.zero_()
            reference.linear1.bias.data = layer["up_bias"][replica, 0]
            x = reference(x, nn.Transformer.generate_square_subsequent_mask(length))
        logits = nn.functional.layer_norm(x, (4,)) @ tree.output[replica] + tree.bias[replica]
        scores, number = tree(), (points * 2 ** torch.arange(length - 1, -1, -1)).sum(-1)
        for k, level in enumerate(scores.logits):
            torch.testing.assert_close(level[replica][number // 2 ** (length - k)], logits[:, k])


def brute_force(truth, scores: TreeScores, replica: int) -> dict[str, float]:
    """All divergences by sums over strings and prefixes, each looked up by its symbols."""
    base = OneReplica(scores, replica)
    points = [tuple(point) for point in POINTS.points()]
    log_next, lse = base.logits(POINTS).log_softmax(-1), base.logits(POINTS).logsumexp(-1)
    p = dict(zip(points, truth.tolist(), strict=True))
    q = {point: math.exp(float(base.log_probs(POINTS)[row].sum())) for row, point in enumerate(points)}

    def mass(of, prefix):
        return sum(value for point, value in of.items() if point[: len(prefix)] == prefix)

    prefix_kl, own = [], 0.0
    for k in range(LENGTH):
        prefixes = list(product((0, 1), repeat=k))
        if k:
            prefix_kl.append(sum(mass(p, x) * math.log(mass(p, x) / mass(q, x)) for x in prefixes))
        for x in prefixes:
            row = next(row for row, point in enumerate(points) if point[:k] == x)
            for v in (0, 1):
                conditional = mass(p, (*x, v)) / mass(p, x)
                own += mass(q, x) * conditional * (math.log(conditional) - float(log_next[row, k, v]))
    tilted = {point: q[point] * math.exp(float(lse[row, -1])) for row, point in enumerate(points)}
    total = sum(tilted.values())
    return {
        "kl": sum(p[x] * math.log(p[x] / q[x]) for x in points),
        "prefix_kl": sum(prefix_kl) / len(prefix_kl),
        "own_kl": own,
        "reverse_kl": sum(q[x] * math.log(q[x] / p[x]) for x in points),
        "tilted_kl": sum(p[x] * math.log(p[x] / (tilted[x] / total)) for x in points),
    }


@pytest.mark.parametrize("kind", NETWORKS)
def test_divergences_are_those_of_brute_force(kind):
    truth = torch.rand(32, generator=torch.Generator().manual_seed(3)) + 0.1
    truth = truth / truth.sum()
    scores = lively(kind)().double()
    actual = divergences(truth, scores)
    for replica in range(2):
        expected = brute_force(truth, scores, replica)
        assert {name: float(value[replica]) for name, value in vars(actual).items()} == pytest.approx(expected, abs=1e-10)
    reversed_symbols = truth.view((2,) * LENGTH).permute(*range(LENGTH - 1, -1, -1)).flatten()
    assert float(divergences(reversed_symbols, scores).prefix_kl[0]) != pytest.approx(expected["prefix_kl"], abs=1e-3)


def test_a_network_that_is_the_truth_has_no_divergence():
    scores = TreeScores([logits[:1] for logits in lively("LSTM")().logits])
    exact = divergences(strings_of(scores, 0).detach().exp(), scores)
    assert [float(value[0]) for name, value in vars(exact).items() if name != "tilted_kl"] == pytest.approx(
        [0.0] * 4, abs=1e-12
    )


def gradients(loss, network) -> torch.Tensor:
    return torch.cat([each.flatten() for each in torch.autograd.grad(loss, list(network.parameters()), retain_graph=True)])


DATA = torch.tensor([[3, 17, 17, 30, 8, 5, 31], [0, 1, 1, 9, 22, 22, 12]])


def data_points(replica: int) -> Sequences:
    return POINTS.rows(DATA[replica])


def masses(strings):
    return joint_masses(shares(strings, 32), 2, LENGTH)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("counts", ["again", "once"])
def test_eforcing_with_all_prefixes_is_the_objective_of_the_library(kind, counts):
    network, method = lively(kind), Method("E-Forcing", counts)
    scores = network()
    actual = nll(scores, masses(DATA)) + 0.7 * contrast(
        scores, masses(DATA), negative_masses(scores, method, 0, rng=SeededRng(0)), method
    )
    objective = EForcing(EForcingConfig(0.7, 0.9, counts=counts), sampler=Exhaustive())
    for replica in range(2):
        expected = objective(Tilted(OneReplica(scores, replica)), data_points(replica), rng=SeededRng(0)).value
        assert float(actual[replica].detach()) == pytest.approx(float(expected.detach()), abs=1e-10)
        torch.testing.assert_close(gradients(actual[replica], network), gradients(expected, network))
    other = {"again": "once", "once": "again"}[counts]
    wrong = nll(scores, masses(DATA)) + 0.7 * contrast(
        scores, masses(DATA), negative_masses(scores, method, 0, rng=SeededRng(0)), replace(method, counts=other)
    )
    assert not torch.allclose(gradients(wrong[1], network), gradients(expected, network), rtol=1e-3)


def test_eforcing_with_draws_is_the_objective_of_the_library_with_the_same_draws():
    network, method = lively("LSTM"), Method("E-Forcing", "once", "drawn")
    scores = network()
    drawn = SeededRng(4).categorical(scores.log_prefix[-1].detach(), 7)
    actual = nll(scores, masses(DATA)) + 0.7 * contrast(
        scores, masses(DATA), negative_masses(scores, method, 7, rng=SeededRng(4)), method
    )
    for replica in range(2):
        rows = POINTS.rows(drawn[replica])

        def sampler(target, prompts, count, *, rng, rows=rows):
            return Draws(rows, torch.zeros(7, 1), torch.zeros(7, 1), estimates_z=True, independent=True, cost=7)

        objective = EForcing(EForcingConfig(0.7, 0.9, counts="once"), sampler=sampler)
        expected = objective(Tilted(OneReplica(scores, replica)), data_points(replica), rng=SeededRng(0)).value
        assert float(actual[replica].detach()) == pytest.approx(float(expected.detach()), abs=1e-10)
        torch.testing.assert_close(gradients(actual[replica], network), gradients(expected, network))


def test_the_published_estimator_has_the_same_mean_and_more_noise():
    network = lively("LSTM", seeds=(0,))
    scores, data = network(), masses(DATA[:1])
    plain, published = Method("E-Forcing", "again", "drawn"), Method("E-Forcing", "again", "drawn, published estimator")
    exact = negative_masses(scores, Method("E-Forcing"), 0, rng=SeededRng(0))
    expected = gradients(contrast(scores, data, exact, Method("E-Forcing"))[0], network)
    torch.testing.assert_close(gradients(contrast(scores, data, exact, published)[0], network), expected)
    spread = {}
    for method in (plain, published):
        samples = [negative_masses(scores, method, 32, rng=SeededRng(seed)) for seed in range(40)]
        drawn = torch.stack([gradients(contrast(scores, data, each, method)[0], network) for each in samples])
        spread[method] = float(drawn.var(0).sum())
    assert spread[published] > 2 * spread[plain]


def test_label_smoothing_is_that_of_the_library():
    network = lively("LSTM")
    scores = network()
    actual = nll(scores, masses(DATA), torch.tensor([0.1, 0.3]))
    for replica, smoothing in enumerate((0.1, 0.3)):
        expected = Likelihood(smoothing)(Tilted(OneReplica(scores, replica)), data_points(replica), rng=SeededRng(0)).value
        assert float(actual[replica].detach()) == pytest.approx(float(expected.detach()), abs=1e-12)
        torch.testing.assert_close(gradients(actual[replica], network), gradients(expected, network))


def test_scheduled_sampling_has_the_expected_loss():
    """Over 60,000 copies of one string the mean is within 5 standard errors of the sum over all masks and own symbols."""
    scores, share, string = TreeScores([level[:1].detach() for level in lively("LSTM")().logits]), 0.4, 0b10110
    log_next, tokens = [level[0] for level in scores.log_next], [string >> (LENGTH - 1 - k) & 1 for k in range(LENGTH)]
    values, probabilities = [], []
    for own, mask in product(product((0, 1), repeat=LENGTH - 1), product((False, True), repeat=LENGTH - 1)):
        mixed, loss, probability = 0, 0.0, 1.0
        for k in range(LENGTH):
            loss -= float(log_next[k][mixed, tokens[k]]) / LENGTH
            if k < LENGTH - 1:
                probability *= float(log_next[k][string >> (LENGTH - k), own[k]].exp()) * (share if mask[k] else 1 - share)
                mixed = 2 * mixed + (own[k] if mask[k] else tokens[k])
        values.append(loss)
        probabilities.append(probability)
    value, weight = torch.tensor(values), torch.tensor(probabilities)
    mean = float(value @ weight)
    error = math.sqrt(float((value - mean).square() @ weight) / 60_000)
    copies = torch.full((1, 60_000), string)
    assert abs(float(scheduled_nll(scores, copies, torch.tensor([share]), rng=SeededRng(1))) - mean) < 5 * error
    assert abs(float(nll(scores, masses(copies))) - mean) > 20 * error
    assert float(scheduled_nll(scores, copies, torch.tensor([0.0]), rng=SeededRng(1))) == pytest.approx(
        float(nll(scores, masses(copies)))
    )


def plan(**changes) -> TrainingPlan:
    return replace(TrainingPlan(0.03, 8, 8, 16), **changes)


@pytest.mark.parametrize("method", laboratory.METHODS[:5], ids=str)
def test_replicas_learn_as_if_alone_and_keep_their_best_weights(method):
    seeds, settings = (0, 1), [Setting(0.3), Setting(0.1, 3)]
    if method.kind == "scheduled sampling":
        settings = [Setting(), Setting()]  # own symbols are drawn for all replicas in one stream
    data = TreeData(DATA, DATA[:, :4].flip(0), 2, LENGTH)
    both = train(TreeLstm(2, LENGTH, 4, seeds), data, method, settings, plan(), rng=SeededRng(0))
    for replica in range(2):
        one = slice(replica, replica + 1)
        own = TreeData(DATA[one], data.validation[one], 2, LENGTH)
        alone = train(TreeLstm(2, LENGTH, 4, seeds[one]), own, method, settings[one], plan(), rng=SeededRng(0))
        assert int(alone.update) == int(both.update[replica])
        torch.testing.assert_close(strings_of(alone.scores, 0), strings_of(both.scores, replica))
    torch.testing.assert_close(nll(both.scores, data.masses(data.validation)), both.validation)


def test_a_replica_that_diverges_keeps_its_best_weights_and_disturbs_no_other():
    data = TreeData(DATA, DATA, 2, LENGTH)
    alone = train(
        TreeLstm(2, LENGTH, 4, (1,)), TreeData(DATA[1:], DATA[1:], 2, LENGTH), ONCE, [Setting(0.1)], plan(), rng=SeededRng(0)
    )
    both = train(partial_lstm(), data, ONCE, [Setting(1e300), Setting(0.1)], plan(), rng=SeededRng(0))
    broken = train(partial_lstm(), data, ONCE, [Setting(math.inf, 2), Setting(0.1)], plan(), rng=SeededRng(0))
    for trained in (both, broken):
        torch.testing.assert_close(trained.validation[1:], alone.validation)
        assert bool(strings_of(trained.scores, 0).isfinite().all()) and int(trained.update[1]) > 3
    assert int(broken.update[0]) <= 2


def test_settings_act_from_their_beginning_on():
    data, network = TreeData(DATA, DATA, 2, LENGTH), partial_lstm
    likelihood = train(network(), data, LIKELIHOOD, [Setting()] * 2, plan(), rng=SeededRng(0))
    late = train(network(), data, PUBLISHED, [Setting(1.0, 8)] * 2, plan(), rng=SeededRng(0))
    early = train(network(), data, PUBLISHED, [Setting(1.0, 8), Setting(1.0, 2)], plan(), rng=SeededRng(0))
    assert torch.equal(late.validation, likelihood.validation)
    assert torch.equal(early.validation[0], likelihood.validation[0]) and early.validation[1] != likelihood.validation[1]


def partial_lstm() -> nn.Module:
    return TreeLstm(2, LENGTH, 4, (0, 1))


def test_training_stops_when_no_replica_gets_better():
    data = TreeData(DATA[:1], 31 - DATA[:1], 2, LENGTH)  # what is learnt makes validation worse
    trained = train(TreeLstm(2, LENGTH, 8, (3,)), data, LIKELIHOOD, [Setting()], plan(updates=500), rng=SeededRng(0))
    assert int(trained.update) < 100


@pytest.mark.parametrize("process", laboratory.PROCESSES)
def test_truths_are_distributions_over_all_strings(process):
    truth = laboratory.truth_of(process, 8)
    assert float(truth.sum()) == pytest.approx(1) and float(truth.min()) > 0 and len(truth) == 256


def test_the_hidden_markov_truth_is_the_sum_over_hidden_paths():
    number, length, states = 0b0110, 4, len(laboratory.EMISSION)
    total = 0.0
    for path in product(range(states), repeat=length):
        probability = 1 / states
        for k, state in enumerate(path):
            one = laboratory.EMISSION[state]
            probability *= one if number >> (length - 1 - k) & 1 else 1 - one
            if k + 1 < length:
                step = (path[k + 1] - state) % states
                probability *= {0: laboratory.STAY, 1: 1 - laboratory.STAY}.get(step, 0.0)
        total += probability
    assert float(laboratory.truth_of("hidden Markov", length)[number]) == pytest.approx(total)


def test_the_motif_truth_has_the_motif_with_the_probability_of_the_mixture():
    truth = laboratory.truth_of("motif", 7)
    share = sum(float(value) for number, value in enumerate(truth) if laboratory.MOTIF in f"{number:07b}")
    assert share == pytest.approx(laboratory.MIXTURE)


def test_first_sizes_and_first_seeds_come_first():
    order = laboratory.blocks(laboratory.SCALES["small"])
    assert len(order) == len(set(order)) == 2 * 2 * 5 * 2
    assert {(condition.size, block) for condition, block in order[:12]} == {(50, 0), (200, 0), (2000, 0)}
    assert {(condition.size, block) for condition, block in order[12:24]} == {(50, 1), (200, 1), (2000, 1)}


def row(method: Method, seed: int, kl: float, prefix_kl: float = 1.0) -> dict[str, object]:
    about = {"process": "motif", "network": "LSTM", "strings": 50, "method": str(method), "seed": seed}
    return {**about, "kl": kl, "prefix_kl": prefix_kl, "own_kl": kl, "strength": 0.1, "begin": 0, "learning rate": 0.01}


def test_effects_are_paired_over_seeds():
    rows = [row(LIKELIHOOD, seed, 10.0**seed) for seed in range(5)]
    rows += [row(ONCE, seed, (0.9 + 0.001 * seed) * 10.0**seed) for seed in range(4)]
    rows += [row(PUBLISHED, seed, (1.1 + 0.001 * seed) * 10.0**seed) for seed in range(5)]
    rows += [row(SMOOTHING, seed, (1 + 0.1 * (-1) ** seed) * 10.0**seed) for seed in range(4)]
    by_method = {effect["method"]: effect for effect in laboratory_tables.effects(rows)}
    once = by_method[str(ONCE)]
    assert once["seeds"] == 4 and once["KL"].value == pytest.approx(9.85) and once["KL"].low > 9
    assert {name: effect["verdict"] for name, effect in by_method.items()} == {
        str(ONCE): "gains", str(PUBLISHED): "loses", str(SMOOTHING): "open",
    }  # fmt: skip
    assert laboratory_tables.count_verdicts(list(by_method.values()))[0]["open"] == 1


def test_averages_are_geometric_within_a_seed_and_need_all_conditions():
    def rows_of(method: Method, ratios: dict[int, float]) -> list[dict[str, object]]:
        """For each seed a condition with half of that ratio and one with twice of it."""
        return [
            {**row(method, seed, times * ratio), "process": process, "tilted_kl": 1.1 * times * ratio}
            for seed, ratio in ratios.items()
            for process, times in (("motif", 0.5), ("hidden Markov", 2.0))
        ]

    base = dict.fromkeys(range(5), 1.0)
    rows = [{**each, "kl": 1.0, "tilted_kl": 1.3} for each in rows_of(LIKELIHOOD, base)]
    rows += rows_of(ONCE, {seed: 0.9 + 0.001 * seed for seed in range(4)})
    table = {(each["over"], each["method"]): each for each in laboratory_tables.averages(rows)}
    whole = table["all conditions", str(ONCE)]
    assert (whole["conditions"], whole["seeds"], whole["verdict"]) == (2, 4, "reproduced")
    assert whole["KL"].value == pytest.approx(9.85) and whole["own energy"].value == pytest.approx(-10)
    assert table["motif", str(ONCE)]["KL"].value == pytest.approx(54.925)
    assert table["hidden Markov", str(ONCE)]["verdict"] == "refuted under these conditions"
    assert table["50 strings", str(ONCE)]["KL"] == whole["KL"]
    assert table["all conditions", str(LIKELIHOOD)]["own energy"].value == pytest.approx(-30)


def test_conclusions():
    assert laboratory_tables.conclusion(gains=12, open=7, loses=1) == "reproduced"
    assert laboratory_tables.conclusion(gains=12, open=4, loses=4) == "open"
    assert laboratory_tables.conclusion(gains=3, open=16, loses=1) == "open"
    assert laboratory_tables.conclusion(gains=1, open=16, loses=3) == "refuted under these conditions"


def test_settings_are_chosen_without_the_truth(tmp_path, monkeypatch):
    """Divergences are not computed before the setting of a row is written down, and other seeds choose it."""
    condition = laboratory.Condition("LSTM", "motif", 20, laboratory.SCALES["smoke"])
    context, seeds = StudyContext(scale="smoke", out=tmp_path), []
    original = laboratory.Condition.train

    def recorded(self, method, runs, learning_rate):
        seeds.extend(seed for seed, _ in runs)
        return original(self, method, runs, learning_rate)

    monkeypatch.setattr(laboratory, "divergences", None)
    monkeypatch.setattr(laboratory.Condition, "train", recorded)
    torch.set_default_dtype(torch.float32)
    chosen = laboratory._setting(context, condition, ONCE)
    assert set(seeds) == {laboratory.SELECTION} and set(chosen) == {"strength", "begin"}
    kept = json.loads((context.run_dir(condition.study, f"20 strings, setting of {ONCE}") / "row.json").read_text())
    assert min(kept["tried"], key=lambda each: each["validation"])["strength"] == chosen["strength"]


def test_the_smallest_run_and_its_continuation(tmp_path, monkeypatch):
    methods = (LIKELIHOOD, SMOOTHING, ONCE, laboratory.METHODS[-1])
    monkeypatch.setattr(laboratory, "PROCESSES", ("motif",))
    monkeypatch.setattr(laboratory, "NETWORKS", {"LSTM": TreeLstm})
    monkeypatch.setattr(laboratory, "METHODS", methods)
    torch.set_default_dtype(torch.float32)
    context = StudyContext(scale="smoke", out=tmp_path)
    result = laboratory.run(context)
    assert [effect["method"] for effect in result["rows"]] == [str(method) for method in methods[1:]]
    assert all(isinstance(effect["KL"], Estimate) and effect["KL"].low < effect["KL"].high for effect in result["rows"])
    assert "E-Forcing in the laboratory" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "eforcing_laboratory.png").stat().st_size > 10_000
    file = next(tmp_path.rglob("20-strings-e-forcing-counted-once-exhaustive-seed0/row.json"))
    before = file.read_text()
    file.unlink()
    assert json.loads((tmp_path / "laboratory.json").read_text())["missing"] == 0
    assert laboratory.summarise(context)["left out"] and len(laboratory.kept_rows(context)) == 2 * 3
    calls = []
    original = laboratory.train
    monkeypatch.setattr(laboratory, "train", lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs))
    again = laboratory.run(context)
    assert len(calls) == 1 and file.read_text() == before and again["rows"] == result["rows"]
