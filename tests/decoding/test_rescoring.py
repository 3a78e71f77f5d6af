"""Choosing by weighted scores: the line search against brute force, tuning against known best weights."""

import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.decoding.rescoring import NBestScores, best_step, nbest_scores, tune_weights
from esscher.metrics.text_metrics import Bleu, WordErrorRate

WER = WordErrorRate()


def random_lists(seed: int, *, lists: int = 12, candidates: int = 6, features: int = 3) -> NBestScores:
    rng = torch.Generator().manual_seed(seed)
    scores = torch.randn(lists, candidates, features, generator=rng, dtype=torch.float64)
    errors = torch.randint(0, 9, (lists, candidates), generator=rng).double()
    return NBestScores(scores, torch.stack([errors, torch.full_like(errors, 10)], -1))


def ranked_lists(seed: int, best: list[float], *, lists: int = 200) -> NBestScores:
    """Lists in which the candidate with the highest sum under `best` is the one without errors."""
    made = random_lists(seed, lists=lists, candidates=8, features=len(best))
    right = made.chosen(torch.tensor(best, dtype=torch.float64))
    counts = made.counts + torch.tensor([1.0, 0.0])
    counts[torch.arange(lists), right, 0] = 0
    return NBestScores(made.scores, counts)


def rate(lists: NBestScores, weights) -> float:
    chosen = lists.chosen(torch.as_tensor(weights, dtype=torch.float64))
    return float(WER.value(lists.counts_of(chosen).sum(0)))


def test_the_highest_sum_is_chosen_and_short_lists_are_filled():
    lists = nbest_scores(
        [torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 2.0]]), torch.tensor([[-3.0, -3.0]])],
        [torch.tensor([[3.0, 4.0], [1.0, 4.0], [0.0, 4.0]]), torch.tensor([[2.0, 2.0]])],
    )
    assert lists.chosen(torch.tensor([1.0, 0.0], dtype=torch.float64)).tolist() == [0, 0]
    assert lists.chosen(torch.tensor([1.0, 1.0], dtype=torch.float64)).tolist() == [1, 0]
    assert lists.nearest(WER).tolist() == [2, 0]
    assert rate(lists, [1.0, 1.0]) == 100 * 3 / 6
    with pytest.raises(ValueError, match="List 1 has a score that is not finite"):
        nbest_scores([torch.zeros(1, 1), torch.tensor([[-torch.inf]])], [torch.zeros(1, 2)] * 2)


@pytest.mark.parametrize("seed", range(8))
def test_no_point_of_a_line_is_better_than_the_one_found(seed):
    lists = random_lists(seed)
    weights, direction = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    step = best_step(lists, WER, weights, direction)
    steps = torch.linspace(-60, 60, 24001, dtype=torch.float64)
    chosen = (lists.scores @ (weights[:, None] + direction[:, None] * steps)).argmax(1)
    errors = lists.counts[..., 0].gather(1, chosen).sum(0)
    assert rate(lists, weights + step * direction) <= 100 * float(errors.min()) / 120 + 1e-9


def test_the_step_is_the_middle_of_the_best_stretch():
    """Three lines: the middle one, without errors, is highest between -1 and 2; parallel and equal lines change nothing."""
    height, slope = [0.0, 1.0, -1.0, 0.0, 1.0], [-1.0, 0.0, 1.0, 0.0, 0.0]
    errors = [2.0, 0.0, 3.0, 9.0, 9.0]
    lists = nbest_scores([torch.tensor([height, slope]).T], [torch.tensor([errors, [5.0] * 5]).T])
    along = torch.eye(2, dtype=torch.float64)
    assert best_step(lists, WER, along[0], along[1]) == pytest.approx(0.5)
    flat = nbest_scores([torch.ones(3, 2)], [torch.ones(3, 2)])
    assert best_step(flat, WER, along[0], along[1]) == 0.0


@pytest.mark.parametrize("best", [[1.0, 0.5], [1.0, -2.0, 0.3], [0.2, 1.0, 1.0, -1.0]])
def test_tuning_finds_weights_that_are_known_to_be_best(best):
    lists = ranked_lists(3, best)
    start = torch.eye(len(best), dtype=torch.float64)[0]
    weights = tune_weights(lists, WER, start=start, rng=SeededRng(0))
    assert rate(lists, start) > 10
    assert rate(lists, weights) == 0.0
    assert rate(ranked_lists(4, best, lists=2000), weights) < 4
    assert weights[0] == 1.0 and torch.allclose(weights, torch.tensor(best, dtype=torch.float64) / best[0], rtol=0.15, atol=0.1)


def test_tuning_is_repeatable_and_does_not_mind_the_scale_of_scores():
    lists = ranked_lists(5, [1.0, 0.7, -0.3])
    start = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    weights = tune_weights(lists, WER, start=start, rng=SeededRng(1))
    assert torch.equal(weights, tune_weights(lists, WER, start=start, rng=SeededRng(1)))
    scale = torch.tensor([1.0, 1000.0, 0.01], dtype=torch.float64)
    other = tune_weights(NBestScores(lists.scores * scale, lists.counts), WER, start=start, rng=SeededRng(1))
    assert torch.allclose(other * scale, weights)


def test_tuning_is_never_worse_than_its_start():
    for seed in range(5):
        lists = random_lists(seed, lists=30)
        start = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64)
        assert rate(lists, tune_weights(lists, WER, start=start, restarts=0, rng=SeededRng(seed))) <= rate(lists, start)


def test_a_useless_score_and_a_single_one():
    lists = ranked_lists(6, [-1.0])
    assert tune_weights(lists, WER, start=torch.ones(1, dtype=torch.float64), rng=SeededRng(0)).tolist() == [-1.0]
    constant = NBestScores(torch.cat([lists.scores, torch.full_like(lists.scores, 7.0)], -1), lists.counts)
    weights = tune_weights(constant, WER, start=torch.tensor([1.0, 0.0], dtype=torch.float64), rng=SeededRng(0))
    assert rate(constant, weights) == 0.0


def test_tuning_for_bleu_prefers_higher_values():
    metric, references = Bleu(), ["the cat sat on the mat today", "it rained for two long days", "we went home in the dark"]
    scores, counts = [], []
    for place, reference in enumerate(references):
        texts = [reference.replace(reference.split()[2], "what"), reference + " so they said to us", reference]
        counts.append(metric.counts(texts, [reference]))
        scores.append(torch.tensor([[2.0, 5.0], [1.0, 9.0], [0.5 + 0.1 * place, 1.0]]))
    lists = nbest_scores(scores, counts)
    start, along = torch.eye(2, dtype=torch.float64)
    assert lists.chosen(start + best_step(lists, metric, start, along) * along).tolist() == [2, 2, 2]
    weights = tune_weights(lists, metric, start=start, rng=SeededRng(0))
    assert lists.chosen(weights).tolist() == lists.nearest(metric).tolist() == [2, 2, 2]
