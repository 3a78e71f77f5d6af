"""Ways to fit weights and ways to distil, compared on one weak base of global autoregressive models."""

import time
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import empty_prompts
from esscher.core.target import Tilted
from esscher.energies.motif_features import NAMES
from esscher.objectives.moment_descent import MomentDescent, base_feature_sampler
from esscher.objectives.moment_matching import match_moments
from esscher.papers.gam.rows import FEATURE_SETS, RIDGE, GamContext, places_of
from esscher.papers.study import ROW_FILE, Row, cached_json
from esscher.training.batches import ShuffledOrder
from esscher.training.distillation import distil


def regimes(context: GamContext) -> list[Row]:
    """Three methods to fit weights, each with its own draws of the base: the `row` and the `curve` of distances of each."""
    return cached_json(context.folder / "regimes.json", lambda: [_regime(context, name) for name in ("newton", "snis", "rs")])


def _regime(context: GamContext, name: str) -> Row:
    """Fit by one method; moments and cross-entropy are measured on the draws of the context, which no method has seen."""
    places = [place for place, bit in enumerate(FEATURE_SETS[0]) if bit == "1"]
    names, features = [NAMES[place] for place in places], [context.features[place] for place in places]
    data, rng = context.data_features[:, places], SeededRng(context.run.training.seed).stream("regime", name)
    started = time.process_time()
    source = base_feature_sampler(context.result.base, features, rng=rng.stream("draws"))
    if name == "newton":
        fit = match_moments(names, source(context.scale.distil.candidates // 2), data, ridge=RIDGE)
    else:
        descent = MomentDescent(cast(Any, name), epochs=context.scale.descent_epochs)
        fit = descent(names, source, data, bounds=dict.fromkeys(names, (0.0, 1.0)), rng=rng.stream("accept"))
    seconds, weighted = time.process_time() - started, context.weighted(fit)
    measured = (weighted.log_weight.softmax(-1)[0][:, None] * context.pool_features[:, places]).sum(0).tolist()
    row = {
        "regime": name,
        "weight of m": fit.weights[0],
        "l1 on other draws": sum(abs(moment - wanted) for moment, wanted in zip(measured, fit.moments_wanted, strict=True)),
        "base samples": fit.base_samples,
        "seconds": seconds,
        "CE p": context.nats(context.tilted(fit), weighted),
    }
    curve = [float(step.base_samples) for step in fit.history], [step.l1 for step in fit.history]
    return {"row": row, "curve": curve}


def distillation_methods(context: GamContext) -> list[Row]:
    """Students by every method, from about the same number of drawn strings."""
    names = ("plain", "cyclical", "importance", "policy-gradient, kl", "policy-gradient, reverse-kl", "importance, new weights")
    folders = {name: context.folder / "students" / name.replace(", ", "-").replace(" ", "-") for name in names}
    return [cached_json(folder / ROW_FILE, partial(_distilled, context, name, folder)) for name, folder in folders.items()]


def _distilled(context: GamContext, name: str, folder: Path) -> Row:
    """A student by one method, named by the method and its divergence or initial weights."""
    method, variant = cast(tuple[Any, Any], name.partition(", ")[::2])
    student, config, fit = deepcopy(context.result.base), context.scale.distil, context.fit(FEATURE_SETS[0])
    if variant == "new weights":
        student = build_base(student.config, student.space, rng=SeededRng(context.run.training.seed).stream("new"))
    elif variant:
        config = replace(config, divergence=variant)
    # as many updates for every method that learns from a fixed set, whatever its size
    training = context.compared_training
    updates = ShuffledOrder(config.draws, training.batch_size, training.seed).steps(context.scale.distil_epochs)
    training = replace(training, epochs=None, steps=max(1, updates // (2 if method == "cyclical" else 1)))
    bound = fit.tensor().clamp(min=0).sum()
    if method == "plain":  # rejection asks for as many accepted strings as `candidates` draws should give
        log_accept = context.pool_features[:, places_of(fit)] @ fit.tensor() - bound
        config = replace(config, draws=max(20, int(0.9 * float(log_accept.exp().sum()))))
    config, started = replace(config, method=method, stages=2, log_bound=float(bound)), time.process_time()
    distilled = distil(context.tilted(fit), student, empty_prompts(1), config, training, folder=folder, resume=True)
    return {
        "method": name,
        "CE student": context.nats(Tilted(student)),
        "motif in student": context.motif_frequency(context.sampled(student)),
        "kl to student": distilled.divergences["kl"],
        "drawn": distilled.cost,
        "worth": [round(stage.ess) for stage in distilled.stages],
        "seconds": time.process_time() - started,
    }
