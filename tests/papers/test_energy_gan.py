"""Games in the common trainer: what each player minimises, who rests, paces, and that a kill changes no bit."""

import math
from dataclasses import replace

import pytest
import torch

from esscher.core.randomness import SeededRng
from esscher.core.storage import digest, module_tensors
from esscher.papers.energy_gan.objectives import EnergyGan, Gan, Gate, energy
from esscher.papers.games.calibration import Constant, NeighbourEntropy, NeighbourSquare, VariationalEntropy
from esscher.papers.games.networks import PlanarNets
from esscher.papers.games.points import Points, biased_pair
from esscher.training.config import OptimizerConfig, TrainingConfig, learning_rate
from esscher.training.trainer import Trainer

NETS = PlanarNets(width=8, noise_size=3)
CONFIG = TrainingConfig(
    steps=8, batch_size=32, learning_rate=1e-2, optimizer="adam", max_grad_norm=None, save_every=3, log_every=1
)
PACES = {"generator": OptimizerConfig(lr_scale=5.0, momentum=0.0), "inference": OptimizerConfig(momentum=0.5, beta2=0.99)}


def data(count=200):
    return biased_pair().draw(count, rng=SeededRng(7))


def played(objective, folder=None, config=CONFIG, resume=False, optimizer_configs=PACES, game=None):
    game = NETS.build(inference=True, rng=SeededRng(1)) if game is None else game
    record = Trainer(config)(
        objective, game, data(), modules=game.modules, optimizer_configs=optimizer_configs, folder=folder, resume=resume
    )
    bits = {f"{name}/{key}": value for name, player in game.modules.items() for key, value in module_tensors(player).items()}
    return digest(bits), record


class Killed(Exception):
    pass


@pytest.mark.parametrize("objective", [Gan(), EnergyGan(VariationalEntropy(), 0.5, gate=Gate(-0.05, 0.05))])
def test_a_kill_changes_no_bit(tmp_path, objective):
    whole, _ = played(objective)

    def killed(target, points, *, rng, step=0):
        if step == 5:
            raise Killed
        return objective(target, points, rng=rng, step=step)

    with pytest.raises(Killed):
        played(killed, tmp_path)
    resumed, record = played(objective, tmp_path, resume=True)
    assert resumed == whole and record.steps == 8
    assert played(objective, config=replace(CONFIG, seed=1))[0] != whole


def test_a_run_is_not_resumed_at_another_pace(tmp_path):
    played(Gan(), tmp_path)
    with pytest.raises(ValueError, match=r"optimizers\.generator\.lr_scale = 5\.0, and is resumed with .* = 2\.0"):
        played(
            Gan(), tmp_path, resume=True, optimizer_configs={**PACES, "generator": OptimizerConfig(lr_scale=2.0, momentum=0.0)}
        )
    with pytest.raises(ValueError, match=r"'critic' has an optimizer config and is none of the modules, which are generator"):
        played(Gan(), optimizer_configs={"critic": OptimizerConfig()})
    with pytest.raises(ValueError, match="lr_scale is more than 0"):
        OptimizerConfig(lr_scale=0.0)


@torch.no_grad()
def test_what_each_player_minimises():
    game, points = NETS.build(inference=True, rng=SeededRng(2)), data(64)
    objective = EnergyGan(VariationalEntropy(), 0.25, smoothness=0.1)
    loss = objective(game, points, rng=SeededRng(3))
    z = game.generator.draw_noise(64, rng=SeededRng(3))
    made = game.generator(z)
    real, fake = game.discriminator(points.values), game.discriminator(made)
    term = VariationalEntropy()(game, z, made)
    assert float(loss.value["discriminator"]) == pytest.approx(
        float(real.mean() - fake.mean() + 0.1 * (real.square().mean() + fake.square().mean())), rel=1e-4
    )
    assert float(loss.value["generator"]) == pytest.approx(float(fake.mean() + 0.25 * term), rel=1e-4)
    assert float(loss.value["inference"]) == pytest.approx(float(term), rel=1e-4)
    wide, narrow = (EnergyGan(margin=margin)(game, points, rng=SeededRng(3)).value["discriminator"] for margin in (1e6, 0.0))
    assert float(wide) == pytest.approx(float(real.mean() - fake.mean()), rel=1e-4)
    assert float(narrow) == pytest.approx(float((real.mean() - fake).clamp(min=0).mean()), rel=1e-4)
    gan = Gan()(game, points, rng=SeededRng(3)).value
    assert float(gan["generator"]) == pytest.approx(-float(torch.sigmoid(-fake).log().mean()), rel=1e-4)
    assert torch.allclose(energy(game, points.values, 0.5), 2 * game.discriminator(points.values).double(), atol=1e-4)
    with pytest.raises(ValueError, match="temperature is more than 0"):
        EnergyGan(temperature=0.0)


@pytest.mark.parametrize(
    ("gate", "moves"),
    [
        (Gate(-math.inf, -1e9), {"discriminator", "inference"}),
        (Gate(1e9, math.inf), {"generator"}),
        (Gate(-1e9, 1e9), {"discriminator", "generator", "inference"}),
    ],
)
def test_a_player_that_the_gate_holds_rests(gate, moves):
    game = NETS.build(inference=True, rng=SeededRng(1))
    before = {name: [p.detach().clone() for p in player.parameters()] for name, player in game.modules.items()}
    played(EnergyGan(VariationalEntropy(), gate=gate), game=game, config=replace(CONFIG, steps=2))
    changed = {
        name
        for name, player in game.modules.items()
        if any(not a.equal(b) for a, b in zip(before[name], player.parameters(), strict=True))
    }
    assert changed == moves


def test_the_inference_net_moves_alone_between_the_others():
    game, points = NETS.build(inference=True, rng=SeededRng(2)), data(64)
    objective = EnergyGan(VariationalEntropy(), inference_only_steps=2)
    moving = [set(objective(game, points, rng=SeededRng(3), step=step).value) for step in range(6)]
    assert moving == 2 * [{"inference"}, {"inference"}, {"generator", "discriminator", "inference"}]
    with pytest.raises(ValueError, match="above 0 needs a VariationalEntropy; got 1 with Constant"):
        EnergyGan(inference_only_steps=1)


def test_the_pace_is_of_the_player():
    game, twin = (NETS.build(rng=SeededRng(1)) for _ in range(2))
    config = replace(CONFIG, steps=1, optimizer="sgd")
    begin = [p.detach().clone() for p in game.generator.parameters()]
    played(Gan(), game=game, config=config, optimizer_configs={"generator": OptimizerConfig(lr_scale=3.0)})
    played(Gan(), game=twin, config=config, optimizer_configs={})
    for first, fast, slow in zip(begin, game.generator.parameters(), twin.generator.parameters(), strict=True):
        assert torch.allclose(fast - first, 3 * (slow - first), atol=1e-6)
    assert all(a.equal(b) for a, b in zip(game.discriminator.parameters(), twin.discriminator.parameters(), strict=True))


def test_schedules_that_hold_and_end():
    held = TrainingConfig(schedule="linear", stable_ratio=2 / 3, learning_rate=1.0)
    assert [round(learning_rate(held, step, 30), 6) for step in (0, 19, 20, 25)] == [1.0, 1.0, 1.0, 0.5]
    falling = TrainingConfig(schedule="exponential", min_lr_ratio=0.25, learning_rate=1.0)
    assert [round(learning_rate(falling, step, 30), 6) for step in (0, 15, 30)] == [1.0, 0.5, 0.25]
    with pytest.raises(ValueError, match="stable_ratio is a share of the run"):
        TrainingConfig(stable_ratio=1.5)
    with pytest.raises(ValueError, match="never comes to 0"):
        TrainingConfig(schedule="exponential", min_lr_ratio=0.0)


@pytest.mark.parametrize("calibration", [Constant(), NeighbourEntropy(5), NeighbourSquare(5)])
@pytest.mark.parametrize("optimizer", ["adam", "adagrad"])
def test_every_calibration_trains(calibration, optimizer):
    game = NETS.build(rng=SeededRng(1))
    _, record = played(
        EnergyGan(calibration), game=game, optimizer_configs={}, config=replace(CONFIG, steps=2, optimizer=optimizer)
    )
    assert {"gap", "calibration", "generator/loss", "discriminator/loss"} <= set(record.history[-1])


def test_batches_of_tokens_are_refused():
    game = NETS.build(rng=SeededRng(1))
    with pytest.raises(ValueError, match="Points have no tokens"):
        played(Gan(), game=game, optimizer_configs={}, config=replace(CONFIG, batch_tokens=64))
    with pytest.raises(ValueError, match="no data to train on"):
        Trainer(CONFIG)(Gan(), game, Points(torch.zeros(0, 2)), modules=game.modules)
