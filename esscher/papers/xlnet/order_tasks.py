"""Tasks of few labels in which the order of a text matters, made of the text itself, and naive Bayes as a control.

A document is a list of pieces: the sentences of a story, or stretches of words where a text has no sentences.

    order    four pieces in a row, the two in the middle exchanged or not
    next     three pieces, and which of four later pieces of the same document comes next
    cloze    three pieces with a word left out, and which of four words of the document it is

Distractors are of the same document, so that its subject does not tell the answer. Examples of a document stay in one part.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.metrics import labels

SENTENCE_END = re.compile(r"(?<=[.!?])[\"”']?\s+")
PIECE_WORDS, DOCUMENT_PIECES = 12, 12  # of a text without sentences
FEWEST_PIECES, OPTIONS, GAP, SMOOTHING = 8, 4, "_", 1.0
TASKS = ("order", "next", "cloze")
TaskRow = dict[str, Any]


def story_documents(text: str) -> list[list[str]]:
    """The sentences of every story that has enough of them."""
    stories = (SENTENCE_END.split(" ".join(story.split())) for story in text.split("<|endoftext|>"))
    return [pieces for pieces in stories if len(pieces) >= FEWEST_PIECES]


def word_documents(text: str) -> list[list[str]]:
    """Stretches of words of a text without sentences, and so many of them a document."""
    words = text.split()
    pieces = [" ".join(words[at : at + PIECE_WORDS]) for at in range(0, len(words) - PIECE_WORDS + 1, PIECE_WORDS)]
    whole = range(0, len(pieces) - DOCUMENT_PIECES + 1, DOCUMENT_PIECES)
    return [pieces[at : at + DOCUMENT_PIECES] for at in whole]


def order_rows(documents: Iterable[Sequence[str]], rng: SeededRng) -> list[TaskRow]:
    """A row of the task `order` for each document."""
    rows = []
    for number, pieces in enumerate(documents):
        first, *middle, last = pieces[_below(len(pieces) - 3, rng.stream(number)) :][:4]
        exchanged = _below(2, rng.stream(number, "exchanged")) == 1
        text = " ".join([first, *(reversed(middle) if exchanged else middle), last])
        rows.append({"text": text, "label": "exchanged" if exchanged else "in order", "document": number})
    return rows


def next_rows(documents: Iterable[Sequence[str]], rng: SeededRng) -> list[TaskRow]:
    """A row of the task `next` for each document."""
    rows = []
    for number, pieces in enumerate(documents):
        at = _below(len(pieces) - FEWEST_PIECES + 1, rng.stream(number))
        later = rng.stream(number, "later").permutation(len(pieces) - at - 4)[: OPTIONS - 1].tolist()
        options = [pieces[at + 3], *(pieces[at + 4 + place] for place in later)]
        rows.append(_choice(" ".join(pieces[at : at + 3]), options, number, rng))
    return rows


def cloze_rows(documents: Iterable[Sequence[str]], rng: SeededRng) -> list[TaskRow]:
    """A row of the task `cloze` for each document that has enough words of four letters or more."""
    rows = []
    for number, pieces in enumerate(documents):
        at = _below(len(pieces) - 3, rng.stream(number))
        words = " ".join(pieces[at : at + 3]).split()
        places = [place for place, word in enumerate(words) if word.isalpha() and len(word) >= 4]
        others = sorted({word for piece in pieces for word in piece.split() if word.isalpha() and len(word) >= 4} - {*words})
        if places and len(others) >= OPTIONS - 1:
            place = places[_below(len(places), rng.stream(number, "place"))]
            chosen = rng.stream(number, "others").permutation(len(others))[: OPTIONS - 1].tolist()
            options = [words[place], *(others[index] for index in chosen)]
            rows.append(_choice(" ".join([*words[:place], GAP, *words[place + 1 :]]), options, number, rng))
    return rows


MAKERS = {"order": order_rows, "next": next_rows, "cloze": cloze_rows}


def _choice(article: str, options: list[str], number: int, rng: SeededRng) -> TaskRow:
    """A row with the right option, the first one given, at a random place."""
    order = rng.stream(number, "options").permutation(len(options)).tolist()
    shuffled = [options[index] for index in order]
    return {"article": article, "question": "", "options": shuffled, "answer": order.index(0), "document": number}


def _below(count: int, rng: SeededRng) -> int:
    return int(rng.permutation(count)[0])


def naive_bayes_accuracy(train: Sequence[TaskRow], test: Sequence[TaskRow]) -> Estimate:
    """The share of right answers of naive Bayes on words: of the text for classes, of the option for choices, whose
    classes are right and wrong."""
    counts: dict[str, Counter[str]] = {}
    for row in train:
        for words, label in _bags(row):
            counts.setdefault(label, Counter()).update(words)
    vocabulary = len(set().union(*counts.values()))
    return labels.accuracy([_answer(row, counts, vocabulary) for row in test], [str(row["document"]) for row in test])


def _bags(row: TaskRow) -> list[tuple[list[str], str]]:
    """The words that are judged, with their class."""
    if "options" not in row:
        return [(row["text"].lower().split(), row["label"])]
    return [
        (option.lower().split(), "right" if place == row["answer"] else "wrong") for place, option in enumerate(row["options"])
    ]


def _answer(row: TaskRow, counts: Mapping[str, Counter[str]], vocabulary: int) -> bool:
    """Whether naive Bayes is right; classes are as frequent as each other."""

    def log_likelihood(words: list[str], label: str) -> float:
        total = counts[label].total() + SMOOTHING * vocabulary
        shares = torch.tensor([(counts[label][word] + SMOOTHING) / total for word in words], dtype=torch.float64)
        return float(shares.log().sum())

    bags = _bags(row)
    if "options" not in row:
        ((words, label),) = bags
        return max(sorted(counts), key=lambda each: log_likelihood(words, each)) == label
    gains = [log_likelihood(words, "right") - log_likelihood(words, "wrong") for words, _ in bags]
    return gains.index(max(gains)) == row["answer"]
