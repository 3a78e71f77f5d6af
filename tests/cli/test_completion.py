"""Completion in shells: candidates of the command line as typed so far, scripts that shells accept."""

import os
import shutil
import subprocess
import sys

import pytest
from cli_calls import answer, call

from esscher.cli import main
from esscher.cli.completion import SCRIPTS, script_path


def candidates(capsys, *words: str) -> list[str]:
    capsys.readouterr()
    main(["__complete", *words])
    return [line.partition("\t")[0] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["tr"], ["train", "translate"]),
        (["analyse", "n"], ["next-token", "n-grams"]),
        (["train", "--base.kind", "transformer"], ["transformer", "transformer-xl"]),
        (["train", "--base.kind", "xlnet", "--base.mem"], ["--base.memory"]),
        (["train", "--base.mem"], []),  # not of the default kind
        (["sample", "runs/first", "--sampler.kind", "sir", "--sampler.s"], ["--sampler.shared"]),
        (["measure", "runs/first", "--dr"], ["--draws", "--dry-run"]),
        (["train", "--length.no-c"], ["--length.no-chunks"]),
        (["train", "--data", "my"], []),  # paths, which the shell completes
        (["nothing", "--x"], []),
        (["--install"], ["--install-completion"]),
    ],
)
def test_candidates(capsys, words, found):
    assert candidates(capsys, *words) == found


def test_candidates_have_their_help_and_need_no_torch():
    code = "import sys; from esscher.cli import main; main(['__complete', 'train', '--base.kind', 'lstm', '--base.w'])\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "print('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    line, *_, torch_is_there = done.stdout.splitlines()
    assert line.startswith("--base.w") and len(line.partition("\t")[2]) > 10 and torch_is_there == "False"


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_is_installed_where_the_shell_looks(capsys, tmp_path, monkeypatch, shell):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    output = answer(capsys, "--install-completion", shell)
    file = script_path(shell)
    assert output["script"] == str(file) and file.is_relative_to(tmp_path) and file.read_text() == SCRIPTS[shell]
    started = None if shell == "fish" else f".{shell}rc"
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == ({started} if started else set())
    again = answer(capsys, "--install-completion", shell)
    assert again["added_a_line_to"] is None or started is None  # not twice


def test_an_unknown_shell_is_refused(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert call(capsys, "--install-completion", "tcsh")[0] != 0
    monkeypatch.setattr("cyclopts.completion.detect_shell", lambda: "powershell")
    code, _, err = call(capsys, "--install-completion")
    assert code == 1 and "name it: esscher --install-completion bash" in err and list(tmp_path.iterdir()) == []


ASK = {
    "bash": 'source {script}; COMP_WORDS=(esscher tr); COMP_CWORD=1; _esscher; printf "%s\\n" "${{COMPREPLY[@]}}"',
    "fish": "source {script}; complete -C 'esscher tr'",
    "zsh": "source {script}; compadd() {{ print -l -- ${{@[5,-1]}} }}; words=(esscher tr); CURRENT=2; _esscher",
}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_shells_run_the_script(tmp_path, shell):
    """A stand-in for the program answers, so that the shell's own part is what is tested."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "esscher").write_text(
        '#!/bin/sh\n[ "$*" = "__complete tr" ] && printf "train\\ta verb\\ntranslate\\tanother\\n"\n'
    )
    (tmp_path / "esscher").chmod(0o755)
    script = tmp_path / "script"
    script.write_text(SCRIPTS[shell])
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [shell, "-c", ASK[shell].format(script=script)], env=environment, capture_output=True, text=True, check=False
    )
    assert [line.split("\t")[0] for line in done.stdout.split("\n") if line] == ["train", "translate"], done.stderr


def test_the_flag_is_in_the_overview(capsys):
    assert "--install-completion" in call(capsys, "--help")[1]
