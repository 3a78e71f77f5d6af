"""Hidden Markov models: the laws of a base, sums over all hidden paths written out, and the fit."""

import email
import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bases.hidden import SPACES, path_sums, random_model, rows_of
from random_targets import PROMPTS
from scipy.stats import chi2

from esscher.bases import hidden_markov
from esscher.bases.hidden_markov import (
    HiddenMarkov,
    fit_hidden_markov,
    forward_backward,
    hidden_markov_family,
    hidden_posterior,
    log_matmul,
)
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, concatenate, empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.data.docstrings import read_docstrings
from esscher.data.text import text_points
from esscher.data.tokenizers import train_tokenizer
from esscher.exact import features
from esscher.exact.enumeration import tabulate
from esscher.samplers.ancestral import draw
from esscher.testing import check_base


@pytest.mark.parametrize("name", SPACES)
def test_probabilities_are_sums_over_hidden_paths(name):
    model = random_model(SPACES[name], zeros=True)
    x = tabulate(Tilted(model), prompts_of(PROMPTS)).x.rows(slice(0, None, 3))
    actual = model.log_probs(x).sum(-1).exp()
    whole = torch.tensor([sum(path_sums(model, row).values()) for row in rows_of(x)], dtype=torch.float64)
    inputs = torch.tensor([sum(path_sums(model, row).values()) for row in rows_of(x.prompts())], dtype=torch.float64)
    assert torch.allclose(actual, whole / inputs, rtol=1e-12)
    assert not torch.allclose(actual, whole)  # the comparison catches prompts that are predicted,
    assert not torch.allclose(actual, model.log_probs(sequences(x.points())).sum(-1).exp())  # and prompts that are not read


def test_a_base_that_forgets_to_step_is_caught(monkeypatch):
    """Without the transition the base still obeys its laws, but is not the sum over hidden paths."""
    monkeypatch.setattr(hidden_markov, "log_matmul", lambda a, b: a if a.shape[1] == b.shape[1] == 4 else log_matmul(a, b))
    model = random_model(SPACES["end symbol"], states=4)
    check_base(model, PROMPTS, tolerance=1e-12)
    with pytest.raises(AssertionError):
        assert float(model.log_probs(sequences([[1, 2, 0]])).sum().exp()) == pytest.approx(
            sum(path_sums(model, [1, 2, 0]).values())
        )


def test_steps_go_on_after_the_end():
    model = random_model(SPACES["end symbol"])
    log_prob, state = model.begin(prompts_of([[], [1]]))
    for token in ([0, 1], [0, 0], [2, 2]):
        log_prob, state = model.advance(state, torch.tensor(token))
        assert torch.allclose(torch.logsumexp(log_prob, -1), torch.zeros(2).double())
    assert torch.equal(model.begin(empty_prompts(0))[0], torch.zeros(0, 3).double())
    assert model.log_probs(empty_prompts(2)).shape == (2, 0)
    assert hidden_posterior(model, empty_prompts(2)).shape == (2, 0, 3)


def test_log_products_do_not_underflow():
    a = torch.tensor([[0.0, -900.0], [-5000.0, -5001.0], [-torch.inf, -torch.inf]], dtype=torch.float64)
    b = torch.tensor([[-torch.inf, -900.0, -1.0], [0.0, -1.0, -torch.inf]], dtype=torch.float64)
    expected = torch.logsumexp(a[:, :, None] + b, 1)
    assert torch.allclose(log_matmul(a, b), expected, rtol=1e-15)
    assert float(log_matmul(a, b)[0, 0]) == -900.0
    generator = torch.Generator().manual_seed(0)
    shapes = ((5, 4), (4, 3))
    tables = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_(True) for shape in shapes]
    assert torch.autograd.gradcheck(log_matmul, tables)


@pytest.mark.parametrize("zeros", [False, True])
def test_posterior_of_hidden_states(zeros):
    model = random_model(SPACES["end symbol"], zeros=zeros)
    x = tabulate(Tilted(model), prompts_of(PROMPTS)).x.rows(slice(1, None, 2))
    x = x.rows(model.log_probs(x).sum(-1) > -torch.inf)
    actual = hidden_posterior(model, x)
    filtered = forward_backward(model, x).filtered
    gaps = []
    for number, row in enumerate(rows_of(x)):
        joint = path_sums(model, row)
        for t in range(len(row)):
            exact = [sum(p for path, p in joint.items() if path[t] == z) / sum(joint.values()) for z in range(3)]
            assert actual[number, t].exp().tolist() == pytest.approx(exact, abs=1e-12)
            gaps.append(float((filtered[number, t].exp() - torch.tensor(exact)).abs().max()))
        assert not actual[number, len(row) :].any()
    assert max(gaps) > 0.01  # the comparison catches a posterior that does not look back


def test_rows_without_probability_are_refused():
    emission = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float64).log()
    stay = torch.eye(2, dtype=torch.float64).log()
    model = HiddenMarkov(torch.tensor([0.5, 0.5], dtype=torch.float64).log(), stay, emission, Space(3, 4, eos=0))
    assert model.log_probs(sequences([[1, 2, 1, 0]])).sum() == -torch.inf
    for call in (model.begin, model.log_probs):
        with pytest.raises(ValueError, match=r"1 of 2 prompts have probability 0.*row 1.*token 2 at position 1"):
            call(prompts_of([[1, 1], [1, 2]]))
    with pytest.raises(ValueError, match=r"1 of 1 rows have probability 0"):
        hidden_posterior(model, sequences([[1, 2, 0]]))


def test_known_model_is_recovered():
    """n times twice the exact KL of a maximum-likelihood fit is nearly chi-squared: 7 free numbers, false-alarm rate 1e-6."""
    space, limit = Space(3, 8, eos=0), chi2.isf(1e-6, 7)
    tables = [[0.8, 0.2], [[0.9, 0.1], [0.2, 0.8]], [[0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]]
    truth = HiddenMarkov(*(torch.tensor(table, dtype=torch.float64).log() for table in tables), space=space)
    x, log_prob = draw(truth, empty_prompts(1), 3000, rng=SeededRng(4))
    table = tabulate(Tilted(truth))

    def distance(states: int) -> float:
        fit = fit_hidden_markov(x, space, states, rng=SeededRng(0), iterations=400, tolerance=1e-7, smoothing=1e-4)
        assert (fit.log_likelihood[-1] >= float(log_prob.sum())) is (states == 2)  # better than the truth on its own data
        return 2 * len(x) * float(table.kl(tabulate(Tilted(fit.model))))

    assert distance(2) < limit < distance(1)


def ragged_data() -> Sequences:
    """Rows of different lengths, with and without prompts, one of them empty."""
    x, _ = draw(random_model(Space(3, 9, eos=0), states=4, seed=2), prompts_of([*PROMPTS, [1, 2, 2]]), 30, rng=SeededRng(3))
    return concatenate([sequences([[]]), x])


def falls(trace: list[float]) -> float:
    return max(before - after for before, after in itertools.pairwise(trace))


@pytest.mark.parametrize("states", [1, 2, 6])
def test_no_round_lowers_the_objective(states):
    data, space = ragged_data(), Space(3, 9, eos=0)
    for smoothing in (1e-6, 0.5):
        fit = fit_hidden_markov(data, space, states, rng=SeededRng(3), iterations=40, tolerance=-1.0, smoothing=smoothing)
        assert len(fit.objective) == 41
        assert falls(fit.objective) < 1e-9
        if smoothing < 1e-3:
            assert falls(fit.log_likelihood) < 1e-3
        rows = Sequences(data.tokens, torch.zeros_like(data.start), data.stop)
        assert fit.log_likelihood[-1] == pytest.approx(float(fit.model.log_probs(rows).sum()))


def without_hindsight(model: HiddenMarkov, x: Sequences):
    seen = forward_backward(model, x)
    return seen._replace(log_backward=seen.filtered - seen.before)


def without_this_token(model: HiddenMarkov, x: Sequences):
    seen = forward_backward(model, x)
    return seen._replace(filtered=seen.before)


def into_the_padding(model: HiddenMarkov, x: Sequences):
    return forward_backward(model, Sequences(x.tokens, x.start, torch.full_like(x.stop, x.tokens.shape[1])))


@pytest.mark.parametrize("wrong", [without_hindsight, without_this_token, into_the_padding])
def test_wrong_rounds_lower_the_objective(wrong, monkeypatch):
    """From a fitted model on, rounds whose expected counts are wrong are caught at once; right ones are not."""
    data, space = ragged_data(), Space(3, 9, eos=0)

    def fit(iterations: int):
        return fit_hidden_markov(data, space, 2, rng=SeededRng(0), iterations=iterations, tolerance=-1.0, smoothing=0.5)

    guess = fit(150).model
    monkeypatch.setattr(hidden_markov, "_random_init", lambda *_: guess)
    assert falls(fit(3).objective) < 1e-9
    monkeypatch.setattr(hidden_markov, "forward_backward", wrong)
    assert falls(fit(3).objective) > 1e-3


def test_a_round_is_expected_counts_over_hidden_paths(monkeypatch):
    """One round from a known guess, with every path written out; rows are read in blocks of any size."""
    data, space, smoothing = sequences([[1, 2, 0], [2, 2, 1, 0], [0], []], [[], [], [1, 2], []]), Space(3, 4, eos=0), 0.25
    guess = random_model(space, states=2)
    monkeypatch.setattr(hidden_markov, "_random_init", lambda *_: guess)
    counts = [torch.full(shape, smoothing, dtype=torch.float64) for shape in ((2,), (2, 2), (2, 3))]
    for row in rows_of(data)[:3]:
        joint = path_sums(guess, row)
        for path, p in joint.items():
            share = p / sum(joint.values())
            counts[0][path[0]] += share
            for a, b in itertools.pairwise(path):
                counts[1][a, b] += share
            for z, v in zip(path, row, strict=True):
                counts[2][z, v] += share
    for block in (1, 2**21):
        monkeypatch.setattr(hidden_markov, "BLOCK_ELEMENTS", block)
        model = fit_hidden_markov(data, space, 2, rng=SeededRng(0), iterations=1, smoothing=smoothing).model
        for actual, count in zip((model.initial, model.transition, model.emission), counts, strict=True):
            assert torch.allclose(actual.exp(), count / count.sum(-1, keepdim=True), rtol=1e-12)


@pytest.mark.slow
def test_more_hidden_states_read_docstrings_better():
    """Characters of real text: the held-out log-likelihood rises with the hidden states; one of them is the frequencies."""
    texts = read_docstrings(Path(email.__file__).parent).texts
    tokenizer = train_tokenizer("character", texts)
    cut = [text_points(part, tokenizer, max_length=80).x for part in (texts[::3], texts[1::3])]
    space = Space(tokenizer.vocab_size, 80, tokenizer.eos)
    held_out = []
    for states in (1, 4, 16):
        fit = fit_hidden_markov(cut[0], space, states, rng=SeededRng(0), iterations=20)
        held_out.append(float(fit.model.log_probs(cut[1]).sum() / cut[1].lengths.sum()))
    assert held_out[0] + 0.1 < held_out[1] < held_out[2] - 0.1
    seen = torch.bincount(cut[0].tokens[cut[0].counted], minlength=space.vocab_size) + 0.01
    alone = fit_hidden_markov(cut[0], space, 1, rng=SeededRng(0)).model
    assert torch.allclose(alone.emission[0].exp(), seen.double() / seen.double().sum(), rtol=1e-6)


def test_bad_input_is_refused():
    space = Space(3, 4, eos=0)

    def fit(points, states=1, smoothing=0.01):
        return fit_hidden_markov(sequences(points), space, states, rng=SeededRng(0), smoothing=smoothing)

    for arguments, message in [
        (([[], []],), "2 sequences have no token"),
        (([[7, 0]],), "token 7 and the space only 3"),
        (([[1, 0]], 3), "3 hidden states cannot be fitted to 2 tokens"),
        (([[1, 0]], 0), "0 hidden states"),
        (([[1, 0]], 1, 0.0), "above 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            fit(*arguments)
    model = random_model(space)
    with pytest.raises(ValueError, match="emits 3 tokens and its space has 4"):
        replace(model, space=Space(4, 4))
    with pytest.raises(ValueError, match=r"transition probabilities of row 1 .* sum to 2"):
        replace(model, transition=model.transition + torch.tensor([[0.0], [math.log(2)], [0.0]]))
    with pytest.raises(ValueError, match=r"initial .*float32"):
        replace(model, initial=model.initial.float())
    with pytest.raises(ValueError, match="Feature 'length' is about"):
        hidden_markov_family(model, [features.length(Space(3, 5, eos=0))])
