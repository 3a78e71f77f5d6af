"""Streams of text: order, end symbols, sizes, raw files with their usual splits, and word vocabularies."""

import gzip

import numpy as np
import pytest

from esscher.data.sources import read_raw, read_texts, split_raw
from esscher.data.text import decode_part, raw_stream, text_chunks, text_stream
from esscher.data.tokenizers import TOKENIZER_KINDS, byte_symbols, character_tokenizer, load_tokenizer, train_tokenizer

TEXTS = ["the cat sat on the mat", "é 漢 dogs", "", " a  b ", "x"]
STRANGE = "naïve 漢字 🙂 ok\n\ttab\u00a0end"


@pytest.fixture(params=TOKENIZER_KINDS)
def tokenizer(request):
    return train_tokenizer(request.param, [*TEXTS, STRANGE], vocab_size=270)


def test_texts_follow_each_other_and_sizes_add_up(tokenizer):
    with_ends, without = (text_stream(TEXTS, tokenizer, ends=ends) for ends in (True, False))
    encoded = tokenizer.encode(TEXTS)
    assert with_ends.tokens.tolist() == [token for text in encoded for token in [*text, tokenizer.eos]]
    assert without.tokens.tolist() == [token for text in encoded for token in text]
    for made, ends in ((with_ends, 5), (without, 0)):
        sizes = {name: int(size.sum()) for name, size in made.units().items()}
        assert sizes["token"] == len(made) and sizes["word"] == sum(len(text.split()) for text in TEXTS) + ends
        if tokenizer.name != "word":  # words leave the blanks at a text's ends to none
            assert sizes["byte"] == sum(len(text.encode()) for text in TEXTS) + ends
            assert sizes["character"] == sum(len(text) for text in TEXTS) + ends


def test_a_stream_has_the_tokens_and_sizes_of_chunks(tokenizer):
    some = [text for text in TEXTS if text.strip()]
    stream, chunks = text_stream(some, tokenizer), text_chunks(some, tokenizer, length=1)
    assert stream.tokens.tolist() == chunks.x.tokens[:, 0].tolist()
    assert stream.words.tolist() == chunks.words.tolist() and stream.bytes.tolist() == chunks.bytes.tolist()


def test_tables_are_as_exact_as_the_tokenizer(tokenizer):
    made = raw_stream(STRANGE.encode(), tokenizer)
    assert made.tokens.tolist() == tokenizer.encode([STRANGE])[0]
    if tokenizer.name != "word":
        assert int(made.bytes.sum()) == len(STRANGE.encode()) and int(made.characters.sum()) == len(STRANGE)


def test_every_byte_has_its_symbol():
    tokenizer = train_tokenizer("byte", [])
    assert sorted(byte_symbols()) == sorted(symbol for symbol in tokenizer.backend.get_vocab() if symbol != "<eos>")
    ascii_bytes = bytes(range(128))
    assert raw_stream(ascii_bytes, tokenizer).tokens.tolist() == tokenizer.encode([ascii_bytes.decode()])[0]
    every = raw_stream(bytes(range(256)), tokenizer)
    assert len(set(every.tokens.tolist())) == 256 and tokenizer.eos not in every.tokens.tolist()
    assert np.frombuffer(STRANGE.encode(), dtype=np.uint8).size == len(raw_stream(STRANGE.encode(), tokenizer))


def test_characters_that_are_not_known():
    tokenizer = train_tokenizer("character", ["abc"])
    assert raw_stream(b"abxa", tokenizer).tokens.tolist() == tokenizer.encode(["abxa"])[0]
    with pytest.raises(ValueError, match="lacks the character 'x'"):
        raw_stream(b"abxa", character_tokenizer("abc", unknown=False))
    with pytest.raises(ValueError, match="empty"):
        raw_stream(b"", tokenizer)


def test_raw_files_are_cut_at_the_very_byte(tmp_path):
    content = ("é" * 500).encode()
    (tmp_path / "plain.txt").write_bytes(content)
    (tmp_path / "enwik8.10M.gz").write_bytes(gzip.compress(content))
    assert read_raw(str(tmp_path / "plain.txt")) == read_raw(str(tmp_path / "enwik8.10M.gz")) == content
    train, validation, test = split_raw(content)
    assert (len(train), len(validation), len(test)) == (900, 50, 50) and train + validation + test == content
    train, validation, test = split_raw(content, held_out=0.025)
    assert (len(train), len(validation), len(test)) == (950, 25, 25)  # in the midst of a character
    assert decode_part(validation) == "é" * 12 and decode_part(test) == "é" * 12 and decode_part(b"\xa9") == ""
    with pytest.raises(ValueError, match=r"Byte 2 is not UTF-8"):
        decode_part(b"ab\xffcdefgh")
    with pytest.raises(ValueError, match="too few to hold out"):
        split_raw(b"abc")
    with pytest.raises(FileNotFoundError, match="names 0 files"):
        read_raw(str(tmp_path / "none*"))


def test_empty_lines_are_kept_where_they_mean_something(tmp_path):
    file = tmp_path / "wiki.txt"
    file.write_text(" = Title = \n \n one two \n\n")
    assert len(read_texts(str(file))) == 2
    kept = read_texts(str(file), keep_empty=True)
    words = train_tokenizer("word", kept.texts)
    stream = text_stream(kept.texts, words)
    shown = [words.backend.id_to_token(token) for token in stream.tokens.tolist()]
    assert shown == ["=", "Title", "=", "<eos>", "<eos>", "one", "two", "<eos>", "<eos>"]
    blank = tmp_path / "blank.txt"
    blank.write_text("\n \n")
    with pytest.raises(ValueError, match="holds no text"):
        read_texts(str(blank), keep_empty=True)


def test_words_are_numbered_by_frequency_and_rare_ones_are_unknown(tmp_path):
    texts = ["b b b A a a a a", "c c <unk> d The the"]
    whole = train_tokenizer("word", texts, vocab_size=1000)
    order = [whole.backend.id_to_token(number) for number in range(whole.vocab_size)]
    assert order[:5] == ["<eos>", "<unk>", "a", "b", "c"] and set(order[5:]) == {"A", "d", "The", "the"}
    few = train_tokenizer("word", texts, min_frequency=2)
    assert few.vocab_size == 5 and few.encode(["a d b <unk> c zebra"])[0] == [2, 1, 3, 1, 4, 1]
    assert train_tokenizer("word", texts, vocab_size=4).vocab_size == 4
    assert few.decode([[2, 3, 0]]) == ["a b"]
    assert few.encode(["a <eos> b a<eos>"])[0] == [2, 1, 3, 1]  # a text never turns into the end symbol
    few.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.encode(["a d <eos> b"]) == few.encode(["a d <eos> b"]) and again.name == "word"
