"""Two comparisons of the paper on global autoregressive models, on one base, and what goes beyond it.

`regimes`: weights by rs, by snis and by Newton's method, with the base samples and seconds they took. `ways`: the two-stage
way to a student, the cyclical one, importance weights and policy gradients, on the same number of drawn strings.
"""

import time
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from esscher.bases.network import build_base
from esscher.energies.features import LogLinear
from esscher.energies.motif_features import NAMES
from esscher.objectives.moment_descent import MomentDescent, base_source
from esscher.objectives.moment_fit import MomentFit
from esscher.objectives.moment_match import match_moments
from esscher.randomness import Seeded
from esscher.recipes.gam_rows import RIDGE, Ground, distil_training, fitted, with_motif
from esscher.recipes.gam_studies import FTS
from esscher.recipes.rows import ROW, kept
from esscher.samplers.ancestral import Ancestral
from esscher.settings.distil import DistilConfig
from esscher.settings.training import TrainingConfig
from esscher.space import empty_prompts
from esscher.target import Tilted
from esscher.training.order import Order
from esscher.verbs.distillation import distil

CHOSEN = [place for place, bit in enumerate(FTS[0]) if bit == "1"]


def regimes(ground: Ground) -> list[dict[str, Any]]:
    """The three ways to weights, each with its own draws of the base: the `row` of each, and its `curve` of distances."""
    return kept(ground.folder / "regimes.json", lambda: [_regime(ground, name) for name in ("newton", "snis", "rs")])


def _regime(ground: Ground, name: str) -> dict[str, Any]:
    names, features = [NAMES[place] for place in CHOSEN], [ground.features[place] for place in CHOSEN]
    data, half, started = ground.of_data[:, CHOSEN], ground.scale.draws // 2, time.perf_counter()
    rng = Seeded(ground.source.seed).stream("regime", name)
    source = base_source(ground.base, features, rng=rng.stream("draws"))
    if name == "newton":
        fit = match_moments(names, source(half), data, ridge=RIDGE)
    else:
        regime: Any = name
        settings = MomentDescent(regime, epochs=ground.scale.descent)
        bounds = dict.fromkeys(names, (0.0, 1.0))
        fit = settings(names, source, data, bounds=bounds, rng=rng.stream("accept"))
    seconds = time.perf_counter() - started
    return {"row": _regime_row(ground, name, fit, seconds), "curve": _curve(fit)}


def _regime_row(ground: Ground, name: str, fit: MomentFit, seconds: float) -> dict[str, Any]:
    """Moments and cross-entropy by the ground's own draws, which no regime has seen."""
    of_pool = ground.of_pool[:, CHOSEN]
    weighted = replace(ground.pool, log_weight=(of_pool @ fit.tensor())[None])
    model = (weighted.log_weight.softmax(-1)[0][:, None] * of_pool).sum(0)
    target = Tilted(ground.base, LogLinear([ground.features[place] for place in CHOSEN], fit.tensor()))
    wanted = zip(model.tolist(), fit.moments_wanted, strict=True)
    return {
        "regime": name,
        "weight of m": fit.weights[0],
        "l1 on other draws": sum(abs(one - two) for one, two in wanted),
        "base samples": fit.base_samples,
        "seconds": seconds,
        "CE p": ground.nats(target, weighted),
    }


def _curve(fit: MomentFit) -> tuple[list[float], list[float]]:
    return [float(step.base_samples) for step in fit.history], [step.l1 for step in fit.history]


def ways(ground: Ground) -> list[dict[str, Any]]:
    """Students by all ways, on the same number of drawn strings."""
    names = ("plain", "cyclical", "importance", "policy-gradient, kl", "policy-gradient, reverse-kl", "importance, new weights")
    places = {name: ground.folder / "ways" / name.replace(", ", "-").replace(" ", "-") for name in names}
    return [kept(place / ROW, partial(_way, ground, name, place)) for name, place in places.items()]


def _way(ground: Ground, name: str, folder: Path) -> dict[str, Any]:
    method, _, rest = name.partition(", ")
    tilted = fitted(ground, FTS[0])
    student, config = deepcopy(ground.result.base), _settings(ground, tilted.fit, method, rest)
    if rest == "new weights":
        student = build_base(student.config, student.space, rng=Seeded(ground.source.seed).stream("new"))
    started = time.perf_counter()
    found = distil(tilted.teacher, student, empty_prompts(1), config, _training(ground, config), folder=folder, resume=True)
    own = Ancestral()(Tilted(student), empty_prompts(1), 4000, rng=Seeded(ground.source.seed).stream("own"))
    return {
        "way": name,
        "CE student": ground.nats(Tilted(student)),
        "motif in student": with_motif(ground, own),
        "kl to student": found.divergences["kl"],
        "drawn": found.cost,
        "worth": [round(stage.effective) for stage in found.stages],
        "seconds": time.perf_counter() - started,
    }


def _training(ground: Ground, config: DistilConfig) -> TrainingConfig:
    """As many updates for every way that learns from a fixed set, however many strings are in it."""
    training = distil_training(ground)
    order = Order(ground.scale.distilled, training.batch_size, training.seed)
    updates = training.steps or order.steps(training.epochs or training.usual_epochs)
    return replace(training, epochs=None, steps=max(1, updates // (config.stages if config.method == "cyclical" else 1)))


def _settings(ground: Ground, fit: MomentFit, method: str, rest: str) -> DistilConfig:
    """As many drawn strings for every way: rejection is asked for as many accepted ones as they should give."""
    divergence: Any = rest if method == "policy-gradient" else "kl"
    way: Any = method
    bound = fit.tensor().clamp(min=0).sum()
    accepted = int(0.9 * float((ground.of_pool[:, CHOSEN] @ fit.tensor() - bound).exp().sum()))
    draws = max(20, accepted) if method == "plain" else ground.scale.distilled
    return DistilConfig(way, draws, ground.scale.draws, 2, divergence, log_bound=float(bound))
