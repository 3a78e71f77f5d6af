"""The second half of the quick start: docstrings, a deliberately small base, and a network that reads the whole text.

The network starts from the weights of a larger plain model of the same text: an energy must bring what the base lacks, and
one from random weights learns nothing in minutes. The larger model's own perplexity is told, too.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from esscher.estimate import Estimate
from esscher.randomness import Seeded
from esscher.samplers.importance import Importance
from esscher.settings.base import BaseChoice
from esscher.settings.data import LengthConfig, TokenizerConfig
from esscher.settings.tilt import ContrastConfig, ContrastTraining, EnergyChoice, TiltRun
from esscher.settings.train import TrainRun
from esscher.settings.training import TrainingConfig
from esscher.space import empty_prompts
from esscher.verbs.contrast import LearntEnergy
from esscher.verbs.tilt import tilt
from esscher.verbs.train import TrainResult, train

CANDIDATES = 64


@dataclass(frozen=True)
class TextScale:
    """Steps and widths of the base and of the larger model, steps of the energy, draws to tell log Z by."""

    steps: int
    width: int
    larger_steps: int
    larger_width: int
    energy_steps: int
    draws: int


@dataclass(frozen=True)
class TiltedTexts:
    """What was done and found; `ranked` are candidates of the base, the likeliest under the tilted model first."""

    base: TrainResult
    larger: TrainResult
    found: LearntEnergy
    energy: Path
    ranked: list[dict[str, Any]]


def tilted_texts(scale: TextScale, out: Path, seed: int) -> TiltedTexts:
    """Train the base and the larger model, tilt, measure, and rank some draws."""
    base = train(_settings(out, scale.steps, scale.width, layers=1, seed=seed), resume=True)
    larger = train(_settings(out / "larger", scale.larger_steps, scale.larger_width, layers=3, seed=seed), resume=True)
    run = TiltRun(
        str(out / "energy"),
        energy=EnergyChoice(start=str(larger.folder)),
        contrast=ContrastConfig(draws=scale.draws),
        training=ContrastTraining(steps=scale.energy_steps, learning_rate=5e-4, warmup=20, evaluate_every=50),
        seed=seed,
    )
    found = tilt(str(base.folder), run, resume=True)
    assert isinstance(found, LearntEnergy)
    return TiltedTexts(base, larger, found, Path(run.out), _ranked(base, found, seed))


def text_rows(texts: TiltedTexts, seed: int) -> list[dict[str, Any]]:
    """The rows of the recipe's table."""
    told = text_nats(texts).items()
    return [{"data": "docstrings", "model": name, "nats per token": value, "seed": seed} for name, value in told]


def text_nats(texts: TiltedTexts) -> dict[str, Estimate]:
    """Nats per token of the models, and what tilting saved on the same texts."""
    measured = texts.found.measured
    assert measured.tilted is not None and measured.saved is not None
    return {"base": measured.base["token"], "tilted": measured.tilted["token"], "saved by tilting": measured.saved["token"]}


def _settings(out: Path, steps: int, width: int, *, layers: int, seed: int) -> TrainRun:
    return TrainRun(
        out=str(out),
        tokenizer=TokenizerConfig("bpe", 800),
        length=LengthConfig(tokens=64),
        base=BaseChoice("transformer", width=width, layers=layers, heads=4, feedforward=3 * width),
        training=TrainingConfig(
            steps=steps, learning_rate=2e-3, schedule="cosine", warmup=steps // 20, evaluate_every=200, seed=seed
        ),
    )


def _ranked(base: TrainResult, found: LearntEnergy, seed: int) -> list[dict[str, Any]]:
    """Candidates of the base with their energy and their share among the candidates."""
    drawn = Importance()(found.target, empty_prompts(1), CANDIDATES, rng=Seeded(seed).stream("ranked"))
    share = torch.softmax(drawn.log_weight[0], -1)
    texts = base.material.tokenizer.decode(drawn.x.points())
    return [
        {
            "share": float(share[row]),
            "energy": -float(drawn.log_weight[0, row]),
            "log base": float(drawn.log_base[0, row]),
            "text": texts[row],
        }
        for row in share.argsort(descending=True).tolist()
    ]
