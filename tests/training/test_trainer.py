"""The loop: it learns, parts of a batch make the whole, stopping and keeping, several players, and what it refuses."""

import math
from dataclasses import replace
from io import StringIO

import pytest
import torch
from rich.console import Console
from tiny_run import SETTINGS, SPACE, Watched, fingerprint, new_base, run, toy_data
from torch import nn

from esscher.bases.network import build_base
from esscher.core.estimate import Estimate
from esscher.core.objective import Loss
from esscher.core.progress import ProgressBar
from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.core.target import Tilted
from esscher.data.splits import draw_splits
from esscher.exact.languages import motif_process
from esscher.networks.recurrent_config import LstmConfig
from esscher.objectives.likelihood import Likelihood
from esscher.samplers.ancestral import draw
from esscher.training.config import TrainingConfig
from esscher.training.run_status import read_status
from esscher.training.trainer import Trainer


def test_a_base_learns_a_process_to_near_its_entropy():
    process = motif_process("11", 4)
    sets = draw_splits(process.base, 600, test=1, rng=SeededRng(0))
    base = build_base(LstmConfig(width=16, layers=1), process.space, rng=SeededRng(1))
    config = TrainingConfig(steps=150, batch_size=50, learning_rate=0.02, schedule="cosine", evaluate_every=50)
    record = Trainer(config)(Likelihood(), Tilted(base), sets.train, modules=base, validation=sets.validation)
    assert record.best is not None and record.stopped == "finished"
    assert record.best.low < 1.05 * process.entropy_per_symbol and record.best.value > 0.97 * process.entropy_per_symbol
    assert not base.training


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_same_seed_same_bits_other_seed_others(optimizer):
    config = replace(SETTINGS, optimizer=optimizer, steps=5)
    results = []
    for seed in (5, 5, 6):
        base = new_base()
        run(base, config=replace(config, seed=seed))
        results.append(fingerprint(base))
    assert results[0] == results[1] != results[2]


def test_training_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    run(new_base(), config=replace(SETTINGS, steps=2))
    assert torch.rand(3).equal(expected)


def weights(base):
    return torch.cat([p.detach().reshape(-1) for p in base.parameters()])


def after(config, objective):
    base = new_base(dropout=0.0).double()
    train, _ = toy_data()
    Trainer(config)(objective, Tilted(base), train, modules=base)
    return weights(base)


def mean_of_means(target, data, *, rng, step=0):
    """Forgets how many tokens its mean is over."""
    return Loss(Likelihood()(target, data, rng=rng).value)


def test_passes_add_up_to_the_whole_batch():
    once, often = (replace(SETTINGS, steps=4, gradient_accumulation_steps=count, optimizer="sgd") for count in (1, 4))
    assert torch.allclose(after(once, Likelihood()), after(often, Likelihood()), atol=1e-13)
    assert not torch.allclose(after(once, mean_of_means), after(often, mean_of_means), atol=1e-6)


def test_clipping_bounds_what_an_update_may_do():
    loose, tight = (
        replace(
            SETTINGS, steps=1, optimizer="sgd", max_grad_norm=max_grad_norm, learning_rate=1.0, warmup_steps=0, weight_decay=0.0
        )
        for max_grad_norm in (None, 1e-3)
    )
    begin = weights(new_base(dropout=0.0).double())
    assert float((after(tight, Likelihood()) - begin).norm()) == pytest.approx(1e-3, rel=1e-3)
    assert float((after(loose, Likelihood()) - begin).norm()) > 1e-2


def test_weight_decay_acts_on_matrices_only():
    zero = lambda target, data, *, rng, step=0: Loss(0.0 * target.base.log_probs(data).sum())  # noqa: E731
    config = replace(SETTINGS, steps=1, optimizer="adamw", weight_decay=0.5, learning_rate=0.1, warmup_steps=0)
    base = new_base(dropout=0.0)
    before = {name: p.detach().clone() for name, p in base.named_parameters()}
    Trainer(config)(zero, Tilted(base), toy_data()[0], modules=base)
    for name, parameter in base.named_parameters():
        share = 0.95 if parameter.ndim >= 2 else 1.0
        assert torch.allclose(parameter, share * before[name], atol=1e-7), name


class Script:
    """A validation that says what it was told to say."""

    def __init__(self, *values):
        self.values, self.base, self.seen = list(values), None, []

    def __call__(self):
        self.seen.append(fingerprint(self.base))
        return Estimate.exact(self.values[len(self.seen) - 1])


def scripted(values, folder, **changes):
    script = Script(*values)
    script.base = new_base()
    train, _ = toy_data()
    config = replace(SETTINGS, **{"steps": 12, "evaluate_every": 2, **changes})
    record = Trainer(config)(Likelihood(), Tilted(script.base), train, modules=script.base, validation=script, folder=folder)
    return record, script


@pytest.mark.parametrize("saved", [True, False])
def test_patience_and_the_best_weights(tmp_path, saved):
    folder = tmp_path if saved else None
    record, script = scripted([3.0, 1.0, 2.0, 1.5, 9.0, 9.0], folder, patience=2)
    assert (record.steps, record.stopped, record.best_step, record.best.value) == (8, "patience", 4, 1.0)
    assert fingerprint(script.base) == script.seen[1]


@pytest.mark.parametrize("saved", [True, False])
def test_last_weights_when_the_best_are_not_wanted(tmp_path, saved):
    record, script = scripted([3.0, 1.0, 2.0, 1.5, 9.0, 9.0], tmp_path if saved else None, keep_best=False)
    assert (record.steps, record.stopped, record.best_step) == (12, "finished", 4)
    assert fingerprint(script.base) == script.seen[-1]


def test_history_tells_loss_rate_and_validation(tmp_path):
    record = run(new_base(), tmp_path)
    entries = [entry for entry in record.history if "loss" in entry]
    assert [entry["step"] for entry in entries] == [2, 4, 6, 8, 10, 12, 14, 16, 17]
    assert {"loss", "nll", "gradient", "learning_rate"} <= set(entries[0])
    assert [entry["step"] for entry in record.history if "validation" in entry] == [4, 8, 12, 16, 17]
    assert len((tmp_path / "history.jsonl").read_text().splitlines()) == len(record.history)


class Duel(nn.Module):
    def __init__(self):
        super().__init__()
        self.place = nn.Parameter(torch.tensor([1.0]))


def test_players_move_along_their_own_loss_only():
    left, right = Duel(), Duel()

    def game(target, data, *, rng, step=0):
        product = (left.place * right.place).sum()
        return Loss({"left": product, "right": -2 * product}, {}, len(data))

    config = TrainingConfig(
        steps=1, batch_size=4, gradient_accumulation_steps=2, optimizer="sgd", learning_rate=0.1, max_grad_norm=None
    )
    record = Trainer(config)(game, Tilted(new_base()), toy_data()[0], modules={"left": left, "right": right})
    assert float(left.place.detach()) == pytest.approx(0.9) and float(right.place.detach()) == pytest.approx(1.2)
    assert record.history[-1]["left/loss"] == 1.0 and record.history[-1]["right/loss"] == -2.0
    with pytest.raises(ValueError, match="'left' has a loss and is none of the modules, which are model"):
        Trainer(config)(game, Tilted(new_base()), toy_data()[0], modules=left)


def test_divergence_is_told_and_the_weights_stay():
    base = new_base()
    before = fingerprint(base)

    def broken(target, data, *, rng, step=0):
        return Loss(target.base.log_probs(data).sum() * math.nan)

    with pytest.raises(RuntimeError, match=r"Training diverged at step 0: the loss is nan.* lower learning_rate"):
        Trainer(SETTINGS)(broken, Tilted(base), toy_data()[0], modules=base)
    assert fingerprint(base) == before


def test_what_cannot_be_trained():
    train, held_out = toy_data()
    frozen = new_base().requires_grad_(False)
    with pytest.raises(ValueError, match=r"The module 'model' .* has no trainable weight"):
        Trainer(SETTINGS)(Likelihood(), Tilted(frozen), train, modules=frozen)
    with pytest.raises(ValueError, match="There are no data to train on"):
        run(new_base(), dataset=(train.rows(slice(0, 0)), held_out))
    long = type(train)(train.tokens.repeat(1, 40), train.start, train.stop + 200)
    from esscher.networks.transformer_config import TransformerConfig

    small = build_base(TransformerConfig(width=4, heads=1, layers=1, feedforward=4, max_positions=8), SPACE, rng=SeededRng(0))
    with pytest.raises(ValueError, match="The model has 8 positions"):
        Trainer(SETTINGS)(Likelihood(), Tilted(small), long, modules=small)


def test_processes_that_do_not_see_each_other(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="2 processes were started, but each of them sees 1"):
        run(new_base())


def test_a_tracker_that_is_not_installed():
    with pytest.raises(ValueError, match="The tracker 'wandb' is not installed; installed are"):
        run(new_base(), config=replace(SETTINGS, tracker="wandb"))


def test_tensorboard_gets_the_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    run(new_base(), tmp_path, config=replace(SETTINGS, tracker="tensorboard"))
    assert list(tmp_path.rglob("events.out.tfevents*"))


def test_live_display():
    shown = StringIO()
    live = ProgressBar(Console(file=shown, force_terminal=True, width=160))
    live.begin(3, 10)
    live.update(4, 1.25, 100)
    live.evaluation_done(4, Estimate(1.5, 1.25, 1.75, 0.95, 9, "made up"), True)
    live.say("[a] word")
    live.end()
    for part in ("4/10", "loss 1.2500", "tokens/s", "validation 1.5000 [1.2500, 1.7500] (best)", "[a] word"):
        assert part in shown.getvalue()


def test_plain_lines_when_there_is_no_terminal(capsys):
    base = new_base()
    train, held_out = toy_data()
    Trainer(SETTINGS)(Likelihood(), Tilted(base), train, modules=base, validation=held_out)
    out, err = capsys.readouterr()
    assert out == ""
    assert "step 17/17  loss" in err and "tokens/s" in err and "left" in err
    assert "step 4/17  validation" in err and "best so far" in err


class Stop(Exception):
    """Ends a run in its midst."""


def test_samples_are_in_the_history_and_change_no_bit_of_a_run_that_was_interrupted(tmp_path):
    """The weights are those of a run without samples, and the texts those of a run that went through."""

    def trained(folder, *, stop_at=None, resume=False):
        base, (data, held_out), calls = new_base(), toy_data(), iter(range(1_000))

        def told():
            if next(calls) == stop_at:
                raise Stop

        def sample(rng):
            return [str(point) for point in draw(base, empty_prompts(1), 2, rng=rng)[0].points()]

        options = {"modules": base, "validation": held_out, "folder": folder, "resume": resume, "sample": sample}
        record = Trainer(SETTINGS)(Watched(told), Tilted(base), data, **options)
        return record, fingerprint(base)

    plain = new_base()
    run(plain)
    whole, weights = trained(tmp_path / "whole")
    shown = [entry for entry in whole.history if "samples" in entry]
    assert [entry["step"] for entry in shown] == [4, 8, 12, 16, 17] and all(len(entry["samples"]) == 2 for entry in shown)
    assert weights == fingerprint(plain) and read_status(tmp_path / "whole") is None
    with pytest.raises(Stop):
        trained(tmp_path / "cut", stop_at=30)
    again, same = trained(tmp_path / "cut", resume=True)
    assert again.history == whole.history and same == weights
