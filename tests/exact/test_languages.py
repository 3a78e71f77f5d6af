"""Motif processes: the paper's entropies, brute force, a second way of counting, and wrong ways that are caught."""

import itertools
import math
import time

import pytest
import torch

from esscher.bases.mixture import MixtureBase, mixture_entropy
from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts, prompts_of
from esscher.core.target import Tilted
from esscher.exact.acceptors import contains, ends_with, starts_with
from esscher.exact.automaton import intersect
from esscher.exact.dynamic_programming import entropy, expectation, kl, log_partition, mean_length, normalise
from esscher.exact.enumeration import tabulate
from esscher.exact.features import indicator
from esscher.exact.languages import motif_process, white_noise
from esscher.samplers.ancestral import draw
from esscher.testing import check_base

PAPER = [  # motif, strings of length 30 that contain it, entropy per symbol: pure, mixture 0.9
    ("10001011111000", 1_113_640, 0.44913, 0.48178),
    ("01011101101", 10_462_980, 0.52140, 0.54679),
    ("001001100111", 4_978_944, 0.49744, 0.52525),
    ("1011100111001", 2_358_864, 0.47334, 0.50357),
    ("10001010001", 10_355_564, 0.52107, 0.54649),
    ("100010100011", 4_977_920, 0.49744, 0.52524),
]
SMALL = [
    ("01", "01"),
    ("11", "01"),
    ("010", "01"),
    ("0110", "01"),
    ("00100", "01"),
    ("aba", "abc"),
    ("aa", "abc"),
    ("cab", "abc"),
]


@pytest.mark.parametrize("row", PAPER, ids=[row[0] for row in PAPER])
def test_the_table_of_the_paper(row):
    """Both by counting and by dynamic programming over the automaton."""
    motif, count, pure, mixed = row
    began = time.process_time()
    process, mixture = motif_process(motif, 30), motif_process(motif, 30, mixture=0.9)
    assert process.count == count
    assert [f"{p.entropy_per_symbol:.5f}" for p in (process, mixture)] == [f"{pure:.5f}", f"{mixed:.5f}"]
    assert time.process_time() - began < 0.5
    for item in (process, mixture):
        assert float(entropy(item.base)) == pytest.approx(item.entropy, rel=1e-12)
        assert float(mean_length(item.base)) == pytest.approx(31)


def brute_force(motif: str, alphabet: str, length: int) -> int:
    return sum(motif in "".join(word) for word in itertools.product(alphabet, repeat=length))


@pytest.mark.parametrize(("motif", "alphabet"), SMALL)
@pytest.mark.parametrize("mixture", [None, 0.9, 0.25])
def test_processes_equal_brute_force(motif, alphabet, mixture):
    for length in range(len(motif), 7):
        process = motif_process(motif, length, alphabet, mixture)
        assert process.count == brute_force(motif, alphabet, length)
        table = tabulate(Tilted(process.base))
        assert float(table.entropy) == pytest.approx(process.entropy)
        held = table.expect(lambda x, p=process: torch.tensor([p.motif in word for word in p.decode(x)]))
        assert float(held) == pytest.approx(1.0 if mixture is None else mixture)
        possible = table.log_prob[0].exp() > 0
        assert set(map(len, process.decode(table.x.rows(possible)))) == {length}


def count_by_autocorrelation(motif: str, symbols: int, length: int) -> int:
    """Guibas and Odlyzko (1981): strings without the motif have the generating function c(z) / (z^m + (1 - k z) c(z))."""
    size = len(motif)
    overlap = [int(motif[shift:] == motif[: size - shift]) for shift in range(size)]
    below = [0] * (size + 1)
    for shift, bit in enumerate(overlap):
        below[shift] += bit
        below[shift + 1] -= symbols * bit
    below[size] += 1
    without: list[int] = []
    for n in range(length + 1):
        above = overlap[n] if n < size else 0
        without.append(above - sum(below[j] * without[n - j] for j in range(1, min(n, size) + 1)))
    return symbols**length - without[length]


@pytest.mark.parametrize("motif", [row[0] for row in PAPER] + ["1111111", "0101010", "0"])
@pytest.mark.parametrize(("alphabet", "length"), [("01", 30), ("01", 200), ("012", 57), ("01abcdefgh", 200)])
def test_counts_equal_a_second_way_of_counting(motif, alphabet, length):
    process = motif_process(motif, length, alphabet)
    assert process.count == count_by_autocorrelation(motif, len(alphabet), length)
    assert process.log_z == pytest.approx(math.log(process.count))


def test_length_200_is_exact_in_log_space():
    process = motif_process("10001011111000", 200, mixture=0.9)
    assert float(entropy(process.base)) == pytest.approx(process.entropy, rel=1e-11)
    assert process.count > 2**63


def wrong_contains(motif, *, shift: int):
    """Knuth-Morris-Pratt with a failure function off by one: a mismatch falls back too far, or not far enough."""
    right = ends_with(motif, 2)
    next_state = right.next_state.clone()
    for state in range(1, len(motif)):
        miss = 1 - motif[state]
        next_state[state, miss] = (next_state[state, miss] + shift).clamp(0, state)
    next_state[-1] = len(motif)
    return type(right)(next_state, right.accepting)


@pytest.mark.parametrize("shift", [-1, 1])
def test_brute_force_catches_a_wrong_failure_function(shift):
    caught = 0
    for motif in ("010", "0110", "00100", "0010"):
        tokens, noise = [int(c) for c in motif], white_noise(2, 6)
        exact = brute_force(motif, "01", 6) / 2**6
        for acceptor, right in ((contains(tokens, 2), True), (wrong_contains(tokens, shift=shift), False)):
            wide = type(acceptor)(
                torch.cat([acceptor.next_state, torch.arange(len(tokens) + 1)[:, None]], 1), acceptor.accepting
            )
            share = float(log_partition(intersect(noise, wide.to_weighted_automaton(noise.space))).exp())
            if right:
                assert share == pytest.approx(exact)
            else:
                caught += abs(share - exact) > 1e-9
    assert caught >= 3


def test_the_table_catches_an_end_symbol_that_is_not_counted():
    motif, _, pure, _ = PAPER[0]
    assert f"{motif_process(motif, 30).entropy / 30:.5f}" != f"{pure:.5f}"


def test_the_base_obeys_the_laws_and_continues_its_prompt():
    for mixture in (None, 0.9):
        process = motif_process("011", 5, mixture=mixture)
        check_base(process.base, [[], [1], [0, 1, 1], [1, 0]], tolerance=1e-12)
        x, _ = draw(process.base, prompts_of([[0, 1, 0]] * 50), 1, rng=SeededRng(1))
        assert all(len(point) == 3 for point in x.points())
    with pytest.raises(ValueError, match="No point can follow"):
        motif_process("011", 5).base.begin(prompts_of([[1, 1, 1, 1]]))


def test_draws_have_the_motif_at_the_exact_rate():
    """Pure: always. Mixture: 0.9, binomial, false-alarm rate 1e-9 at 6 standard errors."""
    pure, mixed = (motif_process("10001011111000", 30, mixture=m) for m in (None, 0.9))
    x, log_prob = draw(pure.base, empty_prompts(1), 300, rng=SeededRng(3))
    assert all(pure.motif in word and len(word) == 30 for word in pure.decode(x))
    assert torch.allclose(log_prob, torch.full_like(log_prob, -pure.log_z))
    x, _ = draw(mixed.base, empty_prompts(1), 2000, rng=SeededRng(4))
    rate = sum(mixed.motif in word for word in mixed.decode(x)) / 2000
    assert abs(rate - 0.9) < 6 * math.sqrt(0.09 / 2000)
    assert torch.equal(mixed.encode(mixed.decode(x)).tokens, x.tokens)


def test_mixture_of_motif_and_antimotif_is_the_mixture_process():
    process = motif_process("011", 6, mixture=0.9)
    parts = [motif_process("011", 6, mixture=m).base for m in (1.0, 0.0)]
    mixture = MixtureBase(tuple(parts), (0.9, 0.1))
    x = tabulate(Tilted(process.base)).x
    exact = process.base.log_probs(x).sum(-1)
    assert torch.allclose(mixture.log_probs(x).sum(-1).exp(), exact.exp())
    assert float(mixture_entropy(parts, (0.9, 0.1))) == pytest.approx(process.entropy)
    assert float(kl(parts[0], process.base)) == pytest.approx(-math.log(0.9))
    with pytest.raises(ValueError, match="share points"):
        mixture_entropy([parts[0], white_noise(2, 6)], (0.5, 0.5))


def test_mixture_refuses_what_is_no_mixture():
    noise = white_noise(2, 3)
    with pytest.raises(ValueError, match="need as many weights"):
        MixtureBase((noise,), (0.5, 0.5))
    with pytest.raises(ValueError, match="sum to 1"):
        MixtureBase((noise, noise), (0.5, 0.6))
    with pytest.raises(ValueError, match="different spaces"):
        MixtureBase((noise, white_noise(2, 4)), (0.5, 0.5))


def test_products_with_several_acceptors():
    """begins with 1, contains 00, not 11: counted by hand."""
    noise = white_noise(2, 8)
    space = noise.space
    wanted = [starts_with([1], 3), contains([0, 0], 3), ~contains([1, 1], 3)]
    several = intersect(noise, *(acceptor.to_weighted_automaton(space) for acceptor in wanted))
    at_once = intersect(noise, (wanted[0] & wanted[1] & wanted[2]).to_weighted_automaton(space))
    words = ["".join(word) for word in itertools.product("01", repeat=8)]
    share = sum(w[0] == "1" and "00" in w and "11" not in w for w in words) / len(words)
    for restricted in (several, at_once):
        assert float(log_partition(restricted).exp()) == pytest.approx(share)
    either = indicator("either", contains([1, 1, 1], 3) | contains([0, 0, 0], 3), space)
    assert float(expectation(noise, either)) == pytest.approx(sum("111" in w or "000" in w for w in words) / len(words))
    assert float(entropy(normalise(several))) == pytest.approx(math.log(share * len(words)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", 5), "at least one symbol"),
        (("0101", 3), "No string of 3 symbols"),
        (("012", 5), r"symbols \['2'\] that are not in the alphabet"),
        (("0", 5, "0110"), "different symbols"),
        (("01", 5, "01", 1.5), "between 0 and 1"),
        (("00", 5, "0", 0.9), "nothing to mix"),
    ],
)
def test_bad_processes_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        motif_process(*arguments)
