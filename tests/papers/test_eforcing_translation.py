"""The recipe on translation: what its studies are, the pairs of the small scale, and its smallest run from end to end."""

import zipfile
from dataclasses import replace

import pytest

from esscher.bases.scaling import parameter_count
from esscher.objectives.config import EForcingConfig
from esscher.papers.eforcing import translation as studies
from esscher.papers.eforcing.language import PLAIN, SMOOTH
from esscher.papers.eforcing.translation import french_english, number_words, read_decoded, run, translation_studies
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
    sizes = [parameter_count(system.base, 2_000) for system in heads.models.values()]
    assert max(sizes) < 1.05 * min(sizes)
    monkeypatch.setattr(studies, "DATA", tmp_path)
    published, missing = translation_studies("paper", tmp_path)
    assert [study.name for study in published] == ["IWSLT14 de to en", "IWSLT14 en to de", "WMT16 en to de"]
    assert [item.split(":")[0] for item in missing] == ["es to en", "it to en", "en to es", "en to it"]


@pytest.mark.parametrize(
    ("number", "words"), [(7, "seven"), (30, "thirty"), (215, "two hundred fifteen"), (999, "nine hundred ninety nine")]
)
def test_numbers_in_words(number, words):
    assert number_words(number) == words


@pytest.mark.slow
def test_the_smallest_run(tmp_path, monkeypatch):
    whole = studies._smoke(tmp_path)
    systems = {name: whole.models[name] for name in (PLAIN, SMOOTH, list(whole.models)[-1])}

    def short(one: TrainRun) -> TrainRun:
        training = replace(one.training, steps=4, evaluate_every=2)
        objective = one.objective
        if isinstance(objective, EForcingConfig):
            objective = replace(objective, after_steps=None)
        return replace(one, training=training, objective=objective)

    few = replace(whole, test_limit=4, models={name: short(one) for name, one in systems.items()})
    monkeypatch.setattr(studies, "_smoke", lambda out: few)
    result = run(StudyContext(scale="smoke", out=tmp_path, seeds=2))
    assert len(result["rows"]) == 10 and len(result["over seeds"]) == 4 and len(result["exposure"]) == 2
    assert {row["system"] for row in result["rows"] if row["seed"]} == set(few.repeated_over_seeds)
    assert len(result["energies"]) == 6
    assert all(row["BLEU"].low <= row["BLEU"].value <= row["BLEU"].high for row in result["rows"])
    assert all((row["gained"] is None) == (row["system"] == SMOOTH) for row in result["rows"])
    assert len(read_decoded(StudyContext(scale="smoke", out=tmp_path).run_dir(few.name, PLAIN), "greedy")) == 4
    page = (tmp_path / "report.html").read_text()
    assert "by words of the source" in page and "Exposure" in page
    assert run(StudyContext(scale="smoke", out=tmp_path, seeds=2))["rows"] == result["rows"]
