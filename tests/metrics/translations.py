"""Made-up translations: references of random words, and what systems of a given skill make of them."""

import torch

from esscher.core.randomness import Rng, SeededRng

WORDS = ["the", "cat", "(sat)", "on", "mat.", "a", "Dog,", "is", "not", "here!", "été", "-", "'so'", "42", "naïve", "x"]


def made_text(words: int, rng: Rng) -> str:
    return " ".join(WORDS[k] for k in rng.categorical(torch.zeros(1, len(WORDS)), words)[0].tolist()) if words else ""


def made_references(lines: int, *, seed: int = 0, longest: int = 12) -> list[str]:
    """Lines of 0 to `longest` words."""
    lengths = SeededRng(seed, "lengths").categorical(torch.zeros(1, longest + 1), lines)[0].tolist()
    return [made_text(length, SeededRng(seed, "text", line)) for line, length in enumerate(lengths)]


def translated(references: list[str], *, seed: int, keep: int = 7) -> list[str]:
    """Each word is kept `keep` times of ten, else replaced, and dropped once in twenty."""
    actual = []
    for line, reference in enumerate(references):
        words = reference.split()
        fate = SeededRng(seed, "fate", line).categorical(torch.zeros(1, 10), max(len(words), 1))[0].tolist()
        other = made_text(len(words), SeededRng(seed, "other", line)).split()
        gone = SeededRng(seed, "gone", line).categorical(torch.zeros(1, 20), max(len(words), 1))[0].tolist()
        pairs = zip(words, other, fate, gone, strict=False)
        actual.append(" ".join(word if luck < keep else swap for word, swap, luck, lost in pairs if lost))
    return actual
