"""Stored negatives: a sampler of the base's law, by prompt, that survives its file and refuses other bases."""

import pytest
import torch
from random_targets import PROMPTS, random_automaton, taste
from small_networks import CONFIGS, lively

from esscher.core.draws import Sampler
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.energies.serialization import base_digest
from esscher.objectives.noise_contrastive import (
    NoiseContrast,
    StoredNegatives,
    base_fingerprint,
    concatenate_negatives,
    load_negatives,
    store_negatives,
)
from esscher.testing import assert_draws_follow

SPACE = Space(3, 4, eos=0)
DATA = sequences([[1, 0], [2, 2, 2, 2], [0], [1, 0]], [[1], [], [2, 1], [1]])


def test_draws_come_from_the_table_after_their_own_prompt():
    base = random_automaton(SPACE)
    stored = store_negatives(base, DATA, 6, rng=SeededRng(0))
    assert isinstance(stored, Sampler) and stored.log_base.shape == (3, 6)
    actual = stored(Tilted(base), DATA.prompts(), 4, rng=SeededRng(1))
    again = stored(Tilted(base), DATA.prompts(), 4, rng=SeededRng(1))
    assert torch.equal(actual.x.tokens, again.x.tokens)
    other = stored(Tilted(base), DATA.prompts(), 4, rng=SeededRng(2))
    assert not torch.equal(actual.x.tokens, other.x.tokens)
    assert actual.x.start.tolist() == DATA.start.repeat_interleave(4).tolist()
    assert torch.allclose(actual.log_base.view(-1), base.log_probs(actual.x).sum(-1))
    for row, start in enumerate(DATA.start.tolist()):
        mine = actual.x.rows(slice(4 * row, 4 * row + 4))
        assert bool((mine.tokens[:, :start] == DATA.tokens[row, :start]).all())


def test_the_negatives_of_one_prompt_are_different_rows():
    stored = store_negatives(random_automaton(Space(3, 12)), sequences([[1] * 12]), 8, rng=SeededRng(0))
    actual = stored(Tilted(random_automaton(Space(3, 12))), prompts_of([[]]), 8, rng=SeededRng(1))
    assert sorted(actual.x.points()) == sorted(stored.x.points())


def test_picked_draws_follow_the_base():
    """False-alarm rate 1e-6: every prompt has a table of its own, so prompts are replicates; 600 of 4 kinds, 4 at a time."""
    base = random_automaton(SPACE)
    prompts = prompts_of([PROMPTS[row % len(PROMPTS)] for row in range(600)])
    some = [prompts.rows(slice(first, first + 4)) for first in range(0, 600, 4)]
    tables = [store_negatives(base, four, 3, rng=SeededRng(number)) for number, four in enumerate(some)]
    pairs = enumerate(zip(tables, some, strict=True))
    parts = [table(Tilted(base), four, 2, rng=SeededRng(number, "pick")) for number, (table, four) in pairs]
    from esscher.core.draws import Draws
    from esscher.core.space import concatenate

    x, log_base = concatenate([part.x for part in parts]), torch.cat([part.log_base for part in parts])
    draws = Draws(x, torch.zeros_like(log_base), log_base, estimates_z=True, independent=True, cost=0)
    assert_draws_follow(Tilted(base), prompts, draws)
    wrong = Tilted(random_automaton(SPACE, seed=8))
    with pytest.raises(AssertionError, match="standard errors apart"):
        assert_draws_follow(wrong, prompts, draws)


def test_a_file_gives_the_same_table_to_the_same_base(tmp_path):
    base = lively(CONFIGS["gru, one-hot"], SPACE)
    stored = store_negatives(base, DATA, 4, rng=SeededRng(0))
    stored.save(tmp_path / "negatives.safetensors")
    loaded = load_negatives(tmp_path / "negatives.safetensors", base)
    target = Tilted(base, taste(SPACE))
    both = [NoiseContrast(table, negatives=2)(target, DATA, rng=SeededRng(5)) for table in (stored, loaded)]
    assert both[0].value == both[1].value
    with pytest.raises(ValueError, match=r"drawn from another base .*draw them anew"):
        load_negatives(tmp_path / "negatives.safetensors", lively(CONFIGS["gru, one-hot"], SPACE, seed=2))


def test_errors():
    base = random_automaton(SPACE)
    stored = store_negatives(base, DATA, 4, rng=SeededRng(0))
    with pytest.raises(ValueError, match="has 4 negatives of each prompt, not 5"):
        stored(Tilted(base), DATA.prompts(), 5, rng=SeededRng(0))
    with pytest.raises(ValueError, match="no negatives after 1 of 2 prompts, the first in row 1"):
        stored(Tilted(base), prompts_of([[], [2]]), 1, rng=SeededRng(0))
    with pytest.raises(ValueError, match="at least 1 negative"):
        store_negatives(base, DATA, 0, rng=SeededRng(0))
    assert isinstance(stored, StoredNegatives)


def test_tables_of_one_base_are_joined_by_prompts_or_by_draws():
    base = random_automaton(SPACE)
    after = [store_negatives(base, sequences([[1]], [prompt]), 3, rng=SeededRng(1), known="a") for prompt in ([1], [2, 1])]
    both = concatenate_negatives(after)
    assert both.log_base.shape == (2, 3) and both.digest == "a" and list(both.places) == [(1,), (2, 1)]
    assert torch.allclose(both.log_base.view(-1), base.log_probs(both.x).sum(-1))
    more = concatenate_negatives([after[0], store_negatives(base, sequences([[1]], [[1]]), 2, rng=SeededRng(2), known="a")])
    assert more.log_base.shape == (1, 5) and list(more.places) == [(1,)]
    assert torch.allclose(more.log_base.view(-1), base.log_probs(more.x).sum(-1))
    fewer = store_negatives(base, sequences([[1]], [[2]]), 2, rng=SeededRng(2), known="a")
    for wrong in ([after[0], fewer], [after[0], store_negatives(base, sequences([[1]]), 3, rng=SeededRng(2), known="b")]):
        with pytest.raises(ValueError, match="are not joined"):
            concatenate_negatives(wrong)


def test_a_table_costs_nothing_and_is_known_by_its_base(tmp_path):
    base = lively(CONFIGS["gru, one-hot"], SPACE)
    stored = store_negatives(base, DATA, 3, rng=SeededRng(0))
    actual = stored(Tilted(base), DATA.prompts(), 2, rng=SeededRng(0))
    assert (actual.cost, actual.estimates_z, actual.independent) == (0, True, True) and not bool(actual.log_weight.any())
    assert stored.digest == base_digest(base) and base_fingerprint(random_automaton(SPACE)) == ""
    store_negatives(base, DATA, 3, rng=SeededRng(0), known="x").save(tmp_path / "x.safetensors")
    again = load_negatives(tmp_path / "x.safetensors", base, known="x")
    assert again.digest == "x" and again.x.points() == stored.x.points() and torch.equal(again.log_base, stored.log_base)
    with pytest.raises(ValueError, match=r"another base \(digest x, and this one has y\)"):
        load_negatives(tmp_path / "x.safetensors", base, known="y")
