"""A student as the proposal of sample, measure and distil: what they say of it, and what they refuse."""

import shlex

import pytest
from cli_calls import answer, call
from random_targets import random_automaton

import esscher
from esscher.cli import main
from esscher.core.space import Space
from esscher.samplers.accept_reject import Metropolis, QuasiRejection
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.samplers.sir import SIR
from esscher.samplers.twists import ParticleSIR
from esscher.training.config import DistilConfig
from esscher.workflow.config.distil import DistilRun, DistilTraining
from esscher.workflow.distil import distil_model

TINY = ["--data", "motif:101", "--data.length", "6", "--data.size", "200", "--base.kind", "gru", "--base.width", "16",
        "--base.layers", "1", "--training.steps", "40", "--training.batch-size", "32"]  # fmt: skip
DISTIL = ["--distil.draws", "1000", "--distil.candidates", "2000", "--distil.evaluation-draws", "500", "--training.epochs", "6",
          "--training.learning-rate", "1e-2"]  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base, an energy that wants what one string in eight has, its student, and texts."""
    root = tmp_path_factory.mktemp("proposal")
    base, energy, student, texts = (str(root / name) for name in ("base", "energy", "student", "texts.txt"))
    (root / "texts.txt").write_text("110101\n001011\n101010\n010100\n" * 4)
    for arguments in (
        ["train", "--out", base, *TINY],
        ["tilt", base, "--out", energy, "--want", "contains:101=0.9", "--fit.draws", "2000"],
        ["distil", base, "--energy", energy, "--out", student, "--data", texts, *DISTIL],
    ):
        main([*arguments, "--quiet", "--json"])
    return base, energy, student, texts


def width(report: dict) -> float:
    return report["log_z"]["high"] - report["log_z"]["low"]


def test_measure_uses_the_student_and_its_interval_is_narrower(capsys, folders):
    base, energy, student, texts = folders
    plain = answer(capsys, "measure", base, "--energy", energy, "--data", texts, "--draws", "2000")
    proposed = answer(capsys, "measure", base, "--energy", energy, "--data", texts, "--draws", "1000", "--proposal", student)
    assert (proposed["proposal"], proposed["proposal_base_share"]) == (student, 0.1) and "proposal" not in plain
    assert width(proposed) < 0.6 * width(plain) and proposed["reliability"] == "good"
    assert proposed["log_z"]["low"] < plain["log_z"]["high"] and plain["log_z"]["low"] < proposed["log_z"]["high"]
    alone = answer(capsys, "measure", base, "--energy", energy, "--data", texts, "--proposal", student,
                   "--proposal-base-share", "0")  # fmt: skip
    assert alone["proposal_base_share"] == 0 and width(alone) < width(proposed)  # 4,000 draws


def test_distil_offers_the_command_and_it_runs(capsys, folders):
    base, energy, student, texts = folders
    model = esscher.load(base, energy=energy)
    out = f"{student}-again"
    settings = DistilRun(out, data=texts, distil=DistilConfig(draws=1000, candidates=2000, evaluation_draws=500),
                         training=DistilTraining(epochs=6, learning_rate=1e-2))  # fmt: skip
    offer = distil_model(model, settings).report.notes[-1].partition("\n")[2]
    words = shlex.split(offer)
    assert words[:2] == ["esscher", "measure"] and words[words.index("--proposal") + 1] == out
    assert answer(capsys, *words[1:])["proposal"] == out


@pytest.mark.parametrize("sampler", [None, Importance(), SIR(200), Metropolis(100), QuasiRejection(5.0), ParticleSIR(64, 2)])
def test_every_sampler_of_the_command_line_takes_the_student(folders, sampler):
    base, energy, student, _ = folders
    model = esscher.load(base, energy=energy)
    result = model.sample(draws=200, sampler=sampler, proposal=student)
    weight = [row["log_weight"] for row in result.samples]
    share = sum("101" in text for text in result.texts) / 200
    assert result.report.facts["proposal"] == student and "drawn_from_the_proposal" in result.facts
    assert share > 0.6 and (isinstance(sampler, Importance) or set(weight) == {0.0})
    for row in result.samples[:5]:
        assert row["energy"] == pytest.approx(model.score([row["text"]]).energy[0], abs=1e-6)


def test_candidates_have_their_own_energies(folders):
    base, energy, student, _ = folders
    model = esscher.load(base, energy=energy)
    (rows,) = model.sample(draws=2, sampler=SIR(50), proposal=student).candidates
    for row in rows[:5]:
        assert row["energy"] == pytest.approx(model.score([row["text"]]).energy[0], abs=1e-6)


def test_python_takes_a_loaded_model(folders):
    base, energy, student, texts = folders
    model, plain = esscher.load(base, energy=energy), esscher.load(student)
    assert model.measure(texts, draws=500, proposal=plain).report.facts["proposal"] == student
    assert model.sample(draws=3, proposal=plain, proposal_base_share=0.3).facts["drawn_from_the_proposal"] > 0


def test_a_student_proposes_for_the_next(folders, tmp_path):
    base, energy, student, _ = folders
    model = esscher.load(base, energy=energy)
    config, training = DistilConfig(draws=500, candidates=1000, evaluation_draws=300), DistilTraining(epochs=1)
    second = model.distil(out=str(tmp_path / "second"), distil=config, training=training, proposal=student)
    assert second.folder == tmp_path / "second" and student in (tmp_path / "second" / "distil.yaml").read_text()
    again = DistilConfig("reweighted", draws=500, candidates=1000, evaluation_draws=300)
    with pytest.raises(ValueError, match=r"reweighted learns from draws of the base itself.*Nothing was drawn"):
        model.distil(out=str(tmp_path / "third"), distil=again, training=training, proposal=student)


def test_kept_draws_belong_to_their_proposal(folders, tmp_path):
    base, energy, student, texts = folders
    model, out = esscher.load(base, energy=energy), str(tmp_path / "measured")
    first = model.measure(texts, draws=300, proposal=student, out=out)
    assert model.measure(texts, draws=300, proposal=student, out=out).nats["tilted"] == first.nats["tilted"]
    for other in ({}, {"proposal": base}, {"proposal": student, "proposal_base_share": 0.2}):
        with pytest.raises(ValueError, match=r"was made with proposal.*Nothing was changed"):
            model.measure(texts, draws=300, out=out, **other)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sampler": Ancestral()}, "Ancestral takes no proposal. Nothing was drawn; choose a sampler that weighs"),
        (
            {"sampler": Importance(random_automaton(Space(3, 7, eos=0)))},
            "The sampler has a proposal, and the settings name another",
        ),
        ({"proposal_base_share": 1.0}, "proposal_base_share is at least 0 and below 1, not 1.0"),
        ({"proposal": None, "proposal_base_share": 0.5}, "is for a proposal, and none is named"),
    ],
)
def test_mistakes_are_named(folders, settings, message):
    base, energy, student, _ = folders
    with pytest.raises(ValueError, match=message):
        esscher.load(base, energy=energy).sample(draws=2, **{"proposal": student, **settings})


def test_models_that_cannot_propose_are_refused(capsys, folders, tmp_path):
    base, energy, student, texts = folders
    tilted = esscher.load(base, energy=energy)
    with pytest.raises(ValueError, match="is tilted, so it cannot be drawn from directly"):
        tilted.sample(draws=2, proposal=tilted)
    other = str(tmp_path / "other")
    main(["train", "--out", other, "--data", "motif:201", "--data.alphabet", "012", "--quiet", *TINY[2:]])
    code, _, err = call(capsys, "sample", base, "--energy", energy, "--proposal", other)
    assert code == 1 and "The proposal draws from Space" in " ".join(err.split())
    code, _, err = call(capsys, "measure", base, "--data", texts, "--proposal", student)
    assert code == 1 and "was loaded without an energy" in " ".join(err.split())
