"""Every tokenizer gives the text back, never an end symbol by accident, and is read by Hugging Face."""

import json

import pytest

from esscher.core.manifest import MANIFEST
from esscher.data.tokenizers import TOKENIZER_KINDS, Tokenizer, character_tokenizer, load_tokenizer, train_tokenizer

TEXTS = ["the cat sat on the mat", "a\tdog\nate <eos> the cat", "é 漢 \U0001f600", ""]


def made(kind) -> Tokenizer:
    return train_tokenizer(kind, TEXTS, vocab_size=300)


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_decode_gives_the_text_back_and_no_text_spells_the_end_symbol(kind):
    tokenizer = made(kind)
    tokens = tokenizer.encode(TEXTS)
    back = TEXTS if kind != "word" else [" ".join(text.split()).replace("<eos>", "<unk>") for text in TEXTS]
    assert tokenizer.decode(tokens) == back  # words keep no blanks
    assert tokenizer.eos not in {token for row in tokens for token in row}
    assert tokenizer.decode([[*row, tokenizer.eos] for row in tokens]) == back
    assert max(max(row) for row in tokens if row) < tokenizer.vocab_size


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_training_is_repeatable_and_saving_loses_nothing(kind, tmp_path):
    tokenizer = made(kind)
    assert tokenizer.files() == made(kind).files()
    tokenizer.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert (loaded.name, loaded.eos, loaded.vocab_size) == (kind, tokenizer.eos, tokenizer.vocab_size)
    assert loaded.encode(TEXTS) == tokenizer.encode(TEXTS)


@pytest.mark.parametrize("kind", TOKENIZER_KINDS)
def test_hugging_face_reads_the_folder(kind, tmp_path):
    from transformers import AutoTokenizer

    tokenizer = made(kind)
    tokenizer.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(str(tmp_path))
    assert theirs.eos_token_id == tokenizer.eos
    plain = TEXTS[0]
    assert theirs(plain)["input_ids"] == tokenizer.encode([plain])[0]
    assert theirs.decode(theirs(plain)["input_ids"]) == plain


def test_a_pretrained_folder_of_hugging_face(tmp_path):
    from transformers import AutoTokenizer

    made("bpe").save(tmp_path / "ours")
    AutoTokenizer.from_pretrained(str(tmp_path / "ours")).save_pretrained(str(tmp_path / "theirs"))
    assert load_tokenizer(tmp_path / "theirs").encode(TEXTS) == made("bpe").encode(TEXTS)


def test_sizes():
    assert made("byte").vocab_size == 257
    assert made("bpe").vocab_size <= 300
    assert made("character").vocab_size == len(set("".join(TEXTS))) + 2


def test_unknown_characters():
    tokenizer = train_tokenizer("character", ["abc"])
    assert tokenizer.decode(tokenizer.encode(["a?c"])) == ["a\ufffdc"]
    strict = character_tokenizer("01", eos=2, unknown=False)
    assert (strict.encode(["0110"]), strict.eos, strict.vocab_size) == ([[0, 1, 1, 0]], 2, 3)
    with pytest.raises(ValueError, match="cannot read a text"):
        strict.encode(["012"])


def test_bad_choices():
    with pytest.raises(ValueError, match="Unknown tokenizer 'words'; the known ones are character, byte, word, bpe"):
        train_tokenizer("words", TEXTS)
    with pytest.raises(ValueError, match="vocab_size = 100 is too small"):
        train_tokenizer("bpe", TEXTS, vocab_size=100)


def test_bad_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="no folder"):
        load_tokenizer(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no readable tokenizer"):
        load_tokenizer(tmp_path)
    made("byte").save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match=r"tokenizer_config.json is not what was written"):
        load_tokenizer(tmp_path)
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(ValueError, match="states no end symbol"):
        load_tokenizer(tmp_path)
    assert load_tokenizer(tmp_path, eos="<eos>").eos == 0
    with pytest.raises(ValueError, match="has no token '</s>'"):
        load_tokenizer(tmp_path, eos="</s>")
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="is no tokenizer"):
        load_tokenizer(tmp_path)
