"""The files that the recipes on XLNet learn from: text to pretrain on, and labelled texts to fine-tune on.

Of each book the last fifth is held out of pretraining. Passages to learn authors from stand before it; those to choose and to
judge by are of its first and of its second half, so no test passage was ever seen. Every machine has docstrings: of these the
smallest scale makes tasks of its own, whether the words of a passage are in order, and which word comes after two others.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from esscher.data.docstrings import docstring_splits
from esscher.data.tokenizers import train_tokenizer
from esscher.randomness import Seeded
from esscher.storage import write_file
from esscher.training.processes import is_made

WORDS = 40  # of a passage
SEEN = 0.8  # share of a book before what is held out of pretraining
CLOSE = 10  # passages that stand together, and are one replicate
FEW, FEW_HELD_OUT = 1_000, 12  # docstrings of the smallest scale
PARTS = ("train", "validation", "test")


def write_books(books: Path, out: Path, *, labelled: int, judged: int, vocabulary: int) -> None:
    """Text to pretrain on (books and docstrings), its tokenizer, and passages with their authors, so many of each."""
    if is_made(out / "authors-test.jsonl"):
        return
    docstrings = docstring_splits()
    texts = {file.stem: file.read_text(encoding="utf8", errors="replace") for file in sorted(books.glob("*.txt"))}
    seen = [text[: round(SEEN * len(text))] for text in texts.values()]
    _write_text(
        out, [*seen, "\n\n".join(docstrings.train.texts)], docstrings.validation.texts, docstrings.test.texts, vocabulary
    )
    rows: dict[str, list[dict[str, Any]]] = {part: [] for part in PARTS}
    for author in sorted({name.split("-")[0] for name in texts}):
        own: dict[str, list[dict[str, Any]]] = {part: [] for part in PARTS}
        for name in texts:
            if name.split("-")[0] == author:
                for part, found in zip(PARTS, _passages(name, texts[name]), strict=True):
                    own[part] += found
        for part, count in zip(PARTS, (labelled, judged // 2, judged), strict=True):
            rows[part] += _spread(own[part], count)
    for part in PARTS:
        _write_rows(out / f"authors-{part}.jsonl", rows[part])


def write_docstrings(out: Path, *, labelled: int, vocabulary: int) -> None:
    """The same of docstrings: text, tokenizer, and the two tasks made of it."""
    if is_made(out / "words.jsonl"):
        return
    parts = docstring_splits()
    _write_text(
        out,
        ["\n\n".join(parts.train.texts[:FEW])],
        parts.validation.texts[:FEW_HELD_OUT],
        parts.test.texts[:FEW_HELD_OUT],
        vocabulary,
    )
    texts = [text.split()[:12] for text in parts.test.texts if len(text.split()) >= 12][:labelled]
    orders, answers = [], []
    for number, words in enumerate(texts):
        turned = number % 2 == 1
        mixed = [words[place] for place in Seeded(number).permutation(len(words)).tolist()] if turned else words
        orders.append({"text": " ".join(mixed), "label": "mixed" if turned else "in order"})
        passage, place = " ".join(words), len(" ".join(words[:6])) + 1
        answer = {"text": words[6], "answer_start": place}
        answers.append({"context": passage, "question": " ".join(words[4:6]), "answers": [answer] if number % 4 else []})
    _write_rows(out / "orders.jsonl", orders)
    _write_rows(out / "words.jsonl", answers)


def _passages(book: str, text: str) -> Iterator[list[dict[str, Any]]]:
    """Passages to learn from, to choose by and to judge by."""
    middle = (1 + SEEN) / 2
    for first, last in ((0.0, SEEN), (SEEN, middle), (middle, 1.0)):
        words = text[round(first * len(text)) : round(last * len(text))].split()[1:-1]
        pieces = [words[place : place + WORDS] for place in range(0, len(words) - WORDS + 1, WORDS)]
        yield [
            {"text": " ".join(piece), "label": book.split("-")[0], "place": f"{book} {first} {number // CLOSE}"}
            for number, piece in enumerate(pieces)
        ]


def _spread(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """So many of them, evenly spread."""
    kept = min(count, len(rows))
    return [rows[number * len(rows) // kept] for number in range(kept)]


def _write_text(out: Path, train: Sequence[str], validation: Sequence[str], test: Sequence[str], vocabulary: int) -> None:
    write_file(out / "train.txt", "\n\n".join(train).encode())
    for name, texts in (("validation", validation), ("test", test)):
        write_file(out / f"{name}.txt", "\n\n".join(texts)[:60_000].encode())
    train_tokenizer("bpe", train, vocab_size=vocabulary).save(out / "tokenizer")


def _write_rows(file: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    write_file(file, "".join(f"{json.dumps(row)}\n" for row in rows).encode())
