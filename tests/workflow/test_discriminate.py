"""A fresh classifier in the laboratory, where no classifier can beat 1/2 + TV/2, and where the joint is the data exactly."""

from dataclasses import replace

import pytest
import torch
from random_targets import random_automaton

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts, prompts_of, unique_prompts
from esscher.core.target import Tilted
from esscher.data.splits import random_rows, split_by_prompt
from esscher.energies.config import EnergyConfig
from esscher.energies.network import build_energy
from esscher.exact.enumeration import tabulate
from esscher.networks.transformer_config import TransformerConfig
from esscher.samplers.ancestral import draw
from esscher.workflow.analyse import classifier_rates, discriminate, draw_populations, train_classifier
from esscher.workflow.config.analyse import ClassifierTraining, DiscriminateConfig

TRAINING = ClassifierTraining(
    steps=60, warmup_steps=0, patience=None, batch_size=64, learning_rate=0.01, schedule="linear", evaluate_every=20
)
SMALL = EnergyConfig(pooling="sum", network=TransformerConfig(width=16, layers=1, heads=2, feedforward=32))
SETTINGS = DiscriminateConfig(sequences=500, draws=8, test=0.4, classifier=SMALL, training=TRAINING)


def laboratory(space, strength=0.6):
    """A base tilted towards another automaton: the further, the more a pool of draws must hold."""
    base, other = random_automaton(space, seed=7), random_automaton(space, seed=3)
    return Tilted(base, lambda x: strength * (base.log_probs(x).sum(-1) - other.log_probs(x).sum(-1)))


def joint_data(target, prompts, *, rng):
    """A point of the exact joint after each prompt, so that the joint is the distribution of the data."""
    distinct, which = unique_prompts(prompts)
    table = tabulate(target, distinct)
    chosen = rng.categorical(table.log_prob[which])[:, 0]
    return table.x.rows(which * table.log_prob.shape[1] + chosen)


def some_prompts(count):
    digits = torch.arange(count)[:, None] // 3 ** torch.arange(6) % 3
    return prompts_of(digits.tolist())


@pytest.mark.parametrize("prompts", ["one prompt", "many prompts"])
def test_the_base_is_told_from_data_and_the_joint_is_not(prompts):
    """False alarm 1e-3. Base draws are what a joint would be that is not resampled, and that is caught."""
    target = laboratory(Space(3, 4))
    data = joint_data(target, empty_prompts(500) if prompts == "one prompt" else some_prompts(500), rng=SeededRng(1))
    exact = tabulate(target, unique_prompts(data)[0])
    distance = float((exact.log_prob.exp() - exact.log_base.exp()).abs().sum(-1).mean()) / 2
    result = discriminate(target, data, replace(SETTINGS, draws=64, confidence=0.999), rng=SeededRng(2))
    bayes = 0.5 + distance / 2
    assert result.accuracy["joint"].covers(0.5), result.accuracy
    assert not result.accuracy["base"].covers(0.5), "draws that are not resampled are told"
    assert result.accuracy["base"].low <= bayes, (result.accuracy, bayes)
    assert result.accuracy["base"].value > 0.5 + 0.6 * (bayes - 0.5), (result.accuracy, bayes)
    assert not result.gap.covers(0.0) and result.gap.value > 0
    assert result.false_positives["base"].value < 0.5
    assert result.sequences == {"training": 250, "validation": 50, "test": 200}


@pytest.mark.slow
def test_joint_draws_of_a_small_pool_are_told():
    """A pool leaves draws nearer the base, and the classifier finds it; the number of effective draws warns of it."""
    target = laboratory(Space(3, 4), strength=1.0)
    data = joint_data(target, some_prompts(500), rng=SeededRng(1))
    result = discriminate(target, data, replace(SETTINGS, confidence=0.999), rng=SeededRng(2))
    assert not result.accuracy["joint"].covers(0.5) and result.ess.high < 5


def test_a_classifier_tested_on_what_it_learnt_from_is_caught():
    """Memory of a few sequences passes for skill on them, and is worth nothing on others; false alarm 1e-3."""
    target = laboratory(Space(6, 6))
    data = joint_data(target, empty_prompts(160), rng=SeededRng(1))
    training = replace(TRAINING, steps=120, keep_best=False)
    parts = split_by_prompt(data, (0.1, 0.6), rng=SeededRng(2))
    learn, choose, judge = (
        draw_populations(target, part, 8, rng=SeededRng(3).stream(number)) for number, part in enumerate(parts)
    )
    config = replace(SMALL, network=replace(SMALL.network, max_positions=6))
    energy = build_energy(config, target.base, rng=SeededRng(4))
    train_classifier(energy, target.base, learn, choose, "joint", training, rng=SeededRng(5))
    seen, unseen = (
        pops.share(classifier_rates(energy, target.base, pops, "joint")[0], confidence=0.999, method="accuracy")
        for pops in (learn, judge)
    )
    assert unseen.covers(0.5) and not seen.covers(0.5)


def test_no_prompt_is_in_two_parts():
    prompts = some_prompts(40).repeat(3)  # every prompt three times
    data, _ = draw(random_automaton(Space(3, 4)), prompts, 1, rng=SeededRng(0))
    parts = split_by_prompt(data, (0.2, 0.3), rng=SeededRng(1))
    assert [len(part) for part in parts] == [60, 24, 36]
    names = [{tuple(row[:6]) for row in part.tokens.tolist()} for part in parts]
    assert not (names[0] & names[1] or names[0] & names[2] or names[1] & names[2])
    rows, _ = draw(random_automaton(Space(3, 4)), empty_prompts(100), 1, rng=SeededRng(0))
    assert [len(part) for part in split_by_prompt(rows, (0.1, 0.3), rng=SeededRng(1))] == [60, 10, 30]
    with pytest.raises(ValueError, match=r"5 different prompts"):
        split_by_prompt(rows.rows(slice(0, 5)), (0.1, 0.3), rng=SeededRng(1))


def test_some_of_the_rows_in_their_order():
    rows, _ = draw(random_automaton(Space(3, 4)), some_prompts(50), 1, rng=SeededRng(0))
    few = random_rows(rows, 10, rng=SeededRng(1))
    places = [int(((rows.tokens == row).all(-1)).nonzero()[0]) for row in few.tokens]
    assert len(set(places)) == 10 and places == sorted(places) != list(range(10))
    assert random_rows(rows, 50, rng=SeededRng(1)) is rows
    with pytest.raises(ValueError, match=r"not 0"):
        random_rows(rows, 0, rng=SeededRng(1))


def test_what_cannot_be_compared_is_an_error():
    target = laboratory(Space(3, 4))
    rows, _ = draw(target.base, some_prompts(5), 1, rng=SeededRng(0))
    for x, draws, model, message in (
        (rows, 8, Tilted(target.base), "no energy"),
        (rows.rows(slice(0, 0)), 8, target, "no sequence"),
        (rows, 1, target, "at least 2 draws"),
    ):
        with pytest.raises(ValueError, match=message):
            draw_populations(model, x, draws, rng=SeededRng(0))


@pytest.mark.parametrize("settings", [{"sequences": 5}, {"draws": 1}, {"test": 0.0}, {"test": 0.7, "validation": 0.3}], ids=str)
def test_settings_that_make_no_sense(settings):
    with pytest.raises(ValueError, match=r"at least|shares above 0"):
        DiscriminateConfig(**settings)
