"""Weights that are fitted after a prompt, on a base that may be truncated: right against enumeration, kept with the energy, and
used by every verb after that very prompt only."""

import pytest
import torch
from causal_models import save_text_model

import esscher
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of
from esscher.core.target import Tilted
from esscher.core.truncation import Truncation
from esscher.energies.features import contains
from esscher.energies.serialization import load_energy
from esscher.exact.automaton import Automaton
from esscher.exact.enumeration import tabulate
from esscher.hub.custom_generate import load_tilted
from esscher.workflow.config.tilt import FitConfig, TiltRun
from esscher.workflow.tilt import fit_feature_weights

WANT, PROMPT = 0.6, "ab"
FIT = FitConfig(draws=2000)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return esscher.load(save_text_model(tmp_path_factory.mktemp("prompt") / "base"))


@pytest.fixture(scope="module")
def energy(model, tmp_path_factory):
    """The folder of an energy that was fitted after a prompt, on a base of top-k 3."""
    folder = tmp_path_factory.mktemp("prompt") / "energy"
    model.tilt(want={"contains:a": WANT}, prompt=PROMPT, top_k=3, fit=FIT, out=str(folder))
    return folder


@pytest.mark.parametrize("regime", ["newton", "snis"])
def test_the_moment_after_a_prompt_is_right_against_enumeration(regime):
    """On an automaton whose next symbol depends on the last one, so that after another prompt the same weights are wrong."""
    log_emission = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4]], dtype=torch.float64).log()
    base = Automaton(log_emission, torch.tensor([[0, 1, 2]] * 3), Space(3, 5, eos=2))
    feature, prompt = contains([1, 1]), prompts_of([[1, 1, 0]])
    result = fit_feature_weights(
        base, [feature], None, {feature.name: WANT}, FitConfig(regime, draws=20_000), prompt=prompt, rng=SeededRng(0)
    )
    exact = float(tabulate(result.target, prompt).expect(feature.of))
    assert abs(exact - WANT) < 0.02  # four standard errors of 20,000 draws are 0.015, and weights are worth them
    assert result.moments[0].low - 0.01 < exact < result.moments[0].high + 0.01
    assert abs(result.log_z.value - float(tabulate(result.target, prompt).log_z)) < 0.05
    assert abs(float(tabulate(result.target, prompts_of([[1]])).expect(feature.of)) - WANT) > 0.1


def test_the_prompt_and_the_truncation_are_kept_and_loaded(model, energy):
    saved = load_energy(energy)
    assert saved.prompt == PROMPT and saved.truncation == Truncation(top_k=3)
    tilted = esscher.load(model.folder, energy)
    exact = tabulate(Tilted(tilted.target.base, tilted.target.energy), prompts_of(tilted.data.encode_prompts([PROMPT])))
    assert abs(float(exact.expect(tilted.target.energy.features[0].of)) - WANT) < 0.06
    assert abs(float(exact.log_z) - saved.log_z.value) < 0.1
    card = (energy / "README.md").read_text()
    assert "continuations of 'ab'" in card and "top_k 3" in card
    (energy / "texts.txt").write_text("ab\nba\n")
    with pytest.raises(ValueError, match="truncated by top_k or top_p"):
        tilted.measure(str(energy / "texts.txt"))


def test_a_base_is_not_truncated_twice(model, energy):
    tilted = esscher.load(model.folder, energy)
    with pytest.raises(ValueError, match="top_k 3 and top_p None: they are part of the tilted model"):
        tilted.sample(prompts=[PROMPT], draws=2, temperature=0.5)


def test_scores_are_those_of_the_truncated_base(model, energy):
    tilted = esscher.load(model.folder, energy)
    drawn = tilted.sample(prompts=[PROMPT], draws=3)
    scored = tilted.score(drawn.texts, prompts=[PROMPT])
    assert scored.log_base == pytest.approx([row["log_base"] for row in drawn.samples], abs=1e-4)
    assert model.score(drawn.texts, prompts=[PROMPT]).log_base != pytest.approx(scored.log_base, abs=1e-4)


def test_the_stored_log_z_is_compared_after_that_prompt_only(model, energy):
    tilted = esscher.load(model.folder, energy)
    tokens = tilted.data.encode_prompts([PROMPT])[0]
    assert tilted.stored_log_z(tokens) == tilted.energy.log_z and tilted.stored_log_z([]) is None
    plain = model.tilt(want={"contains:a": 0.5}, fit=FIT)
    assert plain.stored_log_z([]) is not None and plain.stored_log_z(tokens) is None


def test_sampling_takes_the_stored_prompt_and_says_so(model, energy):
    tilted = esscher.load(model.folder, energy)
    result = tilted.sample(draws=2)
    assert [row["prompt"] for row in result.samples] == [PROMPT] * 2
    assert "No prompt was named, so this is what follows 'ab'" in result.notes[0]
    other = tilted.sample(["b"], draws=2)
    assert other.samples[0]["prompt"] == "b" and "fitted after 'ab'" in other.notes[0]
    assert not any("fitted after" in note for note in tilted.sample([PROMPT], draws=2).notes)


def test_a_student_learns_after_the_stored_prompt(model, energy, tmp_path):
    tilted = esscher.load(model.folder, energy)
    distil = esscher.DistilConfig(draws=400, candidates=800, evaluation_draws=400)
    plain = tilted.distil(out=str(tmp_path / "plain"), distil=distil)
    x = prompts_of(plain.data.encode_prompts([PROMPT]))
    share = float(tabulate(plain.target, x).expect(tilted.target.energy.features[0].of))
    before = float(tabulate(Tilted(model.base), x).expect(tilted.target.energy.features[0].of))
    assert abs(share - WANT) < abs(before - WANT)


def test_generate_of_transformers_truncates_as_the_energy_was_fitted(model, energy):
    assert load_tilted(model.folder, energy).generation_config.top_k == 3


def test_what_has_no_features_has_no_prompt():
    with pytest.raises(ValueError, match="prompt, temperature, top_k and top_p are for features"):
        TiltRun(prompt="Once")
    with pytest.raises(ValueError, match="are for features"):
        TiltRun(top_p=0.9)
