"""Calls of the command line in forks: which blocks are only that, and that what goes wrong in them is seen."""

import pytest
from forks import call_esscher, calls_of_esscher


def test_blocks_that_only_call_esscher():
    block = 'esscher exact language "(0|10)*1?" --length 20\n\nesscher data --data.source motif:11\n'
    assert calls_of_esscher(block) == [
        ["exact", "language", "(0|10)*1?", "--length", "20"],
        ["data", "--data.source", "motif:11"],
    ]


@pytest.mark.parametrize(
    "line",
    ["esscher env | head", "esscher env > file", "printf 1", "esscher data $HOME", 'esscher data "$HOME"', "esscher env  # why",
     "esscher data *.txt", "esscher train \\", "cd runs && esscher env", "esscher env; true"],
)  # fmt: skip
def test_blocks_that_need_a_shell(line):
    assert calls_of_esscher(f"esscher env\n{line}") is None


def test_what_is_said_and_what_goes_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, said = call_esscher(["exact", "motif", "--motif", "101", "--length", "6", "--json"], seconds=60)
    assert code == 0 and '"count": 27' in said
    code, said = call_esscher(["sample", "nothing"], seconds=60)
    assert code == 1 and "nothing" in said
    assert call_esscher(["sample", "--no-such-flag"], seconds=60)[0] not in (0, None)
    assert call_esscher(["exact", "motif", "--motif", "101", "--length", "6"], seconds=0)[0] < 0  # too slow, so killed
