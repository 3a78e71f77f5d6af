"""Likelihood in orders by chance: its mean over all orders, who sees whom, spans, hidden tokens, and what is learnt."""

import math
from itertools import permutations

import pytest
import torch
from small_networks import CONFIGS, lively

from esscher.bases.network import build_base, infilling_order, with_factorization_order
from esscher.bases.wrappers import WithMemory
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, sequences
from esscher.core.target import Tilted
from esscher.networks.token_mixers import NEVER_VISIBLE
from esscher.networks.transformer_config import XLNetConfig
from esscher.objectives import permutation_lm as module
from esscher.objectives.config import MaskedLMConfig, PermutationLMConfig
from esscher.objectives.permutation_lm import MaskedLM, PermutationLM, SpanSampler, WordBoundaries
from esscher.testing import every_outcome
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer

SMALL = XLNetConfig(8, 2, 2, 16)


def exact(base, points: list[list[int]]) -> float:
    """The mean over all orders of the negative log-likelihood per token, by the base of each order."""
    total = []
    for order in permutations(range(len(points[0]))):
        x = sequences([[point[place] for place in order] for point in points])
        total.append(-with_factorization_order(base, order).log_probs(x).detach().double().mean())
    return float(torch.stack(total).mean())


def mean_over_outcomes(objective, base, x) -> float:
    runs = every_outcome(lambda rng: float(objective(Tilted(base), x, rng=rng).value.detach()))
    return sum(probability * value for probability, value in runs)


def test_the_mean_over_all_orders_is_the_enumerated_one():
    base, points = lively(SMALL, Space(3, 3)).double(), [[0, 2, 1]]
    assert mean_over_outcomes(PermutationLM(PermutationLMConfig(1.0, "none")), base, sequences(points)) == pytest.approx(
        exact(base, points), abs=1e-9
    )
    both = [[0, 2, 1], [1, 1, 2]]
    assert mean_over_outcomes(PermutationLM(PermutationLMConfig(1.0, "none")), base, sequences(both)) == pytest.approx(
        exact(base, both), abs=1e-9
    )


def test_from_left_to_right_the_mean_over_targets_is_the_plain_likelihood():
    base, points = lively(SMALL, Space(3, 4)).double(), sequences([[0, 2, 1, 1]])
    expected = -float(base.log_probs(points).detach().mean())
    for one_in in (1.0, 2.0):
        objective = PermutationLM(PermutationLMConfig(one_in, "none", order="left-to-right"))
        assert mean_over_outcomes(objective, base, points) == pytest.approx(expected, abs=1e-9)
    assert abs(exact(base, [[0, 2, 1, 1]]) - expected) > 1e-3


def test_an_objective_whose_queries_see_their_own_token_is_caught(monkeypatch):
    base, points = lively(SMALL, Space(3, 3)).double(), [[0, 2, 1]]
    right = module.FactorizationOrder
    monkeypatch.setattr(module, "FactorizationOrder", lambda rank, *others, **named: right(rank * 0 + 5, *others, **named))
    wrong = mean_over_outcomes(PermutationLM(PermutationLMConfig(1.0, "none")), base, sequences(points))
    assert abs(wrong - exact(base, points)) > 1e-3


def test_few_targets_come_last_and_all_others_are_seen():
    """One target of three: the mean of each token given the other two."""
    base, point = lively(SMALL, Space(3, 3)).double(), [0, 2, 1]
    total = 0.0
    for gap in range(3):
        full = base.log_probs_in_order(
            torch.tensor([point]),
            module.FactorizationOrder(torch.tensor([[3 * (place == gap) for place in range(3)]]), torch.tensor([[gap]])),
            torch.tensor([[point[gap]]]),
        )
        total -= float(full.detach()) / 3
    assert mean_over_outcomes(PermutationLM(PermutationLMConfig(3.0, "none")), base, sequences([point])) == pytest.approx(
        total, abs=1e-9
    )


def test_prompts_are_seen_padding_is_not_and_only_points_are_targets():
    base, asked = lively(SMALL, Space(5, 6)), []
    x = sequences([[1, 2, 3, 4], [4]], prompts=[[0, 1], []])
    actual = PermutationLM(PermutationLMConfig(1.0, "none"))(Tilted(base), x, rng=SeededRng(0))
    assert actual.count == 5
    padded = Sequences(torch.nn.functional.pad(x.tokens, (0, 2), value=3), x.start, x.stop)
    rows = [PermutationLM(PermutationLMConfig(1.0, "none"))._row(*row, SeededRng(1)) for row in _parts(padded, 5)]
    for (rank, chosen), stop, start in zip(rows, x.stop.tolist(), x.start.tolist(), strict=True):
        assert (
            bool((rank[stop:] == NEVER_VISIBLE).all()) and bool((rank[:start] == -1).all()) and bool(chosen[start:stop].all())
        )
        asked.append(int(chosen.sum()))
    assert asked == [4, 1]


def _parts(x, size):
    token = x.tokens < size
    return zip(x.tokens, x.inside, token, x.counted & token, strict=True)


def test_blocks_see_no_later_block_and_symbols_are_never_targets():
    tokens = torch.arange(12) % 5
    tokens[9] = 6  # a separator
    x = Sequences(tokens[None], torch.zeros(1, dtype=torch.long), torch.full((1,), 12))
    for seed in range(20):
        ((rank, chosen),) = [
            PermutationLM(PermutationLMConfig(2.0, "none"), block=6)._row(*row, SeededRng(seed)) for row in _parts(x, 5)
        ]
        assert not bool(chosen[9]) and [int(chosen[:6].sum()), int(chosen[6:].sum())] == [3, 2]
        assert int(rank[:6].max()) < int(rank[6:].min())
        assert bool((rank[:6][~chosen[:6]] == -1).all())
        assert bool((rank[6:][~chosen[6:] & (tokens[6:] < 5)] == rank[6:].min()).all()) and int(rank[9]) > int(rank[6:].min())


def test_in_the_midst_of_a_stream_the_memory_takes_what_the_next_segment_does_not_hold():
    base = lively(XLNetConfig(8, 2, 2, 16, memory=5), Space(5, 6))
    tokens = torch.randint(5, (2, 8), generator=torch.Generator().manual_seed(0))
    x = Sequences(tokens, torch.zeros(2, dtype=torch.long), torch.full((2,), 8))
    memory = WithMemory(base, base.init_memory(2), memory_tokens=3)
    PermutationLM(PermutationLMConfig(2.0, "none"))(Tilted(memory), x, rng=SeededRng(0))
    last, first, *layers = memory.memory_after(x)
    assert torch.equal(last, tokens[:, 2]) and first.tolist() == [3, 3]
    assert [tuple(layer.shape) for layer in layers] == [(2, 3, 8)] * 2
    assert torch.equal(layers[0][:, 1:], base.network.embedding(tokens[:, :2]).detach())
    loss = PermutationLM(PermutationLMConfig(2.0, "none"))(
        Tilted(WithMemory(base, (last, first, *layers), memory_tokens=3)), x, rng=SeededRng(0)
    )
    assert (
        abs(
            loss.metrics["nll"]
            - PermutationLM(PermutationLMConfig(2.0, "none"))(Tilted(base), x, rng=SeededRng(0)).metrics["nll"]
        )
        > 1e-4
    )


# spans


def words() -> WordBoundaries:
    """Tokens 0 and 1 begin with a blank, 2 and 3 do not, 4 is a blank alone."""
    flags = torch.tensor([True, True, False, False, True]), torch.tensor([False, False, False, False, True])
    return WordBoundaries(*flags)


def test_words_begin_after_blanks_and_at_symbols():
    actual = words().begins(torch.tensor([2, 2, 0, 3, 3, 4, 2, 9, 2, 1]))
    assert actual.tolist() == [True, False, True, False, False, True, True, True, True, True]


@pytest.mark.parametrize("unit", ["words", "pieces"])
def test_spans_have_the_exact_number_of_targets_and_begin_with_words(unit):
    make = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, (120,), generator=make)
    may = torch.rand(120, generator=make) < 0.95
    for seed in range(10):
        chosen = SpanSampler(unit, 5, words()).chosen(tokens, may, 20, 6.0, rng=SeededRng(seed))
        assert int(chosen.sum()) == 20 and not bool((chosen & ~may).any())
    everything = SpanSampler(unit, 5, words()).chosen(tokens, may, 500, 6.0, rng=SeededRng(0))
    assert torch.equal(everything, may)
    assert int(SpanSampler(unit).chosen(tokens[:0], may[:0], 3, 6.0, rng=SeededRng(0)).sum()) == 0


def test_the_length_of_spans_is_harmonic_and_pieces_are_no_words():
    """How often each length is met: false alarm below 1e-6 per comparison (5.5 standard deviations)."""
    log_weight = -torch.arange(1, 6).double().log()
    assert log_weight.exp().div(log_weight.exp().sum()).tolist() == pytest.approx(
        [60 / 137, 30 / 137, 20 / 137, 15 / 137, 12 / 137]
    )
    tokens = torch.tensor([0, 2, 3]).repeat(100)  # words of three pieces
    may = torch.ones(300, dtype=torch.bool)
    for unit, pieces in (("words", 3), ("pieces", 1)):
        chosen = SpanSampler(unit, 5, words()).chosen(tokens, may, 12_000, 1e9, rng=SeededRng(0))
        assert bool(chosen.all())
        spans = SpanSampler(unit, 5, words())
        assert spans._end([True, False, False] * 5, 1, 2) == (3, 3 + 2 * pieces)
    drawn = SeededRng(3).categorical(log_weight[None], 20_000)[0] + 1
    for size, share in zip(range(1, 6), [60 / 137, 30 / 137, 20 / 137, 15 / 137, 12 / 137], strict=True):
        assert abs(float((drawn == size).double().mean()) - share) < 5.5 * math.sqrt(share * (1 - share) / 20_000)


class Dice(SeededRng):
    """Gives the numbers it is told to, and remembers among how many they were chosen."""

    def __init__(self, sizes: list[int], offsets: list[int], order: list[int]):
        super().__init__(0)
        self.sizes, self.offsets, self.order, self.room = sizes, offsets, order, []

    def categorical(self, log_weight, draws=1):
        if draws > 1:
            self.odds = log_weight.exp().flatten().tolist()
            return torch.tensor([(self.sizes + [1] * draws)[:draws]]) - 1
        self.room.append(log_weight.shape[1])
        return torch.tensor([[self.offsets.pop(0)]])

    def permutation(self, count):
        return torch.tensor(self.order)


@pytest.mark.parametrize(
    ("count", "targets"), [(5, {3, 4, 7, 8, 9}), (4, {3, 4, 7, 8}), (7, {3, 4, 7, 8, 9, 0, 11}), (2, {3, 4}), (3, {3, 4, 7})]
)
def test_spans_stand_in_their_stretch_by_chance(count, targets):
    """Spans of 2 and 3 of 12 tokens, one in 3: their stretches have 6 and 9 tokens, with 4 and 6 to spare."""
    dice = Dice([2, 3], [3, 1, 0], [3, 0, 11, 1, 2, 4, 5, 6, 7, 8, 9, 10])
    chosen = SpanSampler("pieces", 3).chosen(torch.zeros(12).long(), torch.ones(12).bool(), count, 3.0, rng=dice)
    assert set(chosen.nonzero()[:, 0].tolist()) == targets
    assert dice.room == [5, 7, 3][: len(dice.room)] and len(dice.room) > 1
    assert dice.odds == pytest.approx([1, 1 / 2, 1 / 3])


def test_what_may_not_be_predicted_is_passed_over():
    dice = Dice([2, 3], [3, 1, 0], [3, 0, 11, 1, 2, 4, 5, 6, 7, 8, 9, 10])
    may = torch.ones(12).bool()
    may[[4, 8, 0]] = False
    chosen = SpanSampler("pieces", 3).chosen(torch.zeros(12).long(), may, 5, 3.0, rng=dice)
    assert chosen.nonzero()[:, 0].tolist() == [1, 3, 7, 9, 11]  # three of the spans, and the first that are left


def test_no_stretch_is_longer_than_the_text():
    dice = Dice([2], [4, 0], [5, 4, 3, 2, 1, 0])
    chosen = SpanSampler("pieces", 2).chosen(torch.zeros(6).long(), torch.ones(6).bool(), 3, 100.0, rng=dice)
    assert chosen.nonzero()[:, 0].tolist() == [3, 4, 5] and dice.room[0] == 5


# hidden tokens


def test_hidden_tokens_are_restored_from_the_others_alone():
    """The value is the mean over hidden tokens of the content stream's prediction; the hidden token is not read."""
    base, rng = lively(SMALL, Space(7, 6)), SeededRng(0)
    x, seen = sequences([[1, 2, 3, 4, 5, 6], [6, 5, 4]]), []
    right = type(base).log_probs_in_order

    def watched(self, inputs, factorization_order, asked):
        seen.append((inputs.clone(), factorization_order, asked.clone()))
        return right(self, inputs, factorization_order, asked)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(base), "log_probs_in_order", watched)
        for number in range(60):
            MaskedLM(MaskedLMConfig(0.34))(Tilted(base), x, rng=rng.stream(number))
    fates = {"blank": 0, "kept": 0, "another": 0}
    for inputs, factorization_order, asked in seen:
        assert factorization_order.stream == "content" and [int((row >= 0).sum()) for row in asked] == [2, 1]
        for row, place, token in (
            (r, int(p), int(t)) for r in range(2) for p, t in zip(factorization_order.targets[r], asked[r], strict=True)
        ):
            if token >= 0:
                now = int(inputs[row, place])
                fates["blank" if now == base.any_order.blank else "kept" if now == token else "another"] += 1
    assert fates["blank"] > 110 and fates["kept"] > 2 and fates["another"] > 2  # of 180


@pytest.mark.slow
def test_filling_a_gap_from_both_sides_beats_left_to_right():
    """The middle token is the one after it, which nothing on its left tells; both objectives learn that."""
    ends = torch.randint(4, (200, 2), generator=torch.Generator().manual_seed(0))
    points = ends[:, [0, 1, 1]]
    zero, full = torch.zeros(200, dtype=torch.long), torch.full((200,), 3)
    config = TrainingConfig(steps=60, batch_size=24, learning_rate=1e-2, keep_best=False, log_every=5)
    base = build_base(XLNetConfig(16, 1, 2, 32), Space(4, 3), rng=SeededRng(0))
    Trainer(config)(PermutationLM(PermutationLMConfig(1.0, "none")), Tilted(base), Sequences(points, zero, full), modules=base)
    order = infilling_order(3, [1])
    with torch.no_grad():
        filled = with_factorization_order(base, order).log_probs(Sequences(points[:, order], full - 1, full)).sum(-1).mean()
        from_left = base.log_probs(Sequences(points, zero, full))[:, 1].mean()
    assert float(filled - from_left) > 0.4 and float(from_left) < -1.2  # the exact values are 0 and -log 4
    other = build_base(XLNetConfig(16, 1, 2, 32), Space(4, 3), rng=SeededRng(0))
    record = Trainer(config)(MaskedLM(MaskedLMConfig(0.34)), Tilted(other), Sequences(points, zero, full), modules=other)
    assert record.history[-1]["loss"] < 1.0  # log 4 where nothing is learnt; a third of it at best, and a little more


def test_a_base_of_one_order_is_refused():
    x = sequences([[1, 2]])
    for objective in (PermutationLM(PermutationLMConfig(6.0, "none")), MaskedLM()):
        with pytest.raises(ValueError, match="one order only"):
            objective(Tilted(lively(CONFIGS["transformer, rotary"], Space(3, 4))), x, rng=SeededRng(0))
    with pytest.raises(ValueError, match=r"at least 1, not 0\.5"):
        PermutationLM(PermutationLMConfig(0.5, "none"))
    with pytest.raises(ValueError, match=r"in \(0, 1\]"):
        MaskedLM(MaskedLMConfig(0.0))
    with pytest.raises(ValueError, match="not 0"):
        SpanSampler("words", 0)
