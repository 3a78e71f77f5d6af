"""The gradient of E-Forcing where the exact one is known: how far off it is on average, and how much it varies.

Strings of a motif process are few enough to be enumerated. A small base learns some of them by E-Forcing, so that its levels
say something; then the gradient of one batch is estimated many times, with the next token of a draw in expectation and as
drawn, by the same draws.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from esscher.bases.config import BaseConfig, RecurrentConfig, TransformerConfig
from esscher.bases.network import NetworkBase, build_base
from esscher.data.processes import draw_sets
from esscher.estimate import Estimate
from esscher.exact.languages import motif_process
from esscher.objectives.eforcing import EForcing
from esscher.randomness import Rng, Seeded
from esscher.recipes.rows import mean_of
from esscher.reports.document import Picture, Section, Table
from esscher.reports.plots import curves
from esscher.samplers.exhaustive import Exhaustive
from esscher.settings.training import TrainingConfig
from esscher.space import Sequences
from esscher.target import Tilted
from esscher.training.trainer import Trainer

MOTIF, LENGTH, ROWS = "101", 6, (16, 64, 256)
BASES: Mapping[str, BaseConfig] = {
    "LSTM": RecurrentConfig("lstm", 16, 1, embedding=8),
    "Transformer": TransformerConfig(16, 1, 2, 32),
}
WAYS = {"in expectation": "exact", "as drawn": "sampled"}


def gradient_rows(batches: int, steps: int) -> list[dict[str, Any]]:
    """A row for each base, size of a batch and way to treat the next token."""
    process = motif_process(MOTIF, LENGTH, mixture=0.9)
    data = draw_sets(process.base, max(ROWS), rng=Seeded(0)).train
    rows = []
    for name, config in BASES.items():
        base = build_base(config, process.space, rng=Seeded(1)).double()
        training = TrainingConfig(steps=steps, learning_rate=3e-3, log_every=steps)
        Trainer(training, quiet=True)(EForcing(0.3), Tilted(base), data, modules=base)
        for size in ROWS:
            some = data.rows(slice(0, size))
            exact = _gradient(base, EForcing(0.3, sampler=Exhaustive()), some, Seeded(0))
            for way, inner in WAYS.items():
                objective = EForcing(0.3, inner=inner)
                found = torch.stack([_gradient(base, objective, some, Seeded(2).stream(one)) for one in range(batches)])
                rows.append({"base": name, "sequences": size, "next token": way, **_compared(found, exact)})
    return rows


def gradient_section(rows: Sequence[Mapping[str, Any]]) -> Section:
    """The table, and how the variance falls with the size of a batch."""
    lines = {}
    for name in BASES:
        for way in WAYS:
            own = [row for row in rows if row["base"] == name and row["next token"] == way]
            lines[f"{name}, {way}"] = [row["sequences"] for row in own], [row["variance"].value for row in own]
    about = (
        "Errors are along the exact gradient, in standard errors; self-normalised weights leave a bias that falls with the "
        "size of a batch. The variance is that of the whole gradient, summed over weights."
    )
    picture = Picture(curves(lines, x="sequences of a batch", y="variance of the gradient", log=True), "")
    return Section("The gradient, where it is known", about, [Table("Gradients", rows), picture])


def _gradient(base: NetworkBase, objective: EForcing, data: Sequences, rng: Rng) -> Float[Tensor, "W"]:
    value = objective(Tilted(base), data, rng=rng).value
    assert isinstance(value, Tensor)
    slopes = torch.autograd.grad(value, list(base.parameters()), allow_unused=True)
    return torch.cat([slope.flatten() for slope in slopes if slope is not None])


def _compared(found: Float[Tensor, "n W"], exact: Float[Tensor, "W"]) -> dict[str, Estimate | float]:
    """The variance with its interval, and the error of the mean."""
    spread = (found - found.mean(0)).square().sum(1) * len(found) / (len(found) - 1)
    along = found @ exact / exact.norm()
    error = float((along.mean() - exact.norm()) / (along.std() / len(found) ** 0.5))
    variance = mean_of(spread, method=f"mean square distance from the mean of {len(found)} batches")
    return {"variance": variance, "error in standard errors": round(error, 2)}
