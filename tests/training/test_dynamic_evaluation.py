"""Dynamic evaluation: honest scores, the published formulas against a plain rewriting, and texts where the truth is known."""

import math

import pytest
import torch
from small_networks import CONFIGS, lively
from torch import nn

from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space
from esscher.core.storage import digest, module_tensors
from esscher.networks.recurrent_config import LstmConfig
from esscher.training.config import PUBLISHED, DynamicConfig
from esscher.training.dynamic_evaluation import (
    DynamicModel,
    GradientStatistics,
    collect_statistics,
    grad_without_cudnn,
    load_statistics,
    save_statistics,
    score_dynamic,
    score_static,
    sequence_scorer,
    stream_scorer,
    with_progress,
)

SPACE = Space(5, 4)
STREAMS = ["lstm, vectors", "gru, tied", "transformer-xl", "transformer-xl, adaptive", "convolutions"]
LOUD = {"original": 2e-3, "mos": 1e-2, "sgd": 0.3}


def tokens_of(count, seed=0, probability=(1, 1, 1, 1, 1)):
    weight = torch.tensor([probability], dtype=torch.float64).log()
    return SeededRng(seed, "text").categorical(weight, count)[0]


def statistics_of(base, tokens, columns=10, segment=5, batches=None):
    rows = tokens[: len(tokens) // columns * columns].view(columns, -1)
    with grad_without_cudnn():
        return collect_statistics(base, stream_scorer(rows, segment)(base), batches=batches)


def learnt(base, tokens, config, statistics):
    return torch.cat(score_dynamic(base, stream_scorer(tokens[None], config.segment), config, statistics))


def cheating(base, tokens, config, statistics):
    """A wrong version: each segment is scored once more after it was learnt from."""
    learner, actual, memory = DynamicModel(base, config, statistics), [], base.init_memory(1)
    for piece in torch.split(tokens[None], config.segment, 1):
        before, _ = learner.base.read(memory, piece)
        learner.learn(-before.mean())
        with torch.no_grad():
            after, memory = learner.base.read(memory, piece)
        actual.append(after[0].double())
    return torch.cat(actual)


class Coin(nn.Module):
    """Two parameters: the log-odds of token 1 are slope * (input == 1) + offset; nothing is remembered but the last input."""

    max_positions, bos = None, 2

    def __init__(self, slope, offset):
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope, dtype=torch.float64))
        self.offset = nn.Parameter(torch.tensor(offset, dtype=torch.float64))

    def init_memory(self, rows):
        return ()

    def read(self, inputs, memory):
        return (inputs == 1).double()[..., None], ()

    def output(self, hidden):
        odds = self.slope * hidden + self.offset
        return torch.cat([torch.zeros_like(odds), odds], -1)

    def log_probs(self, hidden, tokens):
        return self.output(hidden).log_softmax(-1).gather(-1, tokens[..., None])[..., 0]

    def log_probs_and_logsumexp(self, hidden, tokens):
        raise NotImplementedError

    def hidden(self, x):
        raise NotImplementedError

    begin = advance = select = hidden


def by_hand(tokens, start, squares, batches, config):
    """The rules once more, in plain numbers, as the two published programmes have them."""
    rates, weights, actual = config.rates, list(start), []
    if config.rule == "sgd":
        size, decay = [1.0, 1.0], [1.0, 1.0]
    elif config.rule == "mos":
        size = [math.sqrt(item) for item in squares]
        decay = [item / sum(size) for item in size]
    else:
        size = [math.sqrt(item / batches) for item in squares]
        decay = [item / (sum(size) / 2) for item in size]
    if rates.decay > 0:
        decay = [min(item, 1 / rates.decay) for item in decay]
    previous = 2
    for first in range(0, len(tokens), config.segment):
        some = tokens[first : first + config.segment]
        slopes = [0.0, 0.0]
        for token in some:
            read = float(previous == 1)
            share = 1 / (1 + math.exp(-(weights[0] * read + weights[1])))
            actual.append(math.log(share if token else 1 - share))
            slopes = [slopes[0] + (share - token) * read / len(some), slopes[1] + (share - token) / len(some)]
            previous = token
        weights = [
            weight + rates.decay * rate * (zero - weight) - rates.learning_rate * slope / (item + rates.epsilon)
            for weight, zero, rate, slope, item in zip(weights, start, decay, slopes, size, strict=True)
        ]
    return actual, weights


@pytest.mark.parametrize("decay", [None, 0.9, 30.0])
@pytest.mark.parametrize("rule", ["original", "mos", "sgd"])
def test_the_rules_are_the_published_ones(rule, decay):
    """A decay of 30 is clipped, so that weights do not overshoot where they began; sgd has none above 1."""
    if rule == "sgd" and decay == 30.0:
        decay = 0.3
    base = NetworkBase(Coin(0.3, -0.2), LstmConfig(), Space(2, 4))
    tokens = tokens_of(43, 1, (1, 2)).clamp(max=1)
    config = DynamicConfig(rule, LOUD[rule] * 5, decay, segment=4)
    statistics = GradientStatistics({"network.slope": torch.tensor(0.05), "network.offset": torch.tensor(0.4)}, 7)
    actual = learnt(base, tokens, config, None if rule == "sgd" else statistics)
    expected, _ = by_hand(tokens.tolist(), (0.3, -0.2), (0.05, 0.4), 7, config)
    assert actual.tolist() == pytest.approx(expected, rel=1e-6)
    other = {"original": "mos", "mos": "original", "sgd": "original"}[rule]
    rates = {"learning_rate": config.rates.learning_rate, "decay": config.rates.decay}
    wrong, _ = by_hand(tokens.tolist(), (0.3, -0.2), (0.05, 0.4), 7, DynamicConfig(other, **rates, segment=4))
    assert actual.tolist() != pytest.approx(wrong, rel=1e-4)


def test_published_rates():
    assert (PUBLISHED["mos"].learning_rate, PUBLISHED["mos"].decay, PUBLISHED["mos"].epsilon) == (0.002, 0.075, 0.001)
    original = DynamicConfig()
    assert (original.rule, original.segment, original.columns) == ("original", 5, 100)
    assert (original.rates.learning_rate, original.rates.decay, original.rates.epsilon) == (5e-5, 0.002, 2e-5)
    assert str(DynamicConfig("sgd", 0.5)) == "sgd: learning rate 0.5, decay 0"
    for wrong in (
        {"segment": 0}, {"columns": 0}, {"batches": 0}, {"learning_rate": -1.0}, {"decay": math.inf},
        {"epsilon": 0.0}, {"rule": "sgd", "epsilon": 0.1}, {"rule": "sgd", "decay": 2.0},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"."):
            DynamicConfig(**wrong)


def test_statistics_are_sums_of_squared_gradients_of_mean_losses():
    base, tokens = lively(CONFIGS["gru, tied"], SPACE), tokens_of(60)
    actual = statistics_of(base, tokens, columns=3, segment=7)
    memory, squares, rows = base.init_memory(3), 0.0, tokens.view(3, 20)
    for first in (0, 7, 14):
        piece = rows[:, first : first + 7]
        log_probs, memory = base.read(memory, piece)
        base.zero_grad()
        (-log_probs.sum() / piece.numel()).backward()
        squares = squares + base.network.head.bias.grad.double() ** 2
    base.zero_grad()
    assert actual.batches == 3 and torch.allclose(actual.squares["network.head.bias"].double(), squares, rtol=1e-5)
    assert statistics_of(base, tokens, columns=3, segment=7, batches=2).batches == 2
    assert actual.squares.keys() == dict(base.named_parameters()).keys()
    mean, total = actual.sizes("original"), actual.sizes("mos")
    assert all(torch.allclose(mean[name] * math.sqrt(3), total[name]) for name in mean)


@pytest.mark.parametrize("kind", STREAMS)
def test_weights_that_cannot_move_score_as_at_rest_to_the_bit(kind):
    base, tokens = lively(CONFIGS[kind], SPACE), tokens_of(33)
    before, statistics = digest(module_tensors(base)), statistics_of(base, tokens)
    at_rest = torch.cat(score_static(base, stream_scorer(tokens[None], 5)))
    for config in (DynamicConfig(learning_rate=0.0), DynamicConfig("sgd", 0.0, 0.5)):
        assert torch.equal(learnt(base, tokens, config, statistics), at_rest)
    loud = learnt(base, tokens, DynamicConfig("mos"), statistics)
    assert torch.equal(loud[:5], at_rest[:5]) and not torch.equal(loud[5:10], at_rest[5:10])
    assert digest(module_tensors(base)) == before and all(weight.grad is None for weight in base.parameters())


def assert_honest(read):
    """Nothing of a token or after it takes part in its prediction: earlier scores are equal to the bit whatever comes later,
    and the scores of all tokens that could stand in one place are one distribution."""
    base, tokens = lively(CONFIGS["lstm, vectors"], SPACE), tokens_of(24)
    config, statistics = DynamicConfig("mos", 0.05), statistics_of(base, tokens_of(200, 3))
    output = read(base, tokens, config, statistics)
    for place in (0, 4, 7, 15, 23):
        total = 0.0
        for token in range(5):
            other = tokens.clone()
            other[place] = token
            scores = read(base, other, config, statistics)
            assert torch.equal(scores[:place], output[:place])
            total += float(scores[place].exp())
        assert total == pytest.approx(1.0, abs=1e-6)


def test_each_token_is_predicted_before_it_is_learnt_from():
    assert_honest(learnt)
    with pytest.raises(AssertionError):
        assert_honest(cheating)


LIKELY, OTHER = (0.6, 0.25, 0.1, 0.04, 0.01), (0.02, 0.03, 0.1, 0.25, 0.6)


@pytest.fixture(scope="module")
def known():
    """A base that is exactly the distribution of independent tokens, with weights that all could learn."""
    base = build_base(LstmConfig(8, 1, embedding=4), SPACE, rng=SeededRng(2)).eval()
    with torch.no_grad():
        base.network.head.weight.zero_()
        base.network.head.bias.copy_(torch.tensor(LIKELY).log())
    return base, statistics_of(base, tokens_of(1000, 5, LIKELY), columns=20)


@pytest.mark.parametrize("rule", ["original", "mos", "sgd"])
def test_nothing_is_gained_on_a_text_that_the_model_knows(known, rule):
    """Any honest reading gains 14 nats over the truth with probability at most exp(-14), below 1e-6: Markov's inequality."""
    base, statistics = known
    tokens, config = tokens_of(400, 6, LIKELY), DynamicConfig(rule, 1.0 if rule == "sgd" else LOUD[rule])
    at_rest = torch.cat(score_static(base, stream_scorer(tokens[None], 50)))
    assert float((learnt(base, tokens, config, statistics) - at_rest).sum()) < 14
    if rule == "sgd":
        assert float((cheating(base, tokens, config, statistics) - at_rest).sum()) > 14  # caught


@pytest.mark.parametrize(("rule", "pull"), [("original", 0.5), ("mos", 20.0), ("sgd", 0.5)])
def test_a_text_that_changes_is_followed(known, rule, pull):
    """And less so by weights that are pulled back to where they began."""
    base, statistics = known
    tokens = torch.cat([tokens_of(100, 7, LIKELY), tokens_of(250, 8, OTHER)])
    at_rest = torch.cat(score_static(base, stream_scorer(tokens[None], 50)))
    free, held = (learnt(base, tokens, DynamicConfig(rule, LOUD[rule], decay), statistics) - at_rest for decay in (0.0, pull))
    assert float(free[:100].sum()) < 14 and float(free[200:].mean()) > 0.5  # of 1.9 nats that there are
    assert float(held[200:].mean()) < float(free[200:].mean())


def test_decay_pulls_back_to_the_start(known):
    base, statistics = known
    for decay, left in ((1e9, 0.0), (0.0, 1.0)):
        learner = DynamicModel(base, DynamicConfig(learning_rate=0.0, decay=decay), statistics)
        with torch.no_grad():
            learner.base.network.head.bias.add_(1.0)
        with grad_without_cudnn():
            log_probs, _ = learner.base.read(learner.base.init_memory(1), tokens_of(5)[None])
            learner.learn(-log_probs.mean())
        moved = learner.base.network.head.bias - base.network.head.bias
        assert torch.allclose(moved, torch.full_like(moved, left))
    half = DynamicModel(base, DynamicConfig("sgd", 0.0, 0.25))
    with torch.no_grad():
        half.base.network.head.bias.add_(1.0)
    for _ in range(2):
        half.learn(-half.base.read(half.base.init_memory(1), tokens_of(5)[None])[0].mean())
    assert torch.allclose(half.base.network.head.bias - base.network.head.bias, torch.tensor(0.75**2), atol=1e-6)


def test_sequences_are_learnt_from_one_after_another():
    """A base without a memory learns too; a text that repeats itself is soon known."""
    base = lively(CONFIGS["transformer, rotary"], SPACE)
    row = tokens_of(4).repeat(30, 1)
    x = Sequences(row, torch.zeros(30, dtype=torch.long), torch.full((30,), 4))
    reader = sequence_scorer(x, 1)
    with grad_without_cudnn():
        statistics = collect_statistics(base, sequence_scorer(x, 10)(base))
    assert statistics.batches == 3
    at_rest = score_static(base, reader)
    still = score_dynamic(base, reader, DynamicConfig(learning_rate=0.0), statistics)
    assert all(torch.equal(item, other) for item, other in zip(at_rest, still, strict=True))
    moved = score_dynamic(base, reader, DynamicConfig("sgd", 0.02))
    assert torch.equal(moved[0], at_rest[0]) and float(moved[-1].sum()) > float(at_rest[-1].sum()) + 0.1


def test_progress_and_what_is_refused(known, monkeypatch):
    base, statistics = known
    lines = []
    monkeypatch.setattr("esscher.core.progress.PROGRESS_INTERVAL", -1.0)
    score_static(base, with_progress(stream_scorer(tokens_of(10)[None], 5), "at rest", 10, lines.append))
    assert len(lines) == 2 and lines[1].startswith("at rest: 10 of 10 tokens")
    with pytest.raises(ValueError, match="needs statistics"):
        DynamicModel(base, DynamicConfig())
    with pytest.raises(ValueError, match="other weights"):
        DynamicModel(base, DynamicConfig(), GradientStatistics({"one": torch.ones(2)}, 1))
    nothing = GradientStatistics({name: torch.zeros_like(total) for name, total in statistics.squares.items()}, 1)
    with pytest.raises(ValueError, match="Every gradient"):
        DynamicModel(base, DynamicConfig(), nothing)
    with pytest.raises(ValueError, match="learning from the text diverged"):
        learnt(base, tokens_of(60), DynamicConfig("sgd", 1e30), None)
    with pytest.raises(ValueError, match="no text"):
        collect_statistics(base, iter(()))


def test_statistics_keep_and_know_whose_they_are(known, tmp_path):
    _, statistics = known
    file, claim = tmp_path / "gradients.safetensors", {"weights": "abc", "batches": None}
    save_statistics(file, statistics, {**claim, "text": "été.txt"})
    again, stated = load_statistics(file, claim)
    assert again.batches == statistics.batches and stated["text"] == "été.txt"
    assert all(torch.equal(again.squares[name], total) for name, total in statistics.squares.items())
    for wrong in ({"weights": "abd"}, {"batches": 3}, {"text": "other.txt"}):
        with pytest.raises(ValueError, match="do not belong together"):
            load_statistics(file, {**claim, **wrong})
    from esscher.core.storage import write_tensors

    write_tensors(file, {"x": torch.ones(2)})
    with pytest.raises(ValueError, match="holds no statistics"):
        load_statistics(file, claim)
