"""N-best lists from files: every form, what is refused, and where the message points."""

import gzip
import json

import pytest

from esscher.data.nbest import Candidate, NBest, read_nbest, split_by_id

OURS = {
    "id": "a-1",
    "reference": "the cat sat",
    "candidates": [{"text": "the cats at", "score": -1.5}, {"text": "the cat sat", "score": -2}],
}
READ = NBest("a-1", (Candidate("the cats at", {"score": -1.5}), Candidate("the cat sat", {"score": -2.0})), ("the cat sat",))


def write(folder, *lines, name="lists.jsonl"):
    file = folder / name
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return file


def test_both_forms_plain_and_compressed_read_alike(tmp_path):
    short = {"id": "a-1", "ref": "the cat sat", "hyps": [[-1.5, "the cats at"], [-2, "the cat sat"]]}
    assert read_nbest(write(tmp_path, OURS)) == read_nbest(write(tmp_path, "", short)) == (READ,)
    with gzip.open(tmp_path / "lists.jsonl.gz", "wt") as file:
        file.write(json.dumps(OURS))
    assert read_nbest(tmp_path / "lists.jsonl.gz") == (READ,)


def test_named_scores_no_scores_and_references(tmp_path):
    named = {"id": "1", "reference": ["a", "é"], "candidates": [{"text": "", "scores": {"x": 1, "y": -0.5}}]}
    (actual,) = read_nbest(write(tmp_path, named))
    assert (actual.names, actual.references, actual.texts) == (("x", "y"), ("a", "é"), [""])
    (bare,) = read_nbest(write(tmp_path, {"id": "1", "candidates": [{"text": "a"}]}))
    assert (bare.names, bare.references) == ((), ())


def test_what_is_written_is_read_again(tmp_path):
    scored = NBest("é", (Candidate("A\nb", {"score": 0.1, "log_base": -1 / 3}),), ("A", "B"), {"log_base": "abc"})
    for item in (scored, READ):
        assert read_nbest(write(tmp_path, item.to_json())) == (item,)
    assert scored.lowered() == NBest("é", (Candidate("a\nb", scored.candidates[0].scores),), ("a", "b"), {"log_base": "abc"})
    assert READ.top(1).texts == ["the cats at"] and READ.top(None) == READ.top(9) == READ


def wrong(**changes):
    return {key: value for key, value in {**OURS, **changes}.items() if value is not None}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": ', "line 2 is not valid JSON"),
        ("[1]", "line 2 holds no list"),
        (wrong(id=None), "line 2: the key 'id' is missing"),
        (wrong(id=7), "line 2: 'id' must be text, not 7"),
        (wrong(refrence="x"), "line 2: the key 'refrence' is unknown; known are 'id', 'reference', 'candidates'"),
        (wrong(candidates=[]), "line 2: 'candidates' is empty"),
        (wrong(candidates=["a"]), r"line 2: 'candidates\[0\]' must be an object, not 'a'"),
        (wrong(candidates=[{"score": 1}]), r"line 2: candidates\[0\]: the key 'text' is missing"),
        (wrong(candidates=[{"text": "a", "score": "1"}]), r"the 'score' of 'candidates\[0\]' must be a finite number, not '1'"),
        (wrong(candidates=[{"text": "a", "scores": {"x": None}}]), r"the 'x' of 'candidates\[0\]' must be a finite number"),
        ('{"id": "b", "candidates": [{"text": "a", "score": NaN}]}', "must be a finite number, not nan"),
        (wrong(candidates=[{"text": "a", "score": True}]), "must be a finite number, not True"),
        (wrong(candidates=[{"text": "a", "score": 1, "scores": {}}]), "has both 'score' and 'scores'"),
        (
            wrong(candidates=[*OURS["candidates"], {"text": "a"}]),
            r"'candidates\[2\]' has the scores none, and candidates\[0\] has",
        ),
        (
            wrong(id="b", candidates=[{"text": "a", "scores": {"x": 1}}]),
            "line 2: the scores are 'x', and before they were 'score'",
        ),
        (wrong(), "line 2: the id 'a-1' is in line 1, too"),
        (wrong(reference=3), "line 2: 'reference' must be text, not 3"),
        ({"id": "b", "ref": "x", "hyps": [["a"]]}, r"line 2: 'hyps\[0\]' must be a pair"),
        ({"id": "b", "ref": "x", "hyps": [], "n": 1}, "line 2: the key 'n' is unknown"),
    ],
)
def test_a_wrong_line_is_told_with_file_line_and_key(tmp_path, line, message):
    with pytest.raises(ValueError, match=message) as error:
        read_nbest(write(tmp_path, OURS, line))
    assert "lists.jsonl" in str(error.value) and "Nothing was read" in str(error.value)


def test_wrong_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_nbest(tmp_path / "nothing")
    with pytest.raises(ValueError, match="holds no n-best list"):
        read_nbest(write(tmp_path, ""))
    (tmp_path / "broken.jsonl.gz").write_bytes(gzip.compress(json.dumps(OURS).encode())[:-9])
    with pytest.raises(ValueError, match="cut short"):
        read_nbest(tmp_path / "broken.jsonl.gz")
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "caf\xe9"}')
    with pytest.raises(ValueError, match="not UTF-8"):
        read_nbest(tmp_path / "latin.jsonl")


def test_the_split_is_by_each_id_alone():
    lists = [NBest(f"id {number}", (Candidate("a"),)) for number in range(400)]
    first, second = split_by_id(lists, 0.5)
    assert 150 < len(first) < 250 and len(first) + len(second) == 400
    fewer, _ = split_by_id(lists[::2], 0.5)
    assert [item.id for item in fewer] == [item.id for item in first if item in lists[::2]]
    assert {item.id for item in split_by_id(lists, 0.2)[0]} < {item.id for item in first}
    for share in (0, 1):
        with pytest.raises(ValueError, match="between 0 and 1"):
            split_by_id(lists, share)
    with pytest.raises(ValueError, match="1 lists are too few"):
        split_by_id(lists[:1], 0.5)
