"""Strings whose hash begins with zero bits: counted, drawn and scored exactly, as a source of data and as a feature."""

import hashlib
import math

import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.core.target import Tilted
from esscher.data.config import DataConfig
from esscher.data.tokenizers import character_tokenizer
from esscher.energies.declared_features import feature_from_spec
from esscher.energies.feature_spec import parse_feature
from esscher.energies.features import LogLinear, feature_values
from esscher.exact.automaton import Automaton
from esscher.exact.counting import leading_zero_bits
from esscher.exact.enumeration import tabulate
from esscher.exact.hash_language import HashProcess
from esscher.workflow.config.tilt import FitConfig
from esscher.workflow.processors import hash_splits, process_splits
from esscher.workflow.tilt import fit_feature_weights

PROCESS = HashProcess(2, length=8)
DECODE = character_tokenizer("01", eos=2, unknown=False).decode


def coin(share: float = 0.6, end: float = 0.0) -> Automaton:
    """Independent symbols, and after each a chance to end before the largest length."""
    log_emission = torch.tensor([[share * (1 - end), (1 - share) * (1 - end), end]], dtype=torch.float64).log()
    return Automaton(log_emission, torch.zeros(1, 3, dtype=torch.long), Space(3, 8, eos=2))


def test_the_bits_are_those_of_blake2b():
    for text in ("", "0110", "Straße"):
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        bits = "".join(f"{byte:08b}" for byte in digest)
        assert leading_zero_bits(text) == len(bits) - len(bits.lstrip("0"))


def test_all_strings_that_obey_are_there_and_no_others():
    every = [f"{number:08b}" for number in range(256)]
    assert list(PROCESS.strings) == [text for text in every if leading_zero_bits(text) >= 2]
    assert PROCESS.share == PROCESS.count / 256 and PROCESS.entropy_per_symbol == math.log(PROCESS.count) / 8
    assert DECODE(PROCESS.points.points()) == list(PROCESS.strings)


@pytest.mark.parametrize("end", [0.0, 0.2])
@pytest.mark.parametrize("weight", [0.0, 3.0])
def test_the_cross_entropy_is_that_of_enumeration(weight, end):
    feature = feature_from_spec(parse_feature("hash:2"), DECODE)
    base = coin(end=end)
    table = tabulate(Tilted(base, LogLinear([feature], torch.tensor([weight], dtype=torch.float64))))
    whole = (table.x.lengths == 8) & (table.x.tokens[:, 7] != 2)
    chosen = feature_values([feature], table.x)[:, 0].bool() & whole
    exact = -float(table.log_prob[0, chosen].mean()) / 8
    assert int(chosen.sum()) == PROCESS.count and PROCESS.cross_entropy(base, weight) == pytest.approx(exact, abs=1e-9)


def test_one_weight_reaches_the_entropy_that_next_symbols_cannot():
    """A fair coin is the best model of next symbols; with the feature it is the process itself."""
    assert PROCESS.cross_entropy(coin(0.5)) == pytest.approx(math.log(2))
    assert PROCESS.cross_entropy(coin(0.5), weight=40.0) == pytest.approx(PROCESS.entropy_per_symbol, abs=1e-9)
    splits = hash_splits(DataConfig("hash:2", length=8, size=30), 2, rng=SeededRng(0))
    feature = feature_from_spec(parse_feature("hash:2"), splits.tokenizer.decode)
    fitted = fit_feature_weights(coin(0.5), [feature], splits.train, {}, FitConfig(draws=4000), rng=SeededRng(0))
    reached = PROCESS.cross_entropy(coin(0.5), fitted.fit.weights[0].value)
    assert PROCESS.entropy_per_symbol < reached < PROCESS.entropy_per_symbol + 0.03


def test_no_string_is_in_two_splits():
    data = DataConfig("hash:2", length=8, size=30)
    splits = process_splits(data, rng=SeededRng(1))
    parts = [{*splits.tokenizer.decode(x.points())} for x in (splits.train, splits.validation, splits.test)]
    assert [len(part) for part in parts] == [30, 7, PROCESS.count - 37]
    assert set.union(*parts) == set(PROCESS.strings)
    assert dict(splits.truth)["entropy of the process"].value == PROCESS.entropy_per_symbol
    other = process_splits(data, rng=SeededRng(2))
    assert other.train.points() != splits.train.points()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: HashProcess(0), "of which the first 0"),
        (lambda: HashProcess(4, length=30), "too many to be tried"),
        (lambda: HashProcess(4, alphabet="00"), "different symbols"),
        (lambda: HashProcess(60, length=3).strings, "No string of 3 symbols"),
        (lambda: DataConfig("hash:four").zero_bits, "written hash:4"),
        (lambda: parse_feature("hash:zero"), "1 to 64 zero bits"),
        (lambda: parse_feature("hash[on=tokens]:4"), "reads text"),
        (lambda: process_splits(DataConfig("hash:2", length=8, size=80), rng=SeededRng(0)), "lower data.size"),
    ],
)
def test_what_cannot_be_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
