"""Lengths of context: losses after cut contexts, and the published measure against a plain rewriting of it."""

import math

import pytest
import torch
from cli_calls import answer, call
from random_targets import random_automaton
from small_networks import CONFIGS, lively

from esscher.core.randomness import SeededRng
from esscher.core.space import Space, sequences
from esscher.data.tokenizers import train_tokenizer
from esscher.estimators.long_context import THRESHOLD, ContextLosses, context_losses, spread_places
from esscher.hub import save_base
from esscher.workflow.config.analyse import ContextConfig

SPACE = Space(5, 4)


def tokens_of(count, vocabulary=5):
    return torch.randint(vocabulary, (count,), generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("kind", ["lstm, vectors", "transformer, learned"])
def test_losses_are_those_of_cut_contexts(kind):
    base, tokens, places = lively(CONFIGS[kind], SPACE), tokens_of(40), torch.tensor([9, 17, 39])
    max_context = None if kind.startswith("lstm") else 6  # of 7 positions
    actual = context_losses(base, tokens, places, [0, 3, 9], max_context=max_context)
    for row, length in enumerate((0, 3, 9 if max_context is None else 6)):
        for column, place in enumerate(places.tolist()):
            x = sequences([[int(tokens[place])]], [tokens[place - length : place].tolist()])
            expected = -base.log_probs(x).detach().sum()
            assert float(actual[row, column]) == pytest.approx(float(expected), abs=1e-5)


def plainly(losses, lengths, model, share):
    """The algorithm of Dai et al. (2019), appendix C, written again token by token."""
    names, place = list(losses), 0
    while place + 1 < len(lengths):
        count = len(losses[model][0])
        baseline = [min(float(losses[name][place][t]) for name in names) for t in range(count)]
        hard = sorted(range(count), key=lambda t: -baseline[t])[: max(1, round(share * count))]
        relative = [min(baseline[t], float(losses[model][place + 1][t])) for t in hard]
        short = sum(baseline[t] for t in hard) / len(hard)
        long = sum(relative) / len(hard)
        if (math.exp(short) - math.exp(long)) / math.exp(short) < THRESHOLD:
            return lengths[place]
        place += 1
    return lengths[-1]


@pytest.fixture(scope="module")
def group():
    """The first model gains from each length less than from the one before, the second stops after three."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.empty(3, 400, dtype=torch.float64).exponential_(generator=generator)
    gain = {"far": [0, 0.3, 0.5, 0.6, 0.64, 0.645], "near": [0.2, 0.35, 0.4, 0.4, 0.4, 0.4], "none": [0.0] * 6}
    confidence = 0.5 + torch.empty(400, dtype=torch.float64).exponential_(generator=generator)
    losses = {
        name: torch.stack([confidence * (1 - item) + 0.2 * noise[number] for item in gains])
        for number, (name, gains) in enumerate(gain.items())
    }
    return ContextLosses((10, 20, 30, 40, 50, 60), losses)


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_measure_is_the_published_one(group, share):
    actual = {name: group.effective_length(name, share, rng=SeededRng(0)) for name in group.losses}
    for name, length in actual.items():
        assert length.value == plainly(group.losses, group.lengths, name, share)
        assert length.low <= length.value <= length.high and length.unit == "tokens"
    assert actual["far"].value > actual["near"].value > actual["none"].value == 10


def test_a_baseline_of_ones_own_is_another_measure(group):
    """What the group does matters: alone, the second model looks longer-sighted than beside a better one."""
    alone = ContextLosses(group.lengths, {"near": group.losses["near"]})
    assert alone.effective_length("near", 1.0, rng=SeededRng(0)).value == 30
    beside = ContextLosses(group.lengths, {"near": group.losses["near"], "better": group.losses["far"] - 1.0})
    assert beside.effective_length("near", 1.0, rng=SeededRng(0)).value < 30


def test_a_context_that_is_not_read_cannot_help():
    """An automaton that forgets gives one loss for every length; its length is the shortest."""
    base = random_automaton(Space(3, 4), states=1)
    tokens = tokens_of(300, 3)
    losses = context_losses(base, tokens, spread_places(50, 300, 8), (2, 4, 8))
    assert torch.allclose(losses[0], losses[2])
    actual = ContextLosses((2, 4, 8), {"blind": losses})
    assert actual.effective_length("blind", 1.0, rng=SeededRng(0)).high == 2
    by_length = actual.by_length("blind")
    assert by_length[0].low < by_length[0].value < by_length[0].high and by_length[0].value == by_length[2].value


def test_places_and_what_is_refused():
    assert spread_places(4, 108, 8).tolist() == [8, 33, 58, 83] and len(spread_places(500, 20, 8)) == 12
    with pytest.raises(ValueError, match="no place after 8"):
        spread_places(4, 9, 8)
    base = lively(CONFIGS["lstm, vectors"], SPACE)
    for lengths in ([3, 2], [], [1, 1], [1, 12]):
        with pytest.raises(ValueError, match="Nothing was measured"):
            context_losses(base, tokens_of(20), torch.tensor([10]), lengths)
    for wrong in ({"step": 0}, {"step": 9, "longest": 8}, {"positions": 1}):
        with pytest.raises(ValueError, match="Nothing was measured"):
            ContextConfig(("model",), data="text", **wrong)


def test_the_verb(capsys, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join("ab" * (n % 5) + "c" for n in range(80)))
    tokenizer = train_tokenizer("character", ["abc"])
    for name, kind in (("one", "lstm, vectors"), ("two", "gru, vectors")):
        save_base(tmp_path / name, lively(CONFIGS[kind], Space(tokenizer.vocab_size, 8)), tokenizer)
    plot = ("--plot", str(tmp_path / "p.png"))
    flags = ("--data", str(text), "--step", "4", "--longest", "12", "--positions", "40", *plot)
    output = answer(capsys, "analyse", "context", str(tmp_path / "one"), str(tmp_path / "two"), *flags)
    assert [row["context"] for row in output["perplexity_by_context"]] == [4, 8, 12] and output["places"] == 40
    assert [set(row) for row in output["effective_length"]] == [{"model", "hardest 0.1", "hardest 0.5", "hardest 1"}] * 2
    assert (tmp_path / "p.png").stat().st_size > 1000
    other = train_tokenizer("character", ["abcd"])
    save_base(tmp_path / "other", lively(CONFIGS["lstm, vectors"], Space(other.vocab_size, 8)), other)
    code, _, err = call(capsys, "analyse", "context", str(tmp_path / "one"), str(tmp_path / "other"), *flags)
    assert code == 1 and "different tokens" in err
