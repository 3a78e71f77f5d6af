"""esscher analyse as a user meets it: tables, pictures, JSON, errors."""

import pytest
from cli_calls import answer, call

from esscher.cli import main
from esscher.cli.app import build_app, expanded
from esscher.cli.binding import settings_from
from esscher.data.config import SourceConfig
from esscher.workflow.analyse import encode_prompt
from esscher.workflow.config.analyse import ClassifierTraining, DiscriminateConfig
from esscher.workflow.model import load

TINY = ["--data", "motif:101", "--data.length", "6", "--data.size", "60", "--base.kind", "transformer", "--base.width", "8",
        "--base.layers", "1", "--base.heads", "2", "--base.feedforward", "16", "--training.steps", "4",
        "--device", "cpu"]  # fmt: skip
FIT = ["--feature", "contains:101", "--fit.draws", "500"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Folders of a base and of an energy, and a file of texts."""
    folder = tmp_path_factory.mktemp("analysed")
    main(["train", "--out", str(folder / "base"), *TINY, "--quiet", "--json"])
    main(["tilt", str(folder / "base"), "--out", str(folder / "energy"), *FIT, "--quiet", "--json"])
    (folder / "my.txt").write_text("\n".join(f"{number:06b}" for number in range(64)) + "\n")
    return folder


def flags(model):
    return [str(model / "base"), "--energy", str(model / "energy"), "--data", str(model / "my.txt")]


def test_energies(capsys, model, tmp_path):
    plot = tmp_path / "deep" / "energies.png"
    few = ("--sequences", "30", "--draws", "8", "--quiet", "--seed", "3")
    output = answer(capsys, "analyse", "energies", *flags(model), *few, "--plot", str(plot))
    assert [row["of"] for row in output["energies"]] == ["data", "base", "joint"]
    assert output["seed"] == 3 and output["sequences"] == 30 and output["drawn_from_the_base"] == 240
    assert {"value", "low", "high", "method"} <= set(output["energies"][2]["distance to data"])
    assert len(output["histogram"]["edges"]) == len(output["histogram"]["joint"]) + 1
    assert plot.read_bytes()[:4] == b"\x89PNG" and output["plot"] == str(plot)
    assert answer(capsys, "analyse", "energies", *flags(model), *few)["energies"] == output["energies"]
    held_out = flags(model)[:3]
    code, out, _ = call(capsys, "analyse", "energies", *held_out, *few)
    assert code == 0 and "distance" in out and "held out" in out


def test_next_token(capsys, model, tmp_path):
    where = [str(model / "base"), "--energy", str(model / "energy")]
    few = ("--draws", "30", "--top", "2", "--plot", str(tmp_path / "next.svg"))
    output = answer(capsys, "analyse", "next-token", *where, "--prompt", "10", *few)
    rows = output["next_tokens"]
    assert sum(row["joint"]["value"] for row in rows) == pytest.approx(1)
    assert sum(row["base"]["value"] for row in rows) == pytest.approx(1)
    assert rows[0]["base"]["n"] == 0 and output["prompt_tokens"] == 2
    assert (tmp_path / "next.svg").is_file()
    assert answer(capsys, "analyse", "next-token", *where, "--prompt", "", *few)["prompt_tokens"] == 0


def test_n_grams(capsys, model, tmp_path):
    few = ("--sequences", "30", "--draws", "8", "--longest", "3", "--quiet", "--plot", str(tmp_path / "n-grams.png"))
    rows = answer(capsys, "analyse", "n-grams", *flags(model), *few)["unique_ngrams"]
    assert [row["n"] for row in rows] == [1, 2, 3]
    assert all(0 <= row[name]["low"] <= row[name]["high"] <= 1 for row in rows for name in ("data", "base", "joint"))
    assert (tmp_path / "n-grams.png").is_file()


def test_discriminate(capsys, model, tmp_path):
    few = ("--sequences", "60", "--draws", "4", "--training.steps", "4", "--quiet", "--plot", str(tmp_path / "told.png"))
    output = answer(capsys, "analyse", "discriminate", *flags(model), *few, "--training.seed", "5")
    assert [row["draws of"] for row in output["against_data"]] == ["base", "joint"]
    assert all(
        0 <= row[key]["low"] <= row[key]["high"] <= 1 for row in output["against_data"] for key in row if key != "draws of"
    )
    assert output["sequences"] == "training 36 validation 6 test 18" and output["seed"] == 5
    assert (tmp_path / "told.png").is_file()


def test_one_setting_of_training_leaves_the_others(model):
    base, *rest = flags(model)
    tokens = ["analyse", "discriminate", base, *rest, "--training.steps", "7", "--classifier.pooling", "sum"]
    _, bound, _ = build_app(tokens).parse_args(expanded(tokens))
    settings = settings_from(bound.arguments["settings"])
    assert isinstance(settings, DiscriminateConfig) and settings.data == SourceConfig(str(model / "my.txt"))
    assert settings.training == ClassifierTraining(steps=7) and settings.classifier.pooling == "sum"


def test_errors_say_what_to_do(capsys, model, tmp_path):
    base, energy, data = str(model / "base"), str(model / "energy"), str(model / "my.txt")
    few = ("--sequences", "10", "--draws", "4", "--quiet")
    for arguments, message in (
        (["energies", base, "--energy", str(tmp_path), "--data", data], "no energy"),
        (["energies", base, "--energy", energy, "--data", str(tmp_path / "none.txt")], "none.txt"),
        (["energies", base, "--energy", energy, "--data", data, *few, "--plot", str(tmp_path / "x.nothing")], "png"),
        (["energies", base, "--energy", energy, "--data", data, "--sequences", "0"], "sequences is at least 1"),
        (["energies", base, "--energy", energy, "--data", data, "--draws", "1"], "at least 2"),
        (["n-grams", base, "--energy", energy, "--data", data, *few, "--longest", "9"], "No point"),
        (
            ["discriminate", base, "--energy", energy, "--data", data, "--classifier.encoder", str(tmp_path / "none"), *few],
            "none",
        ),
    ):
        code, _, err = call(capsys, "analyse", *arguments)
        assert code == 1 and message in err, (arguments, err)
    assert call(capsys, "analyse", "energies", base, "--data", data)[0] != 0  # an energy must be named


def test_an_empty_prompt_is_an_error_where_one_must_be_given(model):
    loaded = load(model / "base", prompt_tokens=4)
    with pytest.raises(ValueError, match=r"continues prompts of 4 tokens"):
        encode_prompt(loaded, "")
    tokens, notes = encode_prompt(loaded, "101")
    assert int(tokens.start[0]) == 3 and "prompts of 4 tokens, and this one has 3" in notes[0]
    assert encode_prompt(loaded, "1011")[1] == []
    assert encode_prompt(load(model / "base"), "")[1] == []
