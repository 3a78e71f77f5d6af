"""Scheduled sampling: on every outcome of its coins and draws it is the mean over mixtures, by its definition."""

import pytest
import torch
from random_targets import random_automaton
from small_networks import lively
from torch.nn.functional import cross_entropy

from esscher.bases.wrappers import WithMemory
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, sequences
from esscher.core.target import Tilted
from esscher.networks.recurrent_config import GruConfig
from esscher.networks.transformer_config import TransformerConfig, TransformerXLConfig
from esscher.objectives.config import ScheduledSamplingConfig
from esscher.objectives.exposure_bias import ScheduledSampling
from esscher.objectives.likelihood import Likelihood
from esscher.testing import every_outcome

SPACE = Space(2, 3)


class Least(SeededRng):
    """The token that the model finds likeliest."""

    def categorical(self, log_weight, draws=1):
        return log_weight.argmax(-1, keepdim=True)


def base_of(config=None, space: Space = SPACE):
    return lively(config or GruConfig(6, 1, embedding=4), space).double()


def mixtures(base, point: list[int], share: float, form: str):
    """Every mixture of a point that matters, with its probability: own tokens before the last, given data or the mixture."""
    actual = {(): 1.0}
    for place in range(len(point) - 1):
        grown = {}
        for mixed, probability in actual.items():
            before = point[:place] if form == "passes" else list(mixed)
            row = sequences([[*before, 0]])
            law = base.logits(row)[0, place].softmax(-1).tolist()
            for token in range(SPACE.vocab_size):
                drawn = share * law[token] + (1 - share) * (token == point[place])
                grown[(*mixed, token)] = probability * drawn
        actual = grown
    return actual


def expected(base, data: Sequences, share: float, form: str) -> float:
    total = 0.0
    for point in data.points():
        for mixed, probability in mixtures(base, point, share, form).items():
            logits = base.logits(sequences([[*mixed, 0]]))[0]
            total += probability * float(cross_entropy(logits, torch.tensor(point), reduction="sum").detach())
    return total / int(data.lengths.sum())


@pytest.mark.parametrize("form", ["passes", "steps"])
def test_it_is_the_mean_over_mixtures(form):
    base, data = base_of(), sequences([[0, 1, 1]])
    outcomes = every_outcome(lambda rng: ScheduledSampling(ScheduledSamplingConfig(0.3, form))(Tilted(base), data, rng=rng))
    actual = sum(probability * float(loss.value.detach()) for probability, loss in outcomes)
    right = {item: expected(base, data, 0.3, item) for item in ("passes", "steps")}
    assert actual == pytest.approx(right[form], abs=1e-12)
    assert abs(right["passes"] - right["steps"]) > 1e-5, "the two forms must differ for the test to tell them apart"
    assert abs(actual - expected(base, data, 0.4, form)) > 1e-4


@pytest.mark.parametrize("form", ["passes", "steps"])
def test_prompts_and_ends_of_different_lengths(form):
    """With all tokens own, rows say the same one by one as together: none reads padding, and prompts stay the data's."""
    space = Space(3, 4, eos=0)
    base = base_of(TransformerConfig(8, 1, 2, 16), space)
    data = sequences([[1, 2, 0], [2], [1, 1, 2, 2]], prompts=[[2], [], [1, 1]])

    objective = ScheduledSampling(ScheduledSamplingConfig(1.0, form))
    whole = objective(Tilted(base), data, rng=Least(0))
    alone = [objective(Tilted(base), data.rows(slice(row, row + 1)), rng=Least(0)) for row in range(3)]
    mean = sum(item.value * item.count for item in alone) / whole.count
    torch.testing.assert_close(whole.value, mean, atol=1e-12, rtol=0)
    assert whole.count == 8 and whole.metrics["own"] == 1.0


def test_without_own_tokens_it_is_likelihood_bit_for_bit():
    base, data = base_of(), sequences([[0, 1, 1], [1, 0, 0]])
    plain = Likelihood()(Tilted(base), data, rng=SeededRng(0))
    for objective in (
        ScheduledSampling(ScheduledSamplingConfig(0.0)),
        ScheduledSampling(ScheduledSamplingConfig(0.5), begin=5, ramp_steps=4),
    ):
        actual = objective(Tilted(base), data, rng=SeededRng(0), step=5)
        assert torch.equal(actual.value, plain.value) and actual.metrics == plain.metrics


def test_streams_remember_the_data_and_not_the_mixture():
    base = base_of(TransformerXLConfig(8, 1, 2, 16), Space(3, 4))
    memory = WithMemory(base, base.init_memory(2))
    data = sequences([[0, 1, 2, 1], [2, 2, 0, 1]])
    for form in ("passes", "steps"):
        ScheduledSampling(ScheduledSamplingConfig(1.0, form), label_smoothing=0.1)(Tilted(memory), data, rng=SeededRng(0))
        expected = base.read(base.init_memory(2), data.tokens)[1]
        for item, other in zip(memory.memory_after(data), expected, strict=True):
            torch.testing.assert_close(item, other, atol=1e-12, rtol=0)


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        ScheduledSampling(ScheduledSamplingConfig(1.5))
    with pytest.raises(ValueError, match="has no `logits`"):
        ScheduledSampling()(Tilted(random_automaton(Space(3, 3))), sequences([[0, 1, 1]]), rng=SeededRng(0))
