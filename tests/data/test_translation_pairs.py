"""Parallel text from files, columns and rows; pairs as points after their sources; what is skipped, left out and refused."""

import gzip
import json

import pytest
import torch

from esscher.core.space import sequences
from esscher.data.tokenizers import train_tokenizer
from esscher.data.translation_pairs import Pairs, decode_targets, encode_sources, pair_points, read_pairs, split_pairs

FRENCH = ["Va !", "Il pleut.", "", "Je suis là."]
ENGLISH = ["Go.", "It rains.", "Nothing.", "I am here."]
KEPT = (("Va !", "Il pleut.", "Je suis là."), ("Go.", "It rains.", "I am here."))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "train.fr").write_text("\n".join(FRENCH) + "\n", encoding="utf8")
    (tmp_path / "train.en").write_text("\n".join(ENGLISH) + "\n", encoding="utf8")
    rows = list(zip(FRENCH, ENGLISH, strict=True))
    (tmp_path / "pairs.tsv").write_text("".join(f"{first}\t{second}\tthird\n" for first, second in rows), encoding="utf8")
    flat = "".join(json.dumps({"fr": first, "en": second}) + "\n" for first, second in rows)
    (tmp_path / "flat.jsonl").write_text(flat, encoding="utf8")
    nested = "".join(json.dumps({"id": 1, "translation": {"fr": first, "en": second}}) + "\n" for first, second in rows)
    (tmp_path / "nested.jsonl").write_text(nested, encoding="utf8")
    return tmp_path


@pytest.mark.parametrize(
    ("source", "target", "column"),
    [
        ("train.fr", "en", "text"),
        ("train.fr", ".en", "text"),
        ("pairs.tsv", "2", "text"),
        ("pairs.tsv", "2", "1"),
        ("flat.jsonl", "en", "fr"),
        ("nested.jsonl", "en", "fr"),
    ],
)
def test_the_same_pairs_from_everywhere(folder, source, target, column):
    actual = read_pairs(str(folder / source), target, column=column)
    assert (actual.sources, actual.targets, actual.skipped) == (*KEPT, 1)
    assert str(actual).endswith("3 pairs, 1 with an empty side skipped")


def test_the_other_file_by_its_path_and_the_other_direction(folder):
    assert read_pairs(str(folder / "train.fr"), str(folder / "train.en")).targets == KEPT[1]
    other = read_pairs(str(folder / "pairs.tsv"), "1", column="2")
    assert (other.sources, other.targets) == KEPT[::-1]


@pytest.mark.parametrize(
    ("source", "target", "column", "message"),
    [
        ("train.fr", "de", "text", "there is no such file"),
        ("absent.fr", "en", "text", "no file, folder or pattern"),
        ("pairs.tsv", "english", "text", "numbers from 1, not 'english'"),
        ("pairs.tsv", "4", "text", "Line 1 of .* has 3 columns, and column 4 is asked for"),
        ("flat.jsonl", "de", "fr", "no column 'de'; its columns are fr, en"),
        ("*.jsonl", "en", "fr", "names 2 files"),
    ],
)
def test_what_is_not_there_is_said(folder, source, target, column, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        read_pairs(str(folder / source), target, column=column)


def test_files_of_different_length_and_files_of_nothing_are_refused(folder):
    (folder / "train.en").write_text("Go.\n", encoding="utf8")
    with pytest.raises(ValueError, match=r"has 4 lines and .* has 1"):
        read_pairs(str(folder / "train.fr"), "en")
    (folder / "none.tsv").write_text("a\t\n\n", encoding="utf8")
    with pytest.raises(ValueError, match="no pair of texts: 2 have an empty side"):
        read_pairs(str(folder / "none.tsv"), "2")


def test_only_a_newline_ends_a_line_and_files_may_be_packed(tmp_path):
    odd = ["one\u2028two", "three\x0bfour\x85five"]
    for name, lines, end in (("odd.fr", odd, "\r\n"), ("odd.en", ["a", "b"], "\n")):
        (tmp_path / name).write_bytes("".join(line + end for line in lines).encode())
    assert read_pairs(str(tmp_path / "odd.fr"), "en").sources == tuple(odd)
    rows = "".join(f"{line}\t{place}\n" for place, line in enumerate(odd))
    (tmp_path / "odd.tsv.gz").write_bytes(gzip.compress(rows.encode()))
    assert read_pairs(str(tmp_path / "odd.tsv.gz"), "2").targets == ("0", "1")
    (tmp_path / "latin.tsv").write_bytes("é\tè\n".encode("latin-1"))
    with pytest.raises(ValueError, match="not UTF-8 text"):
        read_pairs(str(tmp_path / "latin.tsv"), "2")


def test_pairs_of_one_source_stay_together_and_nothing_is_lost():
    sources = tuple(f"phrase {number // 2}" for number in range(400))
    pairs = Pairs(sources, tuple(f"sentence {number}" for number in range(400)), "made")
    parts = list(split_pairs(pairs, held_out=0.1))
    assert sorted(target for part in parts for target in part.targets) == sorted(pairs.targets)
    assert not set(parts[0].sources) & set(parts[1].sources) and not set(parts[1].sources) & set(parts[2].sources)
    assert all(15 < len(part) < 70 for part in parts[1:]) and parts[2].name == "made (test)"
    with pytest.raises(ValueError, match="too few to hold out 10% twice"):
        split_pairs(Pairs(("a",), ("b",), "one"), held_out=0.1)


def test_a_pair_is_a_point_after_its_source():
    pairs = Pairs(*KEPT, "made")
    tokenizer = train_tokenizer("character", [*KEPT[0], *KEPT[1]])
    made = pair_points(pairs, tokenizer, longest=12)
    assert decode_targets(made.x, tokenizer) == ["Go.", "It rains.", "I am here."]
    prompts = [row[:start] for row, start in zip(made.x.tokens.tolist(), made.x.start.tolist(), strict=True)]
    assert prompts == encode_sources(pairs.sources, tokenizer) and all(prompt[-1] == tokenizer.eos for prompt in prompts)
    assert all(point[-1] == tokenizer.eos for point in made.x.points())
    assert made.words.tolist() == [2, 3, 4] and made.bytes.tolist() == [4, 10, 11]
    assert torch.equal(made.x.lengths, made.tokens) and made.cut == 0


def test_a_translation_is_one_line_whatever_was_drawn():
    tokenizer = train_tokenizer("byte", [])
    said = ["It\nrains.", "So\r\nit does.\n", "\n"]
    assert decode_targets(sequences(tokenizer.encode(said)), tokenizer) == ["It rains.", "So  it does.", ""]


def test_pairs_with_a_long_side_are_left_out_and_counted():
    tokenizer = train_tokenizer("character", [*KEPT[0], *KEPT[1]])
    made = pair_points(Pairs(*KEPT, "made"), tokenizer, longest=10)
    assert (len(made), made.cut) == (2, 1)
    with pytest.raises(ValueError, match="All 3 pairs of made have a side of more than 2 tokens"):
        pair_points(Pairs(*KEPT, "made"), tokenizer, longest=2)
