"""How often intervals cover on laws of weights and texts with known truth (`esscher.testing.interval_laws`), and whether the
verdict tells when.

    weights     log Z, KL to the law of the draws, and moments of two features, from 50 to 5,000 draws
    texts       nats per token, per word and per byte, and what tilting saves, on 2 to 200 texts after one prompt, or several

A row has the rate at which the interval covered, the share of replications with the verdict `good`, and the rate among these.
`three energies` are trained: their laws are 20,000 weights of draws each, drawn again with replacement. `laws` says
whether a law was registered, held back, or held back a second time.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.data.config import DataConfig
from esscher.energies.config import EnergyConfig
from esscher.estimators.expectations import divergences_of_densities, moments
from esscher.estimators.log_z import log_z
from esscher.estimators.perplexity import SequenceScores, base_cross_entropy, cross_entropy_reduction, tilted_cross_entropy
from esscher.estimators.reliability import reliability
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.papers.laboratory.coverage import CONFIDENCE, single_thread
from esscher.papers.study import Row, StudyContext
from esscher.samplers.importance import Importance
from esscher.testing.interval_laws import (
    COIN,
    HELD_BACK_TEXT_LAWS,
    HELD_BACK_WEIGHT_LAWS,
    SECOND_TEXT_LAWS,
    SECOND_WEIGHT_LAWS,
    TEXT_LAWS,
    WEIGHT_LAWS,
    TextLaw,
    WeightLaw,
)
from esscher.training.config import TrainingConfig
from esscher.workflow.config.tilt import ContrastTraining
from esscher.workflow.train import train

REPLICATIONS = {"smoke": 40, "small": 1000, "paper": 4000}
DRAWS = {"smoke": (50, 200), "small": (50, 200, 1000, 5000), "paper": (50, 200, 1000, 5000)}
TEXTS = {"smoke": (2, 10), "small": (2, 3, 5, 10, 20, 50, 200), "paper": (2, 3, 5, 10, 20, 50, 200)}
MOST_PROMPTS = 50
DRAWS_AFTER = {1: 200, MOST_PROMPTS: 50}  # draws after one prompt, and after each of several
GAIN, GAIN_SPREAD, DRAWN_SPREAD, PROMPT_SPREAD = 0.5, 0.5, 0.5, 0.3  # nats: of texts, of log weights, of log Z over prompts
WORD_STARTS = 0.75  # the probability that a token after the first starts a word
BYTES = 4  # of a token on average: one, and as many as a Poisson variable says
REGISTERED, HELD_BACK, SECOND = "registered", "held back", "held back again"
POPULATION = 20_000
ENERGIES = {"weak": 30, "medium": 150, "strong": 600}  # steps of training


def run(context: StudyContext) -> dict[str, Any]:
    """The rows of all laws; each law is kept as it is done."""
    scale = context.scale
    rows: list[Row] = []
    with single_thread():
        for laws, weights in ((REGISTERED, WEIGHT_LAWS), (HELD_BACK, HELD_BACK_WEIGHT_LAWS), (SECOND, SECOND_WEIGHT_LAWS)):
            for name, law in weights.items():
                rows += _kept(context, "weights", name, laws, partial(_rows_of_law, weight_rows, law, scale))
        for name, steps in ENERGIES.items():
            make = partial(_trained_rows, steps, scale)
            rows += _kept(context, "weights", f"{name} energy", REGISTERED, make)
        for laws, texts in ((REGISTERED, TEXT_LAWS), (HELD_BACK, HELD_BACK_TEXT_LAWS), (SECOND, SECOND_TEXT_LAWS)):
            for name, text in texts.items():
                rows += _kept(context, "texts", name, laws, partial(_rows_of_law, text_rows, text, scale))
    result = {"rows": rows, "paper": []}
    (context.out / "intervals.json").write_text(json.dumps(result, indent=1))
    return result


def _kept(context: StudyContext, study: str, law: str, laws: str, make: Callable[[Path], list[Row]]) -> list[Row]:
    """The rows of one law, made or read."""

    def make_all(folder: Path) -> list[Row]:
        return [{"law": law, "laws": laws, **row} for row in make(folder)]

    rows: list[Row] = context.row(study, law.replace("%", "percent"), 0, make_all)
    return rows


def _rows_of_law(rows: Callable[[Any, str], list[Row]], law: Any, scale: str, folder: Path) -> list[Row]:
    return rows(law, scale)


def _trained_rows(steps: int, scale: str, folder: Path) -> list[Row]:
    return weight_rows(trained_energy(steps, scale, folder), scale)


@dataclass(frozen=True)
class Population:
    """A law of log weights that takes those of a sample, all equally likely; `large` is a threshold of its feature."""

    log_weight: np.ndarray
    large: float
    bounds: tuple[float, float] | None = None

    def log_weights(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.choice(self.log_weight, size=shape)

    @property
    def log_z(self) -> float:
        return float(np.logaddexp.reduce(self.log_weight) - math.log(len(self.log_weight)))

    @property
    def kl(self) -> float:
        share = np.exp(self.log_weight - self.log_z) / len(self.log_weight)
        return float((share * self.log_weight).sum() - self.log_z)

    @property
    def probability_large(self) -> float:
        share = np.exp(self.log_weight - self.log_z) / len(self.log_weight)
        return float((share * (self.log_weight > self.large)).sum())


def trained_energy(steps: int, scale: str, folder: Path) -> Population:
    """Weights of draws of a base under an energy that was trained so many steps to tell texts with a motif from its draws."""
    few = scale == "smoke"
    data = DataConfig("motif:10110", length=20, size=200 if few else 2000)
    base = train(str(folder / "base"), data=data, base=LstmConfig(width=16), training=TrainingConfig(steps=5 if few else 100))
    energy = EnergyConfig(network=TransformerConfig(width=16, heads=2, layers=1))
    tilted = base.tilt(energy=energy, training=ContrastTraining(steps=min(steps, 5) if few else steps))
    drawn = Importance()(tilted.target, empty_prompts(1), 500 if few else POPULATION, rng=SeededRng(1))
    log_weight = drawn.log_weight[0].double().cpu().numpy()
    return Population(log_weight, float(np.quantile(log_weight, 0.9)))


def weight_rows(law: WeightLaw | Population, scale: str) -> list[Row]:
    """A row for each number of draws and each quantity."""
    truth = {"log Z": law.log_z, "kl": law.kl, "large": law.probability_large, "coin": COIN}
    rows = []
    for draws in DRAWS[scale]:
        rng = np.random.default_rng([draws, 1])
        estimates: dict[str, list[Estimate]] = {name: [] for name in truth}
        good = []
        for _ in range(REPLICATIONS[scale]):
            log_weight = law.log_weights(rng, (draws,))
            features = np.stack([log_weight > law.large, rng.random(draws) < COIN], -1).astype(float)
            if not np.isfinite(log_weight).any():
                continue  # an error of the library: all draws are forbidden
            drawn = _draws(torch.from_numpy(log_weight)[None])
            estimates["log Z"].append(log_z(drawn, bounds=law.bounds, confidence=CONFIDENCE))
            density = drawn.log_weight
            divergence = divergences_of_densities(
                drawn, density, torch.zeros_like(density), names=("kl",), confidence=CONFIDENCE
            )
            estimates["kl"].append(divergence["kl"])
            of_features = moments(drawn, torch.from_numpy(features)[None], confidence=CONFIDENCE)
            estimates["large"].append(of_features[0])
            estimates["coin"].append(of_features[1])
            good.append(reliability(drawn, bounds=law.bounds)[0].verdict == "good")
        rows += [_row(name, estimates[name], truth[name], good, draws=draws) for name in truth]
    return rows


def text_rows(law: TextLaw, scale: str) -> list[Row]:
    """A row for each number of texts, each number of prompts and each quantity."""
    rows = []
    for texts in TEXTS[scale]:
        for most in DRAWS_AFTER:
            rng = np.random.default_rng([texts, most, 2])
            estimates: dict[str, list[Estimate]] = {}
            for _ in range(REPLICATIONS[scale]):
                score, units = _scored_texts(law, texts, most, rng)
                found = {
                    "base": base_cross_entropy(score.log_base, units, test="sample", confidence=CONFIDENCE),
                    "tilted": tilted_cross_entropy(score, units, test="sample", confidence=CONFIDENCE),
                    "saved": cross_entropy_reduction(score, units, test="sample", confidence=CONFIDENCE),
                }
                for what, nats in found.items():
                    for unit, estimate in nats.items():
                        estimates.setdefault(f"{what} per {unit}", []).append(estimate)
            of_base, saved = law.rate * law.length, GAIN - DRAWN_SPREAD**2 / 2
            for name, values in estimates.items():
                what, unit = name.split(" per ")
                per = {"token": law.length, "word": 1 + WORD_STARTS * (law.length - 1), "byte": BYTES * law.length}[unit]
                exact = {"base": of_base, "saved": saved, "tilted": of_base - saved}[what] / per
                rows.append(_row(name, values, exact, None, texts=texts, prompts=min(texts, most)))
    return rows


def _scored_texts(law: TextLaw, texts: int, most: int, rng: np.random.Generator) -> tuple[SequenceScores, Mapping[str, Tensor]]:
    """Texts with a gain of their own, spread evenly over prompts; log Z of a prompt has a mean, and draws that estimate it."""
    length, nats = law.draw(rng, (texts,))
    prompts = min(texts, most)
    context = np.arange(texts) % prompts
    offset = PROMPT_SPREAD * rng.standard_normal(prompts) if prompts > 1 else np.zeros(1)
    drawn = offset[:, None] + DRAWN_SPREAD * rng.standard_normal((prompts, DRAWS_AFTER[most]))
    gain = GAIN + GAIN_SPREAD * rng.standard_normal(texts) + offset[context]
    score = SequenceScores(
        torch.from_numpy(-nats), torch.from_numpy(gain), torch.from_numpy(context), torch.from_numpy(drawn), 1, True
    )
    words = 1 + rng.binomial((length - 1).astype(int), WORD_STARTS)
    counts = {"token": length.astype(int), "word": words, "byte": (length + rng.poisson((BYTES - 1) * length)).astype(int)}
    return score, {unit: torch.from_numpy(count) for unit, count in counts.items()}


def _draws(log_weight: Tensor) -> Draws:
    count = log_weight.numel()
    return Draws(empty_prompts(count), log_weight, torch.zeros_like(log_weight), True, True, count)


def _row(quantity: str, estimates: list[Estimate], exact: float, good: list[bool] | None, **at: int) -> Row:
    covered = [estimate.covers(exact) for estimate in estimates]
    among = [hit for hit, word in zip(covered, [True] * len(covered) if good is None else good, strict=True) if word]
    widths = sorted(estimate.high - estimate.low for estimate in estimates)
    return {
        **at, "quantity": quantity, "replications": len(covered), "exact": exact,
        "coverage": sum(covered) / max(1, len(covered)), "good": len(among) / max(1, len(covered)),
        "coverage_given_good": sum(among) / len(among) if among else None,
        "median_width": widths[len(widths) // 2] if widths else None,
    }  # fmt: skip
