"""The level of a base's own logits as an energy: p_T of E-Forcing by enumeration, the laws, prefixes, and its name."""

import math
from dataclasses import replace

import pytest
import torch
from causal_models import tiny_base
from random_targets import PROMPTS, random_automaton
from small_networks import CONFIGS, lively

from esscher.bases.logits import log_probs_and_logsumexp
from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.energies import self_energy
from esscher.energies.self_energy import SavedSelfEnergy, SelfEnergy, is_self_energy, normalised_self_energy
from esscher.energies.serialization import load_energy
from esscher.exact.enumeration import enumerate_points, tabulate
from esscher.networks.recurrent_config import LstmConfig
from esscher.objectives.config import EForcingConfig
from esscher.objectives.exposure_bias import EForcing
from esscher.papers.laboratory.residual import random_process
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Exhaustive
from esscher.testing import check_energy

SPACES = {"fixed length": Space(3, 4), "end symbol": Space(3, 4, eos=0)}
KINDS = ["lstm, vectors", "enas", "transformer, softmaxes", "transformer, learned", "transformer, adaptive", "transformer-xl"]
KINDS += ["encoder-decoder", "attentive-lstm"]  # the prompt is a source, and stays one
BASES = {kind: lambda space, kind=kind: lively(CONFIGS[kind], space) for kind in KINDS}
BASES |= {kind: lambda space, kind=kind: tiny_base(kind, eos=space.eos) for kind in ("gpt2", "llama")}
EMPTY = sequences([[], [], [1, 0]], [[], [2, 1], []])


def some_points(space: Space) -> Sequences:
    every = enumerate_points(space, prompts_of(PROMPTS))
    return every.rows(SeededRng(0).permutation(len(every))[:24])


@pytest.mark.parametrize("kind", BASES)
@pytest.mark.parametrize("space", SPACES)
def test_it_foresees_by_the_laws_of_an_energy(kind, space):
    base = BASES[kind](SPACES[space])
    energy = SelfEnergy(base)
    check_energy(energy.twist, some_points(SPACES[space]).prompts(), tolerance=2e-4)
    assert energy(EMPTY)[:2].tolist() == [0, 0] and energy(EMPTY.rows(slice(0, 0))).shape == (0,)
    assert float(energy(some_points(SPACES[space])).detach().std()) > 0.01
    assert Tilted(base, energy).energy.vocab_size == 3


@pytest.mark.parametrize("kind", ["lstm, vectors", "gpt2"])
@pytest.mark.parametrize("space", SPACES)
def test_the_tilted_base_is_p_t(kind, space):
    """log a(x) - E(x) = log q(x_<T) + f(x_T | x_<T), whatever the base's way to tell levels; wrong columns differ."""
    base = BASES[kind](SPACES[space]).double()
    x = enumerate_points(SPACES[space], prompts_of(PROMPTS))
    last, row = x.stop - 1, torch.arange(len(x))
    logit = base.logits(x)[row, last, x.tokens[row, last]]
    expected = base.log_probs(x).sum(-1) - base.log_probs(x)[row, last] + logit
    torch.testing.assert_close(Tilted(base, SelfEnergy(base)).log_score(x), expected, atol=1e-10, rtol=0)
    wrong = base.log_probs(x).sum(-1) + log_probs_and_logsumexp(base, x)[1][row, torch.maximum(last - 1, x.start)]
    assert float((wrong - expected).detach().abs().max()) > 0.01


@pytest.mark.parametrize("kind", BASES)
def test_after_a_prefix_comes_the_level_of_its_next_token(kind):
    space = SPACES["fixed length"]
    base = BASES[kind](space)
    energy, x = SelfEnergy(base), enumerate_points(space, prompts_of(PROMPTS))
    for length in range(space.max_length):
        longer = Sequences(x.tokens, x.start, x.start + length + 1)
        actual = energy.twist(Sequences(x.tokens, x.start, x.start + length))
        torch.testing.assert_close(actual, -energy(longer), atol=2e-4, rtol=0)


@pytest.mark.parametrize("kind", ["lstm, vectors", "llama"])
def test_rows_come_in_pieces(kind, monkeypatch):
    base = BASES[kind](SPACES["end symbol"])
    x = some_points(SPACES["end symbol"])
    whole = SelfEnergy(base)(x), SelfEnergy(base).twist(x.prompts())
    monkeypatch.setattr(self_energy, "TOKENS_AT_ONCE", 15)
    sizes = []

    def told(base, some):
        sizes.append(len(some))
        return log_probs_and_logsumexp(base, some)

    monkeypatch.setattr(self_energy, "log_probs_and_logsumexp", told)
    again = SelfEnergy(base)(x), SelfEnergy(base).twist(x.prompts())
    assert len(sizes) > 12 and sum(sizes) == 48
    torch.testing.assert_close(again, whole, atol=1e-4, rtol=0)


def test_a_gradient_goes_through_it():
    base = lively(CONFIGS["lstm, vectors"], SPACES["end symbol"]).double()
    energy, x = SelfEnergy(base), some_points(SPACES["end symbol"])
    weight = base.network.head.bias
    (slope,) = torch.autograd.grad(energy(x).sum(), weight)
    with torch.no_grad():
        before = energy(x).sum()
        weight[1] += 1e-6
        after = energy(x).sum()
    assert float((after - before) / 1e-6) == pytest.approx(float(slope[1]), rel=1e-4)


def test_dropout_is_caught_and_a_base_without_logits_refused():
    x = some_points(SPACES["fixed length"])
    noisy = lively(replace(CONFIGS["transformer, rotary"], dropout=0.5), SPACES["fixed length"]).train()
    with SeededRng(0).fork_torch_rng(), pytest.raises(AssertionError, match="dropout"):
        check_energy(SelfEnergy(noisy), x)
    with pytest.raises(ValueError, match="has no `logits`"):
        SelfEnergy(random_automaton(SPACES["fixed length"]))(x)


def test_the_word_self_is_the_base_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = lively(CONFIGS["lstm, vectors"], SPACES["fixed length"])
    saved = load_energy("self")
    assert isinstance(saved, SavedSelfEnergy) and saved.energy(None, base) == SelfEnergy(base)
    saved.check_base(base)
    assert not is_self_energy(None) and not is_self_energy("runs/self")
    with pytest.raises(ValueError, match=r"give the base too"):
        saved.energy()
    (tmp_path / "self").mkdir()
    assert is_self_energy("self")  # a folder without an energy is no rival
    (tmp_path / "self" / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"a folder of that name with an energy.*whole path"):
        load_energy("self")


def ended(seed: int, counts: str = "again"):
    """A truth whose points end, all points with their probabilities, and a base that learnt 60 of them by E-Forcing."""
    space = Space(3, 5, eos=0)
    truth = random_process(seed)
    data, _ = draw(truth, empty_prompts(1), 60, rng=SeededRng(seed))
    base = build_base(LstmConfig(8, 1, embedding=4), space, rng=SeededRng(seed)).double()
    objective, optimizer = EForcing(EForcingConfig(0.3, counts=counts)), torch.optim.Adam(base.parameters(), 0.03)
    for step in range(60):
        optimizer.zero_grad()
        objective(Tilted(base), data, rng=SeededRng(seed).stream(step)).value.backward()
        optimizer.step()
    return tabulate(Tilted(truth)), base.eval(), data


class Shifted(torch.nn.Module):
    """A base with a constant added to all logits of each position: the same probabilities."""

    def __init__(self, base, constants):
        super().__init__()
        self.base, self.space, self.constants = base, base.space, constants
        self.begin, self.advance, self.select, self.log_probs = base.begin, base.advance, base.select, base.log_probs

    def logits(self, x):
        return self.base.logits(x) + self.constants[: x.tokens.shape[1], None]


def test_lengths_are_weighed_by_constants_that_training_does_not_see():
    """Where points end, the self-energy as it is depends on them; divided by the mean of each position it does not."""
    truth, base, data = ended(0)
    objective, constants = EForcing(EForcingConfig(0.3), sampler=Exhaustive()), torch.tensor([0.0, 2.0, -1.0, 1.0, -2.0])
    values, raw, normalised = [], [], []
    for model in (base, Shifted(base, constants.double())):
        values.append(float(objective(Tilted(model), data.rows(slice(0, 5)), rng=SeededRng(0)).value.detach()))
        draws, _ = draw(model, empty_prompts(1), 400, rng=SeededRng(3))
        raw.append(float(truth.kl(tabulate(Tilted(model, SelfEnergy(model))))))
        normalised.append(float(truth.kl(tabulate(Tilted(model, normalised_self_energy(model, draws))))))
    assert values[1] == pytest.approx(values[0], abs=1e-9) and normalised[1] == pytest.approx(normalised[0], abs=1e-9)
    assert raw[1] > raw[0] + 0.1


def test_equal_lengths_need_no_constants():
    base = BASES["lstm, vectors"](SPACES["fixed length"]).double()
    draws, _ = draw(base, empty_prompts(1), 50, rng=SeededRng(1))
    energies = (SelfEnergy(base), normalised_self_energy(base, draws))
    plain, divided = (tabulate(Tilted(base, energy)) for energy in energies)
    torch.testing.assert_close(plain.log_prob, divided.log_prob)
    assert float((plain.log_weight - divided.log_weight).abs().min()) > 1e-3
    with pytest.raises(ValueError, match="no draw"):
        normalised_self_energy(base, empty_prompts(2))


def test_the_mean_of_a_position_is_that_of_the_draws_which_reach_it():
    base = BASES["lstm, vectors"](SPACES["end symbol"]).double()
    x = some_points(SPACES["end symbol"])
    logsumexp = log_probs_and_logsumexp(base, x)[1].detach()
    for position, actual in enumerate(normalised_self_energy(base, x).log_means):
        rows = [row for row in range(len(x)) if int(x.lengths[row]) > position]
        values = [float(logsumexp[row, int(x.start[row]) + position].exp()) for row in rows]
        assert actual == pytest.approx(math.log(sum(values) / len(values)))
