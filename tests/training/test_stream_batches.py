"""Training on streams: what each update reads, memories that go on, checkpoints with them, and what is refused."""

import functools
import math
import signal
from dataclasses import replace
from itertools import pairwise

import interrupted
import pytest
import torch
from killable_run import Events, outcome, start
from marks import slow
from stream_run import SETTINGS, SPACE, new_base, run, text
from tiny_run import fingerprint

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences
from esscher.core.target import Tilted
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.likelihood import Likelihood
from esscher.training import stream_batches
from esscher.training.config import TrainingConfig
from esscher.training.evaluation import HeldOut, mean_loss
from esscher.training.optimizers import WeightAverage
from esscher.training.stream_batches import SegmentSchedule, TokenStream, segment_length_log_probs
from esscher.training.trainer import Trainer


class Heard:
    """The likelihood, with what it was given."""

    def __init__(self):
        self.parts, self.memories = [], []

    def __call__(self, target, data, *, rng, step=0):
        self.parts.append((step, data.tokens.clone()))
        self.memories.append([part.clone() for part in target.base.memory])
        return Likelihood()(target, data, rng=rng, step=step)


def heard(config, stream, base=None):
    objective, base = Heard(), new_base() if base is None else base
    Trainer(config)(objective, Tilted(base), stream, modules=base)
    return objective


# what is read


def test_columns_are_read_in_order_and_begin_again_with_each_epoch():
    config = replace(SETTINGS, steps=None, epochs=2, gradient_accumulation_steps=1, batch_size=4)
    stream = TokenStream(torch.arange(4 * 23 + 3) % 5, 7)
    objective = heard(config, stream)
    assert [step for step, _ in objective.parts] == list(range(8))  # 7 + 7 + 7 + 2 tokens, twice
    for first in (0, 4):
        epoch = torch.cat([tokens for _, tokens in objective.parts[first : first + 4]], 1)
        assert torch.equal(epoch, stream.tokens[: 4 * 23].view(4, 23))
    opened = new_base().init_memory(4)
    for step, memory in enumerate(objective.memories):
        fresh = all(torch.equal(item, other) for item, other in zip(memory, opened, strict=True))
        assert fresh == (step in (0, 4)), f"step {step}"
    assert torch.equal(objective.memories[1][0], objective.parts[0][1][:, -1])


def test_the_memory_is_that_of_all_that_was_read():
    """With a learning rate of nearly 0, the losses of an epoch are those of the columns in one pass."""
    config = replace(
        SETTINGS, steps=4, gradient_accumulation_steps=1, batch_size=3, learning_rate=1e-12, log_every=1, warmup_steps=0
    )
    base, tokens = new_base(dropout=0.0), text(3 * 20)
    record = Trainer(config)(Likelihood(), Tilted(base), TokenStream(tokens, 5), modules=base)
    full = torch.full((3,), 20)
    whole = -base.log_probs(Sequences(tokens.view(3, 20), torch.zeros_like(full), full))
    actual = [entry["loss"] for entry in record.history]
    assert actual == pytest.approx([whole[:, first : first + 5].mean().item() for first in range(0, 20, 5)], abs=1e-5)


def test_groups_of_columns_give_the_gradient_of_all():
    weights = []
    for gradient_accumulation_steps in (1, 4):
        base = new_base(dropout=0.0).double()
        config = replace(SETTINGS, steps=6, gradient_accumulation_steps=gradient_accumulation_steps, optimizer="sgd")
        Trainer(config)(Likelihood(), Tilted(base), TokenStream(text(400), 9), modules=base)
        weights.append(torch.cat([p.detach().reshape(-1) for p in base.parameters()]))
    assert torch.allclose(*weights, atol=1e-10)


def test_it_learns_what_only_a_memory_can_know():
    """A stream of 0 0 1 0 0 1 ... a token at a time: what comes is told by the last two, of which a segment has none."""
    tokens = (torch.arange(4001) % 3 == 2).long()
    config = TrainingConfig(steps=80, batch_size=8, learning_rate=0.05, seed=1)
    losses = []
    for data in (TokenStream(tokens, 1), stream_batches.segment_sequences(tokens[:, None])):
        base = new_base(dropout=0.0, width=16)
        record = Trainer(config)(Likelihood(), Tilted(base), data, modules=base)
        losses.append(record.history[-1]["loss"])
    assert losses[0] < 0.25 < 0.46 < losses[1]  # the last token alone would leave two thirds of log 2


# segments by chance


def test_lengths_by_chance_follow_their_law():
    """A normal of spread 5 around the length, or around its half once in twenty, cut to whole tokens, at least 5."""
    share = segment_length_log_probs(70).exp()
    lengths = torch.arange(5, 5 + len(share), dtype=torch.float64)
    assert float(share.sum()) == pytest.approx(1.0)
    assert float((share * lengths).sum()) == pytest.approx(0.95 * 69.5 + 0.05 * 34.5, abs=1e-6)
    assert float(share[lengths < 52].sum()) == pytest.approx(0.05, abs=1e-3)
    short = segment_length_log_probs(8).exp()
    normal = torch.distributions.Normal(torch.tensor([8.0, 4.0], dtype=torch.float64), 5.0)
    assert float(short[0]) == pytest.approx(float((normal.cdf(torch.tensor(6.0)) * torch.tensor([0.95, 0.05])).sum()))
    plan = SegmentSchedule(TokenStream(text(10), 70, "random"), 40_000, seed=3)
    places = [plan.place(step) for step in range(plan.steps(1))]
    actual = torch.tensor([last - first for first, last in places[:-1]], dtype=torch.float64)
    error = float(actual.std()) / math.sqrt(len(actual))
    assert abs(float(actual.mean()) - (0.95 * 69.5 + 0.05 * 34.5)) < 5 * error  # false-alarm rate 1e-6


def test_segments_by_chance_cover_each_epoch_and_scale_the_learning_rate():
    plan = SegmentSchedule(TokenStream(text(10), 20, "random"), 333, seed=3)
    epochs = []
    for first_step, last_step in ((0, plan.steps(1)), (plan.steps(1), plan.steps(2))):
        places = [plan.place(step) for step in range(first_step, last_step)]
        assert places[0][0] == 0 and places[-1][1] == 333
        assert all(left[1] == right[0] for left, right in pairwise(places))
        epochs.append(places)
    assert epochs[0] != epochs[1]
    again = SegmentSchedule(TokenStream(text(10), 20, "random"), 333, seed=3)
    assert again.place(plan.steps(1) + 2) == epochs[1][2]  # whatever was asked before
    assert SegmentSchedule(TokenStream(text(10), 20, "random"), 333, seed=4).place(1) != epochs[0][1]
    config = replace(SETTINGS, steps=12, schedule="constant", warmup_steps=0, log_every=1)
    base = new_base()
    record = Trainer(config)(Likelihood(), Tilted(base), TokenStream(text(2000), 20, "random"), modules=base)
    plan = SegmentSchedule(TokenStream(text(10), 20, "random"), 250, seed=config.seed)
    lengths = [last - first for first, last in map(plan.place, range(12))]
    rates = [entry["learning_rate"] for entry in record.history]
    assert len(set(lengths)) > 3 and rates == pytest.approx([0.02 * length / 20 for length in lengths])


# validation


def test_a_stream_is_validated_with_memory_and_blocks():
    base, tokens = new_base(dropout=0.0).eval(), text(3000)
    held_out = HeldOut(Likelihood(), TokenStream(tokens, 10), columns=3)
    shared = {"batch_size": 8, "device": "cpu", "step": 0, "rng": SeededRng(0)}
    losses = held_out.losses(Tilted(base), only=slice(None), **shared)
    full = torch.full((3,), 1000)
    whole = -base.log_probs(Sequences(tokens.view(3, 1000), torch.zeros_like(full), full)).detach()
    actual = mean_loss(losses, n=3000)
    assert len(losses) == 34 and sum(count for _, count in losses) == 3000
    assert actual.value == pytest.approx(float(whole.mean()), abs=1e-5) and actual.low < actual.value < actual.high
    parts = [held_out.losses(Tilted(base), only=slice(rank, None, 2), **shared) for rank in (0, 1)]
    assert mean_loss([*parts[0], *parts[1]], n=3000).value == pytest.approx(actual.value, abs=1e-5)
    assert held_out.losses(Tilted(base), only=slice(5, None, 6), **shared) == []
    short = HeldOut(Likelihood(), TokenStream(tokens[:15], 10))
    assert len(short.losses(Tilted(base), only=slice(None), **shared)) == 2


# averaging


def test_the_average_is_the_mean_of_the_weights_after_each_update():
    config = replace(SETTINGS, steps=10, swa_start=0.6, keep_best=False, save_every=None)
    base, passed = new_base(), []

    def noted(target, data, *, rng, step=0):
        if base.training:
            passed.append((step, base.network.head.weight.detach().clone()))
        return Likelihood()(target, data, rng=rng, step=step)

    Trainer(config)(noted, Tilted(base), TokenStream(text(2000), 9), modules=base, validation=TokenStream(text(300), 9))
    after = dict(passed)  # before update `step`, so after `step` updates
    plain = new_base()
    Trainer(replace(config, swa_start=None))(Likelihood(), Tilted(plain), TokenStream(text(2000), 9), modules=plain)
    expected = torch.stack([after[7], after[8], after[9], plain.network.head.weight.detach()]).mean(0)
    assert torch.allclose(base.network.head.weight, expected, atol=1e-6)


def test_the_average_is_what_is_evaluated_and_kept(tmp_path):
    """The best evaluation is that of the weights that remain, with a folder or without."""
    for folder in (None, tmp_path):
        config = replace(SETTINGS, steps=20, swa_start=0.3, learning_rate=0.1)
        base = new_base()
        record = run(base, folder, config=config)
        shared = {"batch_size": 8, "device": "cpu", "step": record.best_step, "only": slice(None)}
        rng = SeededRng(config.seed).stream("validation")
        losses = HeldOut(Likelihood(), TokenStream(text(700, seed=3), 9)).losses(Tilted(base), rng=rng, **shared)
        assert mean_loss(losses, n=700).value == pytest.approx(record.best.value, abs=1e-9)


# resuming


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    @functools.cache
    def whole(processes):
        folder = tmp_path_factory.mktemp("whole")
        assert start(folder, processes=processes, resume=False, module="stream_run") == [0] * processes
        return outcome(folder)

    return whole


@pytest.mark.parametrize("processes", [1, slow(2)])
def test_a_kill_changes_no_bit_of_a_run_on_a_stream(undisturbed, tmp_path, processes):
    whole = undisturbed(processes)
    place = whole["events"] // 2 + int(
        SeededRng(12, processes).permutation(whole["events"] // 3)[0]
    )  # while weights are averaged
    assert start(tmp_path, processes=processes, resume=False, at=place, module="stream_run")[0] == -signal.SIGKILL
    assert start(tmp_path, processes=processes, resume=True, module="stream_run") == [0] * processes
    for rank in range(processes):
        assert outcome(tmp_path, rank)["hash"] == whole["hash"], f"killed at event {place}"
    assert outcome(tmp_path)["history"] == whole["history"]


def stopped_and_resumed(folder):
    return fingerprint(interrupted.stopped_and_resumed(run, new_base, folder, lambda stop: Events(110, stop)))


@pytest.fixture(scope="module")
def expected():
    base = new_base()
    run(base)
    return fingerprint(base)


def test_resuming_within_a_process(tmp_path, expected):
    assert stopped_and_resumed(tmp_path) == expected


def weights_of(average):
    return {name: parameter.detach().clone() for name, parameter in average.parameters.items()}


WRONG = {
    "memory forgotten": (stream_batches.StreamBatches, "load_state_dict", lambda self, saved: None),
    "average begun anew": (WeightAverage, "load_state_dict", lambda self, saved: self.mean.update(weights_of(self))),
    "lengths by other chance": (
        stream_batches,
        "segment_length_log_probs",
        lambda segment: torch.rand(segment).double().log(),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_ways_to_resume_are_caught(tmp_path, monkeypatch, name, expected):
    place, attribute, wrong = WRONG[name]
    monkeypatch.setattr(place, attribute, wrong)
    assert stopped_and_resumed(tmp_path) != expected


# refusals


def test_what_cannot_be_read_as_a_stream(tmp_path):
    with pytest.raises(ValueError, match=r"A stream of 5 tokens cannot be read in 8 columns.*batch_size"):
        heard(SETTINGS, TokenStream(text(5), 3))
    blind = build_base(TransformerConfig(8, 1, 2, 8), SPACE, rng=SeededRng(0))
    with pytest.raises(ValueError, match="A TransformerNetwork has no memory from one segment of a stream to the next"):
        heard(SETTINGS, TokenStream(text(500), 3), blind)
    from random_targets import random_automaton

    other = random_automaton(SPACE)
    with pytest.raises(ValueError, match="A Automaton has no memory from segment to segment"):
        Trainer(SETTINGS)(Likelihood(), Tilted(other), TokenStream(text(500), 3), modules=new_base())
    with pytest.raises(ValueError, match="There are no data to train on"):
        heard(SETTINGS, TokenStream(text(0), 3))
    with pytest.raises(ValueError, match="at least one token"):
        TokenStream(text(3), 0)
    run(new_base(), tmp_path)
    with pytest.raises(ValueError, match="started with data = "):
        run(new_base(), tmp_path, resume=True, segment=10)
