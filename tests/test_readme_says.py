"""What the commands of the README print is what the README says: the interval holds the wanted share, the draws continue the
prompt. On a tiny model in place of SmolLM2, and slowly on SmolLM2 itself."""

import re
import shlex
from pathlib import Path

import pytest
from causal_models import save_text_model
from cli_calls import answer
from pages import HOME, commands_of

from esscher.hub.packaged_models import is_available

README = (HOME / "README.md").read_text(encoding="utf8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
COMMANDS = {
    words[1]: words[1:] for kind, block in BLOCKS if kind == "bash" for words in commands_of(block) if words[0] == "esscher"
}
PYTHON = next(block for kind, block in BLOCKS if kind == "py")
WANTED, PROMPT = 0.5, "The chef came out of the kitchen and"
TINY = {PROMPT: "ab", "she,her,hers,herself": "a,ba", "40": "3", "20": "4"}  # the same commands for a model of three letters


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> dict[str, str]:
    """What the words of the README are for a tiny model."""
    root = tmp_path_factory.mktemp("readme")
    return {**TINY, "smollm2": str(save_text_model(root / "model")), "runs/": f"{root}/"}


@pytest.fixture(scope="module")
def real(tmp_path_factory) -> dict[str, str]:
    if not is_available("smollm2"):
        pytest.skip("SmolLM2 is not installed")
    return {"runs/": f"{tmp_path_factory.mktemp('readme')}/"}


def words_for(command: list[str], words: dict[str, str]) -> list[str]:
    """A command of the README with other words in it; a short word stands alone, a longer one anywhere."""
    out = []
    for word in command:
        for old, new in words.items():
            word = new if word == old else word.replace(old, new) if len(old) > 2 else word
        out.append(word)
    return out


def check_tilt_and_sample(capsys, words: dict[str, str], prompt: str, *, slack: float = 0.0) -> None:
    """The fitted weight has an error of its own, about as large as that of the check, so the interval alone holds the wanted
    share for most seeds and not for all; of SmolLM2 the README shows one for which it does."""
    (row,) = answer(capsys, *words_for(COMMANDS["tilt"], words))["features"]
    low, high = row["tilted"]["low"], row["tilted"]["high"]
    assert low - slack < WANTED < high + slack, "the interval of the README's own command excludes what it wants"
    assert high - low < 0.4 and abs(row["in the base"] - WANTED) > 0.1
    sampled = answer(capsys, *words_for(COMMANDS["sample"], words))
    assert len(sampled["samples"]) == 5 and {row["prompt"] for row in sampled["samples"]} == {prompt}
    assert sampled["prompts"][0]["verdict"] == "good"


def check_python(capsys, words: dict[str, str]) -> None:
    block = PYTHON
    for old, new in words.items():
        block = block.replace(f"top_k={old}", f"top_k={new}").replace(f"max_length={old}", f"max_length={new}")
        block = block.replace(old, new) if len(old) > 2 else block
    names: dict = {}
    exec(compile(block, "README.md", "exec"), names)
    assert len(capsys.readouterr().out.splitlines()) >= 5
    assert abs(names["tilted"].energy.weights[0].value) > 0 and names["tilted"].stored_prompt == names["prompt"]


def test_the_commands_say_what_they_should(tiny, capsys):
    check_tilt_and_sample(capsys, tiny, "ab", slack=0.05)


def test_the_python_block_runs(tiny, capsys):
    check_python(capsys, tiny)


@pytest.mark.slow
def test_the_commands_say_what_they_should_of_smollm2(real, capsys):
    check_tilt_and_sample(capsys, real, PROMPT)


@pytest.mark.slow
def test_the_python_block_runs_on_smollm2(real, capsys):
    check_python(capsys, real)


def test_the_first_screen_says_what_it_is():
    """What it does and for whom, the picture, and how to install it, before anything else; and not too much of it."""
    first = README[: README.index("## Install")]
    assert "quickstart.png" in first and "It is for people" in first and "whole sequences" in first
    prose = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    assert len(prose.split()) < 1150
    assert "best-of-n" in README and "source .venv/bin/activate" in README


def test_its_links_lead_somewhere():
    for target in re.findall(r"\]\(((?!https?:)[^)#]+)", README):
        assert (Path(HOME) / target).exists(), shlex.quote(target)
