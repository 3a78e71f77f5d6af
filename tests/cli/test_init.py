"""esscher init: a YAML file for every verb that --config reads back to the defaults."""

import shlex

import pytest
import yaml
from cli_calls import answer, call
from marks import slow

from esscher.cli.app import build_app, check_arguments, expanded, read_settings
from esscher.cli.binding import settings_from
from esscher.cli.commands import COMMANDS
from esscher.cli.init import settings_file
from esscher.networks.registry import NETWORKS
from esscher.objectives.config import OBJECTIVES
from esscher.samplers.registry import SAMPLERS

VERBS = [verb for verb in COMMANDS if verb != "init"]
FAST = ("xlnet", "pixelcnn", "rejection")
KINDS = [
    *(("train", ("--base.kind", kind)) for kind in NETWORKS),
    *(("train", ("--base.kind", "xlnet", "--objective.kind", kind)) for kind in OBJECTIVES),
    *(("sample", ("--sampler.kind", kind)) for kind in SAMPLERS),
    ("tilt", ("--energy.network.kind", "lstm")),
    ("translate", ("--decoder.kind", "best-of-n")),
]
CASES = [case if case[1][-1] in FAST or case[0] == "tilt" else slow(*case) for case in KINDS]
REQUIRED = {"rejection": ("--sampler.log-bound", "1"), "quasi-rejection": ("--sampler.log-bound", "1")}


def bound_settings(tokens, file=None):
    app = build_app(tokens) if file is None else build_app(tokens, read_settings(file), str(file))
    _, bound, _ = app.parse_args(expanded(tokens), exit_on_error=False, print_error=False)
    return {name: settings_from(value) for name, value in bound.arguments.items()}


def check_round_trip(tmp_path, verb, kinds):
    """The example of the verb has the same settings with the file and without it."""
    file = tmp_path / "settings.yaml"
    file.write_text(settings_file(verb, kinds, str(file)), encoding="utf8")
    example = [word for word in shlex.split(COMMANDS[verb].example.partition(";")[0])[1:] if word != "--json"]
    tokens = [*example, *kinds, *(flag for kind in kinds for flag in REQUIRED.get(kind, ()))]
    assert bound_settings(tokens, file) == bound_settings(tokens)
    if kinds:  # the file alone chooses the kind, too
        without = [*example, *(flag for kind in kinds for flag in REQUIRED.get(kind, ()))]
        assert bound_settings(without, file) == bound_settings(tokens)
    return file.read_text(encoding="utf8")


@pytest.mark.parametrize("verb", VERBS)
def test_the_file_of_a_verb_reads_back_to_the_defaults(tmp_path, verb):
    text = check_round_trip(tmp_path, verb, ())
    assert f"esscher {verb} --config" in text and max(map(len, text.replace(str(tmp_path), "").splitlines())) <= 128


@pytest.mark.parametrize(("verb", "kinds"), CASES, ids=lambda value: value if isinstance(value, str) else " ".join(value))
def test_the_file_has_the_settings_of_the_kinds_chosen(tmp_path, verb, kinds):
    text = check_round_trip(tmp_path, verb, kinds)
    assert f"kind: {kinds[1]}" in text


def test_every_setting_has_its_help_and_its_choices():
    text = settings_file("train", ("--base.kind", "xlnet"), "train.yaml")
    values = yaml.safe_load(text)
    assert values["base"]["kind"] == "xlnet" and values["training"]["batch_size"] == 32
    assert "# Sequences of one update, shared by all processes.\n  batch_size: 32" in text
    assert "One of: adam, adamw, adagrad, sgd." in text and "# out:  # required" in text
    assert "  # steps:\n" in text  # None by default
    tilt = yaml.safe_load(settings_file("tilt", (), "tilt.yaml"))
    assert "data" not in tilt and "want" not in tilt  # by default the data of the base; nothing is wanted


def test_the_verb_writes_a_file_or_prints_it(capsys, tmp_path):
    file = tmp_path / "deep" / "measure.yaml"
    output = answer(capsys, "init", "measure", "--out", str(file))
    assert output["file"] == str(file) and output["use"] == f"esscher measure --config {file}"
    code, out, _ = call(capsys, "init", "measure")
    assert code == 0 and yaml.safe_load(out) == yaml.safe_load(file.read_text())
    code, out, _ = call(capsys, "init", "analyse", "next-token")
    assert code == 0 and yaml.safe_load(out)["top"] == 10
    code, _, err = call(capsys, "init", "measure", "--out", str(file))
    assert code == 1 and "exists already" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "There is no verb 'trian'. Nothing was written; the verbs are: train"),
        (["train", "--training.steps", "3"], "--training.steps does not choose a kind"),
        (["train", "--base.kind", "magic"], "Unknown kind of network 'magic'"),
        (["init"], "There is no verb 'init'"),
    ],
)
def test_errors_say_what_to_do(capsys, words, message):
    code, _, err = call(capsys, "init", *words)
    assert code == 1 and message in err


def test_documented_calls_are_read():
    check_arguments(["init", "train", "--base.kind", "xlnet", "--out", "train.yaml"])
