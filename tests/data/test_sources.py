"""Texts from files: every kind, what is skipped, and what is said of bad input."""

import gzip
import json

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest

from esscher.data.sources import Texts, read_texts, split_by_hash, split_by_position

LINES = ["the cat sat", "", "on the mat", "   ", "é 漢"]
KEPT = ("the cat sat", "on the mat", "é 漢")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "a.txt").write_text("\n".join(LINES) + "\n")
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": line, "other": 1}) for line in LINES))
    pa.parquet.write_table(pa.table({"text": LINES}), tmp_path / "a.parquet")
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("\n".join(LINES))
    return tmp_path


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet", "b.txt.gz"])
def test_every_kind_of_file_gives_the_same_texts_and_counts_empty_ones(folder, name, capfd):
    actual = read_texts(str(folder / name))
    assert actual.texts == KEPT
    assert actual.skipped == 2
    assert "2 empty" in str(actual) and "3 texts" in str(actual)
    assert capfd.readouterr() == ("", "")


def test_folder_and_pattern_read_all_files_in_order(tmp_path):
    for number in (2, 1, 3):
        (tmp_path / f"{number}.txt").write_text(f"text {number}\n")
    assert read_texts(str(tmp_path)).texts == ("text 1", "text 2", "text 3")
    assert read_texts(str(tmp_path / "[12].txt")).texts == ("text 1", "text 2")


def test_units_of_a_text_file(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree\n<|end|>\nfour\n")
    assert read_texts(str(tmp_path / "a.txt"), unit="document").texts == ("one\ntwo\n\nthree\n<|end|>\nfour\n",)
    assert read_texts(str(tmp_path / "a.txt"), unit="paragraph").texts[0] == "one\ntwo"
    parts = read_texts(str(tmp_path / "a.txt"), separator="<|end|>")
    assert parts.texts == ("one\ntwo\n\nthree", "four")


def test_another_column(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"story": "once"}\n')
    assert read_texts(str(tmp_path / "a.jsonl"), column="story").texts == ("once",)
    with pytest.raises(ValueError, match="no column 'text'; its columns are story"):
        read_texts(str(tmp_path / "a.jsonl"))


def test_missing_file_is_not_looked_for_on_the_hub(tmp_path):
    for name in ("nothing.txt", str(tmp_path / "nothing"), "./nothing", "no*thing"):
        with pytest.raises(FileNotFoundError, match="There is no file, folder or pattern"):
            read_texts(name)


def test_hub_name_while_offline():
    with pytest.raises(FileNotFoundError, match="'nobody/nothing' is no file here, and no data set that could be fetched"):
        read_texts("nobody/nothing")


def test_empty_file(tmp_path):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(ValueError, match=r"The file .*a.txt is empty"):
        read_texts(str(tmp_path / "a.txt"))


def test_only_empty_lines(tmp_path):
    (tmp_path / "a.txt").write_text("\n\n \n")
    with pytest.raises(ValueError, match="holds no text: all 3 lines are empty"):
        read_texts(str(tmp_path / "a.txt"))


def test_bad_content_names_the_file(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text":\n')
    with pytest.raises(ValueError, match=r"a.jsonl is not valid json"):
        read_texts(str(tmp_path / "a.jsonl"))
    (tmp_path / "a.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(ValueError, match=r"a.txt is not UTF-8"):
        read_texts(str(tmp_path / "a.txt"))
    (tmp_path / "n.jsonl").write_text('{"text": 3}\n')
    with pytest.raises(ValueError, match="row 0 holds int instead of text"):
        read_texts(str(tmp_path / "n.jsonl"))


def test_kinds_are_not_mixed_nor_guessed(folder):
    with pytest.raises(ValueError, match="mixes kinds"):
        read_texts(str(folder))
    (folder / "x.docx").write_text("?")
    with pytest.raises(ValueError, match=r"'.docx' are not read; the known endings are .txt"):
        read_texts(str(folder / "x.docx"))


def test_split_is_by_each_text_alone():
    texts = Texts(tuple(f"text {number}" for number in range(2000)), "made")
    whole, half = split_by_hash(texts), split_by_hash(Texts(texts.texts[::2], "made"))
    for name in ("train", "validation", "test"):
        assert set(getattr(half, name).texts) == set(getattr(whole, name).texts) & set(texts.texts[::2])
    sizes = [len(part) for part in (whole.train, whole.validation, whole.test)]
    assert sum(sizes) == 2000 and 60 < sizes[1] < 140 and 60 < sizes[2] < 140
    with pytest.raises(ValueError, match="too few to hold out"):
        split_by_hash(Texts(("one", "two"), "made"))


def test_few_long_texts_are_held_out_by_place():
    long = Texts(("\n".join(f"line {number}" for number in range(100)), "a\nb\nc\nd\ne\nf\ng\nh\ni\nj"), "books")
    actual = split_by_position(long, held_out=0.1)
    assert actual.train.texts[0].startswith("line 0\n") and actual.test.texts[0].endswith("line 99")
    for number in range(2):
        parts = [part.texts[number] for part in (actual.train, actual.validation, actual.test)]
        assert "\n".join(parts) == long.texts[number]
    with pytest.raises(ValueError, match="too short to hold out 10 % twice by place"):
        split_by_position(Texts(("one line",), "x"), held_out=0.1)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("owner/texts", ("owner/texts", None, "train")),
        ("owner/texts:small", ("owner/texts", "small", "train")),
        ("owner/texts:small:test", ("owner/texts", "small", "test")),
        ("owner/texts::test", ("owner/texts", None, "test")),
    ],
)
def test_a_hub_name_may_tell_its_configuration_and_its_part(name, asked, monkeypatch):
    actual = []

    def load(path, config, *, split):
        actual.append((path, config, split))
        return datasets.Dataset.from_dict({"text": list(KEPT)})

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert read_texts(name).texts == KEPT and actual == [asked]
