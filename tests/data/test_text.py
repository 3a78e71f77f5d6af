"""Texts as points and chunks: the end symbol, cuts, and sizes that add up."""

import pytest

from esscher.data.text import text_chunks, text_points
from esscher.data.tokenizers import TOKENIZER_KINDS, train_tokenizer

TEXTS = ["the cat sat on the mat", "é 漢 dogs", " a  b ", "x"]


@pytest.fixture(params=[kind for kind in TOKENIZER_KINDS if kind != "word"])  # words keep no blanks: see the tests of streams
def tokenizer(request):
    return train_tokenizer(request.param, TEXTS, vocab_size=270)


def test_each_text_is_a_point_that_ends(tokenizer):
    made = text_points(TEXTS, tokenizer, max_length=100)
    assert [point[-1] for point in made.x.points()] == [tokenizer.eos] * 4
    assert tokenizer.decode(made.x.points()) == TEXTS
    assert made.words.tolist() == [7, 4, 3, 2]  # the end symbol counts as one
    assert made.bytes.tolist() == [len(text.encode()) + 1 for text in TEXTS]
    assert made.cut == 0 and int(made.x.start.sum()) == 0


def test_longer_texts_are_cut_without_an_end_symbol_or_refused(tokenizer):
    made = text_points(TEXTS, tokenizer, max_length=3)
    assert made.cut == 3
    assert made.x.tokens.shape[1] == 3
    assert tokenizer.eos not in made.x.points()[0] and made.x.points()[3][-1] == tokenizer.eos
    shown = tokenizer.decode([made.x.points()[0]])[0]
    assert int(made.bytes[0]) == len(shown.encode()) and int(made.words[0]) == len(shown.split())
    with pytest.raises(ValueError, match=r"Text 0 has .* tokens with its end symbol, and the longest allowed is 3"):
        text_points(TEXTS, tokenizer, max_length=3, longer="refuse")


def test_a_text_of_exactly_the_longest_length_is_whole():
    tokenizer = train_tokenizer("byte", TEXTS)
    made = text_points(["abc"], tokenizer, max_length=4)
    assert (made.cut, made.x.lengths.tolist()) == (0, [4])
    assert text_points(["abc"], tokenizer, max_length=3).cut == 1


def test_chunks_follow_each_other_and_their_sizes_add_up(tokenizer):
    whole = text_points(TEXTS * 5, tokenizer, max_length=100)
    stream = [token for point in whole.x.points() for token in point]
    made = text_chunks(TEXTS * 5, tokenizer, length=4)
    assert [token for point in made.x.points() for token in point] == stream[: len(stream) // 4 * 4]
    if len(stream) % 4 == 0:
        assert int(made.words.sum()) == int(whole.words.sum())
    item = text_chunks(TEXTS * 5, tokenizer, length=len(stream))
    assert (item.words.tolist(), item.bytes.tolist()) == ([int(whole.words.sum())], [int(whole.bytes.sum())])


def test_a_chunk_with_a_prompt_counts_only_what_follows(tokenizer):
    text = ["one two three four five six seven eight nine ten"]
    tokenizer = train_tokenizer("byte", text)
    made = text_chunks(text, tokenizer, length=12, prompt_tokens=5)
    assert made.x.start.tolist() == [5] * len(made)
    assert made.bytes.tolist() == made.tokens.tolist() == [7] * len(made)
    assert tokenizer.decode([made.x.rows(slice(0, 1)).points()[0]]) == ["wo thre"]
    assert int(made.words[0]) == 1  # "wo" began before


def test_chunks_that_cannot_be(tokenizer):
    with pytest.raises(ValueError, match="too few for one chunk of 1,000"):
        text_chunks(TEXTS, tokenizer, length=1000)
    with pytest.raises(ValueError, match="so a prompt cannot have 4"):
        text_chunks(TEXTS, tokenizer, length=4, prompt_tokens=4)
