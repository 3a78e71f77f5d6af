"""Features of translations beside their sources, told by hand; and a lexicon from pairs."""

import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.core.space import sequences
from esscher.data.tokenizers import train_tokenizer
from esscher.energies.features import ConditionalLogLinear, prompt_network
from esscher.energies.translation_features import copied_words, coverage, length_ratio, lexicon_of

PAIRS = [
    ("Tom a 12 chats .", "Tom has 12 cats ."),
    ("Où est Marie ?", "Where is she ?"),
    ("Il y a 3 chiens et 40 chats .", "3 dogs"),
    ("Va !", "Go !"),
]


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("character", [text for pair in PAIRS for text in pair])


@pytest.fixture(scope="module")
def x(tokenizer):
    sources, targets = (tokenizer.encode(list(side)) for side in zip(*PAIRS, strict=True))
    ended = [[*point, tokenizer.eos] for point in targets]
    return sequences(ended, [[*source, tokenizer.eos] for source in sources])


def test_numbers_and_names_are_copied_or_not(tokenizer, x):
    assert copied_words(tokenizer.decode).of(x).tolist() == [1.0, 0.0, 0.5, 1.0]


def test_a_length_is_far_from_the_usual_one(tokenizer, x):
    actual = length_ratio(tokenizer.decode).of(x)
    expected = torch.tensor([6 / 6, 5 / 5, 3 / 10, 3 / 3], dtype=torch.float64).log().abs()
    torch.testing.assert_close(actual, expected)
    assert float(length_ratio(tokenizer.decode, usual=0.5).of(x)[2]) < float(actual[2])


def test_words_of_the_lexicon_are_covered(tokenizer, x):
    lexicon = {"chats": frozenset({"cats", "cat"}), "chiens": frozenset({"dogs"}), "et": frozenset({"and"})}
    assert coverage(tokenizer.decode, lexicon).of(x).tolist() == [1.0, 1.0, pytest.approx(1 / 3), 1.0]


def test_a_lexicon_finds_what_goes_together():
    words = {"chat": "cat", "chien": "dog", "grand": "big", "petit": "small"}
    animals, sizes = ["chat", "chien"], ["grand", "petit"]
    sources = [f"le {size} {animal}" for size in sizes for animal in animals] * 3
    targets = [f"the {words[source.split()[1]]} {words[source.split()[2]]}" for source in sources]
    actual = lexicon_of(sources, targets, dice=0.7)
    assert {word: set(others) for word, others in actual.items()} == {"le": {"the"}, **{word: {words[word]} for word in words}}
    assert lexicon_of(sources, targets, least=13) == {}


def test_weights_may_depend_on_the_source(tokenizer, x):
    features = [copied_words(tokenizer.decode), length_ratio(tokenizer.decode)]
    energy = ConditionalLogLinear(features, prompt_network(tokenizer.vocab_size, 2, width=8, rng=SeededRng(0)))
    assert energy(x).detach().abs().max() == 0, "it begins at the base itself"
    with torch.no_grad():
        energy.network.head.bias.copy_(torch.tensor([2.0, -1.0]))
    expected = -2 * copied_words(tokenizer.decode).of(x) + length_ratio(tokenizer.decode).of(x)
    torch.testing.assert_close(energy(x).detach(), expected)
