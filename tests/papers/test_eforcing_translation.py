"""The recipe on translation: what its studies are, the pairs of the small scale, and its smallest run from end to end."""

import zipfile
from dataclasses import replace

import pytest

from esscher.bases.scaling import parameter_count
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


def archive_of(folder, lines: int):
    archive = folder / "pairs.zip"
    with zipfile.ZipFile(archive, "w") as whole:
        whole.writestr("fra.txt", "".join(f"English {n}\tfrançais {n // 2}\tby someone\n" for n in range(lines)))
    return archive


def test_the_subset_is_a_share_of_the_sources_each_with_its_first_translation(tmp_path):
    pairs = french_english(archive_of(tmp_path, 4_000))
    assert pairs == french_english(archive_of(tmp_path, 4_000))
    assert all(english == f"English {2 * int(french.split()[1])}" for french, english in pairs)
    assert len({french for french, _ in pairs}) == len(pairs) == pytest.approx(2_000 * studies.SHARE, abs=60)
    more = french_english(archive_of(tmp_path, 5_000))
    assert set(pairs) <= set(more)


def test_systems_have_one_network_and_set_of_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "TATOEBA", tmp_path / "none.zip")
    assert translation_studies("small", tmp_path) == (
        [],
        [f"{tmp_path}/none.zip is not here; ESSCHER_DATA names another folder that holds it."],
    )
    monkeypatch.setattr(studies, "TATOEBA", archive_of(tmp_path, 400))
    main, heads = translation_studies("small", tmp_path)[0]
    for system in main.models.values():
        plain = main.models[PLAIN]
        assert (system.base, system.data, system.training.epochs) == (plain.base, plain.data, plain.training.epochs)
    assert {system: main.baseline_of(system) for system in main.models} == {
        PLAIN: PLAIN, SMOOTH: PLAIN, f"{PLAIN}, {FORCED}": PLAIN, f"{SMOOTH}, {FORCED}": SMOOTH,
    }  # fmt: skip
    for system in (PLAIN, SMOOTH):
        assert replace(main.models[f"{system}, {FORCED}"], objective=main.models[system].objective) == main.models[system]
    assert all(list(study.names_for_seed(2)) == list(study.models) for study in (main, heads))
    sizes = [parameter_count(system.base, 2_000) for system in heads.models.values()]
    assert max(sizes) < 1.05 * min(sizes)
    monkeypatch.setattr(studies, "DATA", tmp_path)
    published, missing = translation_studies("paper", tmp_path)
    assert [study.name for study in published] == ["IWSLT14 de to en", "IWSLT14 en to de", "WMT16 en to de"]
    assert [item.split(":")[0] for item in missing] == ["es to en", "it to en", "en to es", "en to it"]


def test_the_rate_comes_first_and_all_systems_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "TATOEBA", archive_of(tmp_path, 400))
    tried = {}

    def last(context, study, what, candidates):
        tried[what] = list(candidates.values())
        return list(candidates)[-1]

    monkeypatch.setattr(studies, "choose", last)
    main, heads = translation_studies("small", tmp_path)[0]
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
    assert len(result["rows"]) == 12 and len(result["over seeds"]) == 6 and len(result["exposure"]) == 4
    assert {(row["system"], row["against"]) for row in result["exposure"]} == {(SMOOTH, PLAIN), (f"{SMOOTH}, {FORCED}", SMOOTH)}
    groups = {row["words"] for row in result["by length"]}
    assert len(result["by length"]) == 12 * len(groups) and len(result["by length over seeds"]) == 6 * len(groups)
    assert len(result["energies"]) == 6
    assert all(row["BLEU"].low <= row["BLEU"].value <= row["BLEU"].high for row in result["rows"])
    assert all((row["gained"] is None) == (row["system"] == PLAIN) for row in result["rows"])
    assert len(read_decoded(StudyContext(scale="smoke", out=tmp_path).run_dir(few.name, PLAIN), "greedy")) == 4
    page = (tmp_path / "report.html").read_text()
    assert "By words of the source" in page and "rouge2" in page and "Exposure" in page
    assert run(StudyContext(scale="smoke", out=tmp_path, seeds=2))["rows"] == result["rows"]
