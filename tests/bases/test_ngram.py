"""n-gram models: the laws of a base, the formula in plain Python, exact results on them."""

import math
import time
from collections import Counter, defaultdict

import pytest
import torch
from random_targets import PROMPTS

from esscher.bases.ngram import fit_ngram
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, sequences
from esscher.exact import features
from esscher.exact.automaton import Automaton
from esscher.exact.dynamic_programming import entropy, expectation, kl
from esscher.exact.exponential_family import exact_moment_weights, tilt
from esscher.samplers.ancestral import draw

SPACE = Space(4, 5, eos=0)


def random_data(rows: int = 30, *, prompts: bool = True):
    generator = torch.Generator().manual_seed(0)

    def lists(most: int) -> list[list[int]]:
        sizes = torch.randint(0, most, (rows,), generator=generator).tolist()
        return [torch.randint(1, 4, (size,), generator=generator).tolist() for size in sizes]

    points = [[*point, 0] for point in lists(6)]
    return points, lists(4) if prompts else [[] for _ in points]


def witten_bell(points, prompts, symbols: int, order: int):
    """p(v | everything before it), by the formula, with dictionaries."""
    counts = defaultdict(Counter)
    for point, prompt in zip(points, prompts, strict=True):
        row = ["^", *prompt, *point]
        for t in range(len(prompt) + 1, len(row)):
            for size in range(min(order - 1, t) + 1):
                counts[tuple(row[t - size : t])][row[t]] += 1

    def p(v, context):
        context = tuple(context[max(0, len(context) - order + 1) :]) if order > 1 else ()
        shorter = p(v, context[1:]) if context else 1 / symbols
        seen = counts.get(context, {})
        return (seen[v] + len(seen) * shorter) / (sum(seen.values()) + len(seen)) if seen else shorter

    return p


def worst_gap(model: Automaton, p) -> float:
    points = [[1, 2, 3, 1, 0], [3, 3, 3, 3, 3], [0], [2, 2, 0], [1, 1, 2, 0]]
    gaps = []
    for prompt in [*PROMPTS, [3, 3, 1, 2, 2]]:
        log_probs = model.log_probs(sequences(points, [prompt] * len(points)))
        for row, point in enumerate(points):
            for t, v in enumerate(point):
                exact = math.log(p(v, ["^", *prompt, *point[:t]]))
                gaps.append(abs(exact - float(log_probs[row, len(prompt) + t])))
    return max(gaps)


@pytest.mark.parametrize("order", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("prompts", [False, True])
def test_probabilities_are_those_of_the_formula(order, prompts):
    points, begun = random_data(prompts=prompts)
    model = fit_ngram(sequences(points, begun), SPACE, order)
    assert worst_gap(model, witten_bell(points, begun, 4, order)) < 1e-12
    if order > 1:  # the comparison catches a model of another order, and prompts that were predicted
        assert worst_gap(model, witten_bell(points, begun, 4, order - 1)) > 1e-3
    if prompts:
        whole = [[*prompt, *point] for prompt, point in zip(begun, points, strict=True)]
        assert worst_gap(model, witten_bell(whole, [[] for _ in whole], 4, order)) > 1e-3


def test_states_are_the_contexts_seen():
    model = fit_ngram(sequences([[1, 2, 1, 2, 0]]), SPACE, 3)
    assert len(model.log_emission) == 1 + 3 + 3  # (); ^, 1, 2; ^1, 12, 21


def test_exact_results_on_an_ngram():
    """A motif made likely by tilting: the moment is met and draws have it, false-alarm rate 1e-9 at 6 standard errors."""
    points, begun = random_data(200)
    model = fit_ngram(sequences(points, begun), Space(4, 12, eos=0), 3)
    tally = features.contains([1, 2, 3], model.space)
    weights = exact_moment_weights(model, [tally], torch.tensor([0.7]))
    tilted = tilt(model, [tally], weights)
    assert float(expectation(tilted, tally)) == pytest.approx(0.7)
    x, log_prob = draw(tilted, empty_prompts(1), 1500, rng=SeededRng(2))
    assert abs(float(tally(x).mean()) - 0.7) < 6 * math.sqrt(0.21 / 1500)
    assert abs(float(-log_prob.mean()) - float(entropy(tilted))) < 6 * float(log_prob.std()) / math.sqrt(1500)
    assert float(kl(tilted, model)) > 0


def test_a_hundred_characters_at_order_three():
    generator = torch.Generator().manual_seed(1)
    frequent = torch.multinomial(1 / torch.arange(1.0, 101), 60_000, replacement=True, generator=generator)
    text = sequences([[*row, 100] for row in frequent.view(-1, 60).tolist()])
    began = time.process_time()
    model = fit_ngram(text, Space(101, 80, eos=100), 3)
    assert time.process_time() - began < 5
    assert len(model.log_emission) > 3000
    assert float(entropy(model)) > 0


def test_bad_data_are_refused():
    with pytest.raises(ValueError, match="order 1 or more"):
        fit_ngram(sequences([[1, 0]]), SPACE, 0)
    with pytest.raises(ValueError, match="no token"):
        fit_ngram(sequences([[], []]), SPACE, 2)
    with pytest.raises(ValueError, match="token 7 and the space only 4"):
        fit_ngram(sequences([[7, 0]]), SPACE, 2)
    with pytest.raises(ValueError, match="is too large"):
        fit_ngram(sequences([list(range(20_000))]), Space(20_000, 5), 2)


def test_three_tokens_never_seen_are_alike_to_the_last_bit():
    """A third is no sum of powers of 2: rounded to single precision on the way, probabilities of three tokens miss 1."""
    model = fit_ngram(sequences([[1, 0]]), Space(3, 4, eos=0), 2)
    total = model.log_emission.exp().sum(-1)
    assert torch.allclose(total, torch.ones_like(total), atol=1e-14, rtol=0)
