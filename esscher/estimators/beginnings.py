"""How likely a tilted model begins its points with given tokens, which is what a harness asks about a continuation.

    log p(b | c) = log a(b | c) + R(c b) - R(c),      R = log E[exp(-E(x))], the rest of the point drawn from the base

R of a prompt alone is log Z, R of a whole point is -E(x) itself. Draws after a prompt serve all that is asked about it, so the
order of its continuations does not depend on the error of log Z. The bias of each log mean is left in; it falls as 1 / draws.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.bases.continued import rest_of
from esscher.estimate import Estimate
from esscher.estimators.intervals import interval, log_mean
from esscher.estimators.log_z import log_z
from esscher.randomness import Rng
from esscher.samplers.importance import Importance
from esscher.samplers.scores import log_prob, log_weight
from esscher.space import Sequences, Space, distinct_prompts
from esscher.target import Tilted, flat


@dataclass(frozen=True)
class Beginnings:
    """log p of each row and of all together, in nats; `log_z` is the mean over the different prompts."""

    each: tuple[Estimate, ...]
    total: Estimate
    log_z: Estimate


@torch.no_grad()
def log_beginnings(target: Tilted, x: Sequences, draws: int, *, level: float = 0.95, rng: Rng) -> Beginnings:
    """Rows of `x` hold beginnings of points, or whole ones, after their prompts; `draws` are taken after each of both."""
    if len(x) == 0 or draws < 2:
        raise ValueError(f"{len(x)} beginnings and {draws} draws: nothing can be estimated. Give 1 and 2 at least.")
    base = log_prob(target.base, x)
    if target.energy is flat:
        return Beginnings(tuple(map(_exact, base.tolist())), _exact(float(base.sum())), _exact(0.0))
    prompts, which = distinct_prompts(x)
    drawn = Importance()(target, prompts, draws, rng=rng.stream("prompts"))
    found = _Weights(base, which.cpu(), drawn.log_weight.double().cpu(), _rest(target, x, draws, rng), level)
    if bool((found.before == -torch.inf).all(-1).any()):
        raise ValueError(f"The energy forbids all {draws} draws after a prompt. Nothing was estimated; raise draws.")
    normaliser = log_z(drawn, prompts="same" if len(prompts) == 1 else "fixed", level=level)
    every = torch.arange(len(x))
    return Beginnings(tuple(found.log_p(every[row : row + 1]) for row in range(len(x))), found.log_p(every), normaliser)


@dataclass(frozen=True)
class _Weights:
    """log a of each row, the prompt that it has, and log weights of draws: after the prompts, and after the rows."""

    base: Float[Tensor, "B"]
    which: Int[Tensor, "B"]
    before: Float[Tensor, "P N"]
    rest: Float[Tensor, "B N"]
    level: float

    def log_p(self, rows: Int[Tensor, "K"]) -> Estimate:
        """The sum over some rows."""
        chosen, place = torch.unique(self.which[rows], return_inverse=True)
        base, before, rest, floor = self.base[rows], self.before[chosen], self.rest[rows], (1 - self.level) / 2
        draws = before.shape[1]
        method = f"{draws} draws after each prompt and each beginning"
        if not bool((base > -torch.inf).all() & (rest > -torch.inf).any(-1).all()):
            return Estimate(-torch.inf, -torch.inf, -torch.inf, self.level, draws, f"{method}, all forbidden", "nats")

        def total(count_before: Tensor, count_rest: Tensor) -> Tensor:
            each = log_mean(count_rest, rest, floor=floor) - log_mean(count_before, before, floor=floor)[place]
            return (base + each).sum()

        return interval(
            total, [(len(before), draws), (len(rest), draws)], level=self.level, draws=draws, method=method, unit="nats"
        )


def whole_points(x: Sequences, space: Space) -> Bool[Tensor, "B"]:
    """True where a row's point is complete: it ends with the end symbol, or has no room left."""
    return (x.lengths >= space.max_length) | space.ended(x)


def _rest(target: Tilted, x: Sequences, draws: int, rng: Rng) -> Float[Tensor, "B N"]:
    """log weights of what may follow each row; of a whole point, its own over and over."""
    found = torch.full((len(x), draws), -torch.inf, dtype=torch.float64)
    whole = whole_points(x, target.space)
    if bool(whole.any()):
        found[whole.cpu()] = log_weight(target, x.rows(whole))[:, None].expand(-1, draws)
    for length in torch.unique(x.lengths[~whole]).tolist():
        here = (~whole & (x.lengths == length)).nonzero()[:, 0]
        some = x.rows(here)
        prefixes = Sequences(some.tokens, some.stop, some.stop).prompts()
        drawn = Importance()(rest_of(target, length), prefixes, draws, rng=rng.stream("after", length))
        found[here.cpu()] = drawn.log_weight.double().cpu()
    return found


def _exact(value: float) -> Estimate:
    return Estimate.exact(value, method="exact", unit="nats")
