"""esscher translate as a user meets it: every line at its place, whatever the lines are; nothing is lost and nothing redone."""

import json
from dataclasses import replace

import pytest
from cli_calls import call
from seq2seq_models import tiny_base
from small_networks import CONFIGS, lively

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of
from esscher.core.target import Tilted
from esscher.data.tokenizers import train_tokenizer
from esscher.data.translation_pairs import decode_targets
from esscher.decoding.beam_search import BeamSearch
from esscher.hub import save_base
from esscher.workflow import translate as translating
from esscher.workflow.model import load
from esscher.workflow.translate import require_translator

TEXTS = ["abc", "", "cab ba", "aaaaaaaaaaaaaaaaaaaa", "b", "  "]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer = train_tokenizer("character", ["abc "])
    base = lively(CONFIGS["encoder-decoder"], Space(tokenizer.vocab_size, 8, eos=tokenizer.eos), seed=7)
    return str(save_base(tmp_path_factory.mktemp("translator") / "model", base, tokenizer))


@pytest.fixture
def lines(tmp_path):
    file = tmp_path / "in.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    return file


def test_a_file_has_a_line_for_each_line_and_a_word_for_each_odd_one(folder, lines, capsys):
    code, out, err = call(capsys, "translate", folder, "--file", str(lines), "--out", "-")
    said = out.split("\n")[:-1]
    assert code == 0 and len(said) == len(TEXTS)
    assert [not text for text in said] == [not text.strip() for text in TEXTS]
    output = [line for line in err.split("\n") if line.startswith("line ")]
    assert output == [
        "line 2: it is empty, and stays so",
        "line 4: its source has 21 tokens, cut to 8",
        "line 6: it is empty, and stays so",
    ]
    assert "6 of 6" not in err and "4 of 6 lines" in err


def test_alone_is_as_in_a_file_and_json_holds_everything(folder, lines, capsys):
    _, out, _ = call(capsys, "translate", folder, "--file", str(lines), "--out", "-")
    _, answer, _ = call(capsys, "translate", folder, "cab ba", "b", "--json", "--quiet")
    output = json.loads(answer.splitlines()[-1])
    said = out.split("\n")
    assert [row["translation"] for row in output["translations"]] == [said[2], said[4]]
    assert output["decoder"] == "beam" and "seed" not in output


@pytest.mark.parametrize("way", ["greedy", "sample", "best-of-n", "mbr"])
def test_every_way_to_decode(way, folder, capsys):
    draws = ("--decoder.draws", "4") if way in ("best-of-n", "mbr") else ()
    arguments = ("translate", folder, "abc", "ba", "--decoder.kind", way, *draws, "--seed", "3", "--json", "--quiet")
    code, answer, _ = call(capsys, *arguments)
    again = call(capsys, *arguments)
    assert code == 0 and again[1] == answer
    assert json.loads(answer.splitlines()[-1]).get("seed") == (None if way == "greedy" else 3)


def test_what_was_stopped_goes_on_to_the_same_lines(folder, lines, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(translating, "WINDOW", 2)
    settings = ("--decoder.kind", "sample", "--quiet")
    whole, part = tmp_path / "whole.txt", tmp_path / "part.txt"
    assert call(capsys, "translate", folder, "--file", str(lines), "--out", str(whole), *settings)[0] == 0
    part.write_text("".join(f"{line}\n" for line in whole.read_text().split("\n")[:3]) + "half a li")
    code, _, err = call(capsys, "translate", folder, "--file", str(lines), "--out", str(part), *settings)
    assert code == 1 and "exists already" in err
    assert call(capsys, "translate", folder, "--file", str(lines), "--out", str(part), "--resume", *settings)[0] == 0
    assert part.read_text() == whole.read_text()


def test_references_add_scores(folder, lines, tmp_path, capsys):
    right = tmp_path / "right.txt"
    right.write_text("abc abc\n\ncab ba\na\nb\n\n")
    _, answer, _ = call(capsys, "translate", folder, "--file", str(lines), "--references", str(right), "--json", "--quiet")
    actual = {row["metric"]: row["value"] for row in json.loads(answer.splitlines()[-1])["scores"]}
    assert set(actual) == {"bleu", "chrf", "words, of those of the references"}
    assert all(value["low"] <= value["value"] <= value["high"] for value in actual.values())
    right.write_text("abc\n")
    code, _, err = call(capsys, "translate", folder, "--file", str(lines), "--references", str(right), "--quiet")
    assert code == 1 and "has 1 lines for 6 to translate" in err


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_models_of_hugging_face_translate(family, tmp_path, capsys):
    tokenizer = train_tokenizer("character", ["abc "])
    size = tokenizer.vocab_size
    base = tiny_base(family, max_length=8, vocab_size=size + 1, pad_token_id=size, decoder_start_token_id=size)
    folder = save_base(tmp_path / "model", base, replace(tokenizer, size=size + 1))
    code, answer, _ = call(capsys, "translate", str(folder), "abc", "ba", "--json", "--quiet")
    actual = json.loads(answer.splitlines()[-1])["translations"]
    assert code == 0 and [row["source"] for row in actual] == ["abc", "ba"]
    prompts = prompts_of([[*tokens, tokenizer.eos] for tokens in tokenizer.encode(["abc", "ba"])])
    said = decode_targets(BeamSearch()(Tilted(base), prompts, rng=SeededRng(0)).x, tokenizer)
    assert [row["translation"] for row in actual] == said


def test_what_cannot_be_translated_is_refused(folder, lines, tmp_path, capsys):
    for arguments, message in (
        ((folder,), "Either sentences or a file are translated"),
        ((folder, "abc", "--file", str(lines)), "Either sentences or a file are translated"),
        ((folder, "abc", "--decoder.width", "0"), "width is at least 1, not 0"),
    ):
        code, _, err = call(capsys, "translate", *arguments)
        assert code != 0 and message in " ".join(err.split())
    tokenizer = train_tokenizer("character", ["abc "])
    plain = save_base(
        tmp_path / "plain", lively(CONFIGS["gru, tied"], Space(tokenizer.vocab_size, 8, eos=tokenizer.eos)), tokenizer
    )
    with pytest.raises(ValueError, match="kind gru, which continues a text and translates none"):
        require_translator(load(plain))


def test_the_method_of_a_model_translates_as_the_command_does(folder, lines, tmp_path, capsys):
    out = tmp_path / "out.txt"
    assert call(capsys, "translate", folder, "--file", str(lines), "--out", str(out), "--decoder.width", "3")[0] == 0
    assert load(folder).translate(TEXTS, decoder=BeamSearch(3)).texts == out.read_text().split("\n")[:-1]
