"""The recipe on translation: what its studies are, the pairs of the small scale, and its smallest run from end to end."""

import zipfile
from dataclasses import replace

import pytest

from esscher.bases.scaling import parameter_count
from esscher.core.randomness import SeededRng
from esscher.core.target import flat
from esscher.energies.self_energy import SELF
from esscher.objectives.config import EForcingConfig
from esscher.papers.eforcing import translation as studies
from esscher.papers.eforcing.language import FORCED, PLAIN, SMOOTH
from esscher.papers.eforcing.translation import (
    french_english,
    number_words,
    read_decoded,
    run,
    translation_studies,
    with_chosen_settings,
)
from esscher.papers.study import StudyContext
from esscher.workflow.config.train import TrainRun
from esscher.workflow.train import train_base


def archive_of(folder, lines: list[tuple[str, str]] | None = None):
    archive = folder / "pairs.zip"
    pairs = lines or [(f"He has {n} of {n % 7} .", f"Il a {n} de {n % 7} !") for n in range(400)]
    with zipfile.ZipFile(archive, "w") as whole:
        whole.writestr("fra.txt", "".join(f"{english}\t{french}\tby someone\n" for english, french in pairs))
    return archive


def test_pairs_are_short_one_to_one_and_of_frequent_words(tmp_path, monkeypatch):
    lines = [
        ("It's hot!", "J\u2019ai chaud\u202f!"),
        ("It's hot!", "Il fait chaud."),  # another translation of the English
        ("I'm hot.", "j'ai chaud !"),  # the same French in lower case
        ("Go on.", "Va chaud."),
        ("Stay.", "Reste " * 6 + "."),
        ("Rare!", "J'ai !"),
    ]
    monkeypatch.setattr(studies, "MOST_WORDS", 5)
    monkeypatch.setattr(studies, "FREQUENT", 100)
    pairs = french_english(archive_of(tmp_path, lines))
    assert pairs == [("j' ai chaud !", "it' s hot !"), ("va chaud .", "go on ."), ("j' ai !", "rare !")]
    monkeypatch.setattr(studies, "FREQUENT", 4)  # of English: ! it' s hot, and of French: chaud j' ai !
    assert french_english(archive_of(tmp_path, lines)) == [("j' ai chaud !", "it' s hot !")]


def test_systems_have_one_network_and_set_of_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "TATOEBA", tmp_path / "none.zip")
    assert translation_studies("small", tmp_path) == (
        [],
        [f"{tmp_path}/none.zip is not here; ESSCHER_DATA names another folder that holds it."],
    )
    monkeypatch.setattr(studies, "TATOEBA", archive_of(tmp_path))
    (main,) = translation_studies("small", tmp_path)[0]
    heads = studies._heads(main.models[PLAIN])
    for system in main.models.values():
        plain = main.models[PLAIN]
        assert (system.base, system.data, system.training.epochs) == (plain.base, plain.data, plain.training.epochs)
    assert {system: main.baseline_of(system) for system in main.models} == {
        PLAIN: PLAIN, SMOOTH: PLAIN, f"{PLAIN}, {FORCED}": PLAIN, f"{SMOOTH}, {FORCED}": SMOOTH,
    }  # fmt: skip
    for system in (PLAIN, SMOOTH):
        assert replace(main.models[f"{system}, {FORCED}"], objective=main.models[system].objective) == main.models[system]
    assert all(list(study.names_for_seed(2)) == list(study.models) for study in (main, heads))
    sizes = [parameter_count(system.base, 1_000) for system in heads.models.values()]
    assert max(sizes) < 1.05 * min(sizes)
    monkeypatch.setattr(studies, "DATA", tmp_path)
    published, missing = translation_studies("paper", tmp_path)
    names = ["IWSLT14 de to en", "IWSLT14 en to de", "WMT16 en to de", "French to English, heads of an LSTM"]
    assert [study.name for study in published] == names
    assert [item.split(":")[0] for item in missing] == ["es to en", "it to en", "en to es", "en to it"]


def test_the_rate_comes_first_and_all_systems_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "TATOEBA", archive_of(tmp_path))
    tried = {}

    def last(context, study, what, candidates):
        tried[what] = list(candidates.values())
        return list(candidates)[-1]

    monkeypatch.setattr(studies, "choose", last)
    (main,) = translation_studies("small", tmp_path)[0]
    heads = studies._heads(main.models[PLAIN])
    chosen = with_chosen_settings(StudyContext(scale="small", out=tmp_path), main)
    assert list(tried) == ["learning rate", "strength of E-Forcing"]
    assert {run.training.learning_rate for run in (*tried["strength of E-Forcing"], *chosen.models.values())} == {
        main.rates[-1]
    }
    assert {run.training.label_smoothing for runs in tried.values() for run in runs} == {0.1}
    weights = [chosen.models[f"{system}, {FORCED}"].objective.weight for system in (PLAIN, SMOOTH)]
    assert weights == pytest.approx([main.forcing_strengths[-1] * 0.1] * 2)
    assert with_chosen_settings(StudyContext(scale="small", out=tmp_path), heads) == heads


def test_published_means_are_those_of_their_directions():
    """Table 2 has lost the first two cells of its greedy rows; they follow from the means, which the other rows confirm."""
    for decoded in ("greedy", "beam of 5"):
        rows = [row for row in studies.PAPER if row["table"] == "2" and row["decoded"] == decoded]
        for system in ("without", "with E-Forcing"):
            assert sum(row[system] for row in rows[:-1]) / 6 == pytest.approx(rows[-1][system], abs=0.006)


@pytest.mark.parametrize(
    ("number", "words"), [(7, "seven"), (30, "thirty"), (215, "two hundred fifteen"), (999, "nine hundred ninety nine")]
)
def test_numbers_in_words(number, words):
    assert number_words(number) == words


@pytest.mark.slow
def test_the_smallest_run(tmp_path, monkeypatch):
    whole = studies._smoke(tmp_path)
    systems = {name: whole.models[name] for name in (PLAIN, SMOOTH, f"{SMOOTH}, {FORCED}")}

    def short(one: TrainRun) -> TrainRun:
        training = replace(one.training, steps=4, evaluate_every=2)
        objective = one.objective
        if isinstance(objective, EForcingConfig):
            objective = replace(objective, after_steps=None)
        return replace(one, training=training, objective=objective)

    few = replace(whole, test_limit=4, models={name: short(one) for name, one in systems.items()}, forcing_strengths=(0.3,))
    monkeypatch.setattr(studies, "_smoke", lambda out: few)
    result = run(StudyContext(scale="smoke", out=tmp_path, seeds=2))
    assert len(result["rows"]) == 36 and len(result["over seeds"]) == 18 and len(result["exposure"]) == 4
    assert {(row["system"], row["against"]) for row in result["exposure"]} == {(SMOOTH, PLAIN), (f"{SMOOTH}, {FORCED}", SMOOTH)}
    groups = {row["words"] for row in result["by length"]}
    assert len(result["by length"]) == 12 * len(groups) and len(result["by length over seeds"]) == 6 * len(groups)
    assert len(result["energies"]) == 6 and len(result["curves"]) == 6 and len(result["settings"]) == 1
    claims = {(row["claim"], row["system"]) for row in result["verdicts"]}
    forced = f"{SMOOTH}, {FORCED}"
    assert claims == {(claim, forced) for claim in ("BLEU", "long sources", "exposure", "choosing by the own energy")}
    assert len(result["own energy over seeds"]) == 9
    assert all(row["BLEU"].low <= row["BLEU"].value <= row["BLEU"].high for row in result["rows"])
    assert all((row["gained"] is None) == (row["system"] == PLAIN) for row in result["rows"])
    assert len(read_decoded(StudyContext(scale="smoke", out=tmp_path).run_dir(few.name, PLAIN), "greedy")) == 4
    page = (tmp_path / "report.html").read_text()
    assert "By words of the source" in page and "rouge2" in page and "Exposure" in page
    assert run(StudyContext(scale="smoke", out=tmp_path, seeds=2))["rows"] == result["rows"]


def test_an_own_energy_divided_by_its_means_prefers_other_draws(tmp_path):
    whole = studies._smoke(tmp_path)
    run_dir = tmp_path / "run"
    training = replace(whole.models[PLAIN].training, steps=4, evaluate_every=2)
    train_base(replace(whole.models[PLAIN], training=training, out=str(run_dir)))
    plain, divided = (studies._load(run_dir, energy, rng=SeededRng(0)) for energy in (SELF, studies.DIVIDED))
    x = plain.training_splits().test
    difference = divided.target.energies(x) - plain.target.energies(x)
    means = divided.target.energy.log_means
    expected = [means[min(length - 1, len(means) - 1)] for length in x.lengths.tolist()]
    assert difference.tolist() == pytest.approx(expected, abs=1e-5) and len(set(expected)) > 2
    assert studies._load(run_dir, None, rng=SeededRng(0)).target.energy is flat
