"""Order-sensitive tasks: what their rows are, and that naive Bayes is by hand what it says."""

import pytest

from esscher.core.randomness import SeededRng
from esscher.papers.xlnet.order_tasks import (
    GAP,
    cloze_rows,
    naive_bayes_accuracy,
    next_rows,
    order_rows,
    story_documents,
    word_documents,
)

DOCUMENTS = [[f"Tale{chr(97 + d)} part{'abcdefghij'[s]} went onwards." for s in range(9)] for d in range(20)]


def test_documents_are_sentences_or_stretches_of_words():
    story = " ".join(f"Sentence {n} is here." for n in range(8))
    assert story_documents(f"{story}<|endoftext|>Too short. It is.") == [[f"Sentence {n} is here." for n in range(8)]]
    (document,) = word_documents(" ".join(f"w{n}" for n in range(150)))
    assert len(document) == 12 and document[1] == " ".join(f"w{n}" for n in range(12, 24))


def test_two_pieces_are_exchanged_or_not():
    rows = order_rows(DOCUMENTS, SeededRng(0))
    for pieces, row in zip(DOCUMENTS, rows, strict=True):
        text = " ".join(pieces)
        assert (row["text"] in text) == (row["label"] == "in order") and sorted(row["text"].split()) == sorted(
            word for piece in pieces if piece.split()[1] in row["text"] for word in piece.split()
        )
    assert {row["label"] for row in rows} == {"in order", "exchanged"}


def test_the_right_piece_follows_and_the_others_come_later():
    for pieces, row in zip(DOCUMENTS, next_rows(DOCUMENTS, SeededRng(0)), strict=True):
        text, right = " ".join(pieces), row["options"][row["answer"]]
        assert f"{row['article']} {right}" in text
        assert all(option == right or text.index(option) > text.index(right) for option in row["options"])
        assert len(set(row["options"])) == 4


def test_the_word_that_was_left_out_fills_the_gap():
    for pieces, row in zip(DOCUMENTS, cloze_rows(DOCUMENTS, SeededRng(0)), strict=True):
        filled = row["article"].replace(GAP, row["options"][row["answer"]])
        assert filled in " ".join(pieces) and len(row["options"]) == 4
        assert not any(word in row["article"].split() for word in row["options"] if word != row["options"][row["answer"]])


def test_naive_bayes_tells_words_and_not_order():
    texts = [
        {"text": f"{word} x", "label": label, "document": 0}
        for word, label in (("sun", "dry"), ("rain", "wet"))
        for _ in range(3)
    ]
    assert naive_bayes_accuracy(texts, texts[:1] + texts[-1:]).value == pytest.approx(1)
    choices = [{"options": ["never", "always"], "answer": 1, "document": 0}] * 4
    assert naive_bayes_accuracy(choices, choices).value == pytest.approx(1)
    assert naive_bayes_accuracy(
        choices, [{"options": ["always", "never"], "answer": 1, "document": 0}] * 2
    ).value == pytest.approx(0)
