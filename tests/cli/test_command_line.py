"""The command line as a user meets it: contracts of the output, settings from files, errors that say what to do."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from cli_calls import answer, call

from esscher.cli import main
from esscher.cli.commands import COMMANDS, GROUPS
from esscher.core.device import resolve_device
from esscher.networks.registry import NETWORKS

TINY = [
    *("--data", "motif:101", "--data.length", "6", "--data.size", "60", "--base.kind", "lstm", "--base.width", "8"),
    *("--training.steps", "4"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "base"
    main(["train", "--out", str(folder), *TINY, "--quiet", "--json"])
    return folder


PAGES = ["", *GROUPS, *COMMANDS, "train --base.kind xlnet", "sample --sampler.kind rejection"]
SHOW_HELP = """
import contextlib, io, json, sys
from esscher.cli import main
for page in sys.argv[1:]:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        main([*page.split(), "--help"])
    print(json.dumps([shown.getvalue(), "torch" in sys.modules]))
"""


@pytest.fixture(scope="module")
def help_pages():
    """What each page shows, and whether torch is there after it: all in one process that has nothing else."""
    done = subprocess.run([sys.executable, "-c", SHOW_HELP, *PAGES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(PAGES, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("page", PAGES)
def test_help_imports_no_torch_and_shows_an_example(help_pages, page):
    shown, torch_is_there = help_pages[page]
    assert not torch_is_there
    verb = page.partition(" --")[0]
    assert f"Usage: esscher {verb}" in shown
    assert shown.count("Example: ") == (page not in ("", *GROUPS))
    assert f"Example: esscher {verb}" in shown or page in ("", *GROUPS)


def test_help_is_found_beside_other_words_too(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    whole = call(capsys, "exact", "motif", "--help")
    assert whole[0] == 0 and "--mixture" in whole[1] and whole[1].count("Strings of one length") == 1
    assert call(capsys, "exact", "motif", "--length", "3", "-h") == call(capsys, "exact", "--help", "motif") == whole
    code, _, err = call(capsys, "exact", "motiv", "--help")
    assert code != 0 and "motiv" in err


def test_help_of_a_verb_has_the_sentence_of_the_overview_and_then_that_of_its_settings(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    pages = [call(capsys, "measure", *before, "--help")[1] for before in ((), (), ("--seed", "3"))]
    assert pages[0] == pages[1] == pages[2]
    assert pages[0].index(COMMANDS["measure"].help) < pages[0].index("Longer texts than the model's sequences are cut")
    assert "Longer texts" not in call(capsys, "--help")[1]


def test_help_after_a_kind_shows_the_settings_of_that_kind_and_no_others(help_pages):
    xlnet, default = help_pages["train --base.kind xlnet"][0], help_pages["train"][0]
    assert "--base.memory" in xlnet and "--base.memory" not in default
    assert all(kind in default.replace("\n", " ") for kind in ("lstm", "xlnet", "pixelcnn")) and len(NETWORKS) > 10
    assert "--sampler.log-bound" in help_pages["sample --sampler.kind rejection"][0]


def test_exact_motif_prints_the_contract(capsys):
    output = answer(capsys, "exact", "motif", "--motif", "10001011111000", "--length", "30", "--mixture", "0.9")
    assert output["count"] == 1113640
    assert output["log_z"] == pytest.approx(13.92314, abs=1e-5)
    assert output["entropy_per_symbol"] == pytest.approx(0.44913, abs=5e-6)
    assert output["mixture_entropy_per_symbol"] == pytest.approx(0.48178, abs=5e-6)


def test_exact_language_counts_by_pattern(capsys):
    output = answer(capsys, "exact", "language", "(0|10)*1?", "--length", "20")
    assert round(2.718281828459045 ** output["log_count"]) == 17711  # a Fibonacci number
    assert "abc" in call(capsys, "exact", "motif", "--motif", "abc", "--alphabet", "abc", "--length", "4")[1]


def test_tilt_and_distil_leave_folders_that_the_other_verbs_read(capsys, model, tmp_path):
    energy, student = str(tmp_path / "energy"), str(tmp_path / "student")
    output = answer(
        capsys, "tilt", str(model), "--out", energy, "--feature", "contains:101", "--want", "starts-with:0=0.7",
        "--fit.draws", "500", "--quiet", "--training.seed", "3",
    )  # fmt: skip
    assert [row["feature"] for row in output["features"]] == ["contains 101", "starts-with 0"] and output["seed"] == 3
    assert {"value", "low", "high", "method"} <= set(output["kl_to_the_base"])
    few = ("--distil.draws", "200", "--distil.candidates", "400", "--distil.evaluation-draws", "100", "--training.epochs", "1")
    made = answer(capsys, "distil", str(model), "--energy", energy, "--out", student, *few, "--quiet", "--training.seed", "4")
    assert (
        made["drawn"] == 400
        and made["seed"] == 4
        and {row["feature"] for row in made["features"]}
        == {
            "contains 101",
            "starts-with 0",
        }
    )
    assert len(answer(capsys, "sample", student, "--draws", "2")["samples"]) == 2
    code, _, err = call(capsys, "distil", str(model), "--energy", energy, "--out", student)
    assert code == 1 and "--resume" in err
    code, _, err = call(capsys, "tilt", str(model), "--out", energy, "--feature", "holds:101")
    assert code == 1 and "holds" in err and "contains" in err


def test_recipes_are_listed_and_run(capsys, tmp_path):
    listed = answer(capsys, "reproduce", "--list")["recipes"]
    assert {"name", "paper", "scales"} <= set(listed[0])
    assert {"smoke", "small", "paper"} <= set(listed[0]["scales"])
    result = answer(capsys, "reproduce", "laboratory", "--scale", "smoke", "--out", str(tmp_path), "--seeds", "1")
    assert result.pop("report") == str(tmp_path / "report.html")
    assert len(result["rows"]) == 6
    assert result["paper"][0]["entropy_per_symbol"] == 0.449
    assert json.loads((tmp_path / "result.json").read_text()) == result


def test_train_sample_and_measure_work_together(capsys, model, tmp_path):
    drawn = answer(capsys, "sample", str(model), "--prompt", "1", "--prompt", "", "--draws", "3", "--seed", "5")
    assert drawn["seed"] == 5
    assert [row["prompt"] for row in drawn["samples"]] == ["1"] * 3 + [""] * 3
    again = answer(capsys, "sample", str(model), "--prompt", "1", "--prompt", "", "--draws", "3", "--seed", "5")
    assert again["samples"] == drawn["samples"]
    texts = tmp_path / "my.txt"
    texts.write_text("101010\n\n001011\n110110\n")
    output = answer(capsys, "measure", str(model), "--data", str(texts))
    assert "1 empty line skipped" in output["data"]
    per_token = output["perplexities"][0]
    assert (per_token["model"], per_token["per"]) == ("base", "token")
    assert per_token["perplexity"]["low"] < per_token["perplexity"]["value"] < per_token["perplexity"]["high"]


def test_truncated_sampling_is_reached_from_the_command_line(capsys, model):
    greedy = answer(capsys, "sample", str(model), "--draws", "5", "--top-k", "1")["samples"]
    assert len({row["text"] for row in greedy}) == 1
    assert greedy[0]["log_base"] == pytest.approx(0)


def test_data_and_env(capsys):
    output = answer(capsys, "data", "--data", "motif:101", "--data.length", "6", "--data.size", "60")
    assert [row["sequences"] for row in output["sets"]] == [60, 500, 5000]
    assert all("101" in row["example"] for row in output["examples"])
    found = answer(capsys, "env")
    assert found["python"].startswith("3.") and found["device_auto"] == str(resolve_device("auto"))
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = {row["extra"] for row in found["packages"]} - {""}
    assert extras == set(project["optional-dependencies"]) - {"dev", "docs"}
    if torch.version.cuda is None:
        assert found["cuda"] == "none: this build of torch has no CUDA" and [row["device"] for row in found["devices"]] == [
            "cpu"
        ]


def test_defaults_then_file_then_flags(capsys, tmp_path):
    settings = tmp_path / "settings.yaml"
    settings.write_text("data:\n  source: motif:101\n  length: 6\n  size: 77\n")
    assert answer(capsys, "data", "--config", str(settings))["sets"][0]["sequences"] == 77
    assert answer(capsys, "data", "--config", str(settings), "--data.size", "66")["sets"][0]["sequences"] == 66


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:\n  sorce: x\n", r"[data][sorce]"),
        ("trainin:\n  steps: 3\n", "trainin"),
        ("base:\n  on: text\n", "has the key True, which is no word"),
        ("training:\n  steps: many\n", "many"),
        ("data: [x\n", "is not valid YAML"),
        ("- x\n", "holds no mapping"),
    ],
)
def test_a_wrong_file_names_file_and_key(capsys, tmp_path, text, message):
    settings = tmp_path / "settings.yaml"
    settings.write_text(text)
    code, _, err = call(capsys, "train", "--out", str(tmp_path / "run"), "--config", str(settings))
    assert code != 0
    flat = " ".join(err.replace("│", " ").split()).replace(" ", "")
    assert message.replace(" ", "") in flat
    assert "many" in message or settings.name in flat
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "MODEL", "--sampler.kind", "magic"], "Unknown kind of sampler 'magic'; the known kinds are ancestral"),
        (["sample", "nowhere"], "There is no model folder nowhere"),
        (["sample", "MODEL", "--energy", "nowhere"], "There is no energy in nowhere"),
        (["sample", "MODEL", "--prompt", "2"], "cannot read a text"),
        (["measure", "MODEL", "--data", "nowhere.txt"], "There is no file, folder or pattern 'nowhere.txt'"),
        (["reproduce", "nothing"], "No recipe named 'nothing'. Choose from: quickstart"),
        (["reproduce", "laboratory", "--scale", "huge"], "has no scale 'huge'"),
        (["exact", "motif", "--motif", "012"], "not in the alphabet"),
        (["env", "--config", "nowhere.yaml"], "There is no file nowhere.yaml"),
    ],
)
def test_errors_say_what_to_do(capsys, model, arguments, message):
    inputs = [str(model) if argument == "MODEL" else argument for argument in arguments]
    code, out, err = call(capsys, *inputs, "--json")
    assert code == 1
    assert message in err
    assert json.loads(out.splitlines()[-1])["error"] == err.removeprefix("esscher: ").strip()


def test_an_empty_file_is_an_error(capsys, tmp_path):
    empty = tmp_path / "empty.txt"
    empty.write_text("")
    code, _, err = call(capsys, "train", "--out", str(tmp_path / "run"), "--data", str(empty))
    assert (code, "is empty. Nothing was read" in err) == (1, True)


def test_a_run_is_not_overwritten_but_resumed(capsys, model):
    code, _, err = call(capsys, "train", "--out", str(model), *TINY, "--quiet")
    assert (code, "resume it, or choose another folder" in err) == (1, True)
    output = answer(capsys, "train", "--out", str(model), *TINY, "--quiet", "--resume")
    assert output["steps"] == 4


def test_the_keyboard_stops_with_a_word_about_the_work(capsys, monkeypatch):
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("esscher.papers.find_recipe", interrupted)
    code, _, err = call(capsys, "reproduce", "laboratory")
    assert (code, "What was saved is kept" in err) == (130, True)
