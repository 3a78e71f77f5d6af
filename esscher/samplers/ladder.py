"""Ladders of tilts: annealed sequential Monte Carlo from the base to a target that hardly any draw of the base shows.

The density of a rung is a(x) exp(w(x)), with a log weight w of the whole point: 0 on the first rung, which is the base, and
-E(x) on the last, the target. In between it is -beta E(x), a temperature, or, where there is one, follows a *guide* g(x) from 0
to 1: how much of what the tilt wants a point has, and 1 where it has it all. An energy that weighs only whether a rare thing is
there says nothing of the way to it, and temperatures do not lead there. With a guide

    w(x) = -beta E(x) + alpha log(kappa + exp(lambda g(x) - zeta)).

The ladder climbs by lambda, with alpha = 1 and kappa = 0, until a share of the particles has g = 1. What the guide leads away
from is then missing. On the next rung, with kappa = 1 and zeta about log E_a[exp(lambda g)], half of the density is the base,
and the draws of the base on the first rung join the particles: no rung has to lead back. From there alpha falls from 1 to 0
while beta rises from 0 to 1. Moves cut a point half of the time where it reached what it has of the guide.

A run moves particles from rung to rung: weigh by the ratio of the two densities, resample, and move by regeneration
(`esscher.samplers.regeneration`), which leaves the new density as it is. The product of the mean weights is an unbiased
estimate of Z, if the rungs do not depend on the particles. They are therefore chosen by a pilot run, so that neighbours overlap
by a constant share (the effective sample size of the weights between them over the number of particles), and used by runs of
their own. (Del Moral, Doucet and Jasra, J. R. Stat. Soc. B, 2006; Zhou, Johansen and Aston, J. Comput. Graph. Stat., 2016.)
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from esscher.core.config import check_at_least
from esscher.core.draws import Draws, checked_sampler, ess, refuse_too_many
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, concatenate, unique_prompts
from esscher.core.target import Tilted
from esscher.energies.features import weighted_features
from esscher.samplers.ancestral import draw
from esscher.samplers.particles import residual_resampling
from esscher.samplers.regeneration import Chains, Regeneration, choose, uniform_cut

BISECTIONS = 30
PILOT_RUNS = 4  # one run alone may climb by one lucky particle
DIAGNOSTICS = ("rungs", "overlap", "acceptance", "disagreement")  # of each prompt, in `Draws.info`; see `LadderRuns`
GUIDE_STEP = 4.0  # nats by which lambda is raised at most


@dataclass(frozen=True)
class LadderRuns:
    """R independent runs of M particles through the same K rungs, after one prompt."""

    rungs: Float[Tensor, "K 5"]  # beta, alpha, lambda, zeta and kappa of each; all 0 for the base
    x: tuple[Sequences, ...]  # for each rung its particles, R * M rows; they follow its density if the moves sufficed
    score: Float[Tensor, "K R M 3"]  # -E, the guide (0 where there is none) and where it was reached
    log_base: Float[Tensor, "K R M"]
    log_ratio: Float[Tensor, "K R"]  # log of the mean weight by which a rung was reached; 0 for the base
    overlap: Float[Tensor, "K R"]  # effective share of the particles in these weights
    acceptance: Float[Tensor, "K R"]  # of the moves at each rung
    sequences: int  # drawn from the base
    tokens: int  # drawn or read by the base, in all

    def log_z(self) -> Float[Tensor, "R"]:
        """log of the unbiased estimate of Z by each run."""
        return self.log_ratio.sum(0)

    def disagreement(self) -> float:
        """The largest standard deviation over the runs, over all rungs, of log of the normaliser up to it: runs that have not
        found the same show it where they differ, even where little of the target depends on it. Infinite if a run has died."""
        if self.log_ratio.shape[1] < 2:
            return 0.0
        spread = float(self.log_ratio.cumsum(0).std(1).max())
        return math.inf if math.isnan(spread) else spread

    def log_density(self) -> Float[Tensor, "K L R M"]:
        """The log weight, relative to the base, that each rung (first) gives the particles of each rung (second)."""
        return torch.stack([log_density(self.score, rung) for rung in self.rungs])


def guided(steepness: float, *, zeta: float = 0.0, kappa: float = 0.0) -> Float[Tensor, "5"]:
    """A rung of a guide."""
    return torch.tensor([0.0, 1.0, steepness, zeta, kappa], dtype=torch.float64)


def log_density(score: Float[Tensor, "*B 3"], rung: Float[Tensor, "5"]) -> Float[Tensor, "*B"]:
    """w(x) of a rung from the scores of points, -E(x) and g(x); with beta = 0 a score of -inf is ignored."""
    (tilt, guide, _), (beta, alpha, steepness, zeta, kappa) = score.unbind(-1), rung.tolist()
    tempered, guided = beta * tilt if beta else torch.zeros_like(tilt), steepness * guide - zeta
    return tempered + alpha * (softplus(guided) if kappa else guided)


@checked_sampler
@dataclass(frozen=True)
class Ladder:
    """Each draw is one particle of a run of its own through a ladder of tilts, weighted by the run's estimate of Z: draws are
    properly weighted and independent, given the rungs, which a pilot run chooses for each prompt."""

    num_particles: int = 64
    """Particles of each run."""
    moves: int = 4
    """Regeneration moves of each particle on each rung."""
    overlap: float = 0.5
    """Effective share of the particles that the weights between two rungs leave; more makes more rungs."""
    pilot: int = 256
    """Particles, in 4 runs, that choose the rungs."""
    max_rungs: int = 100
    """Rungs at most; the last step to the target is taken whatever its overlap."""
    guide: Callable[[Sequences], Tensor] | None = None
    """How much of what the tilt wants each point has, from 0 to 1, where it has it all; prefixes of points are asked
    about, too. None is the mean progress of the features that a log-linear energy wants (`Feature.progress`), if they have
    one."""
    guided_share: float = 0.25
    """Climb by the guide until so many of the particles have it all."""

    def __post_init__(self) -> None:
        check_at_least(self, 2, "num_particles", "pilot", note=" Nothing was drawn.")
        check_at_least(self, 0, "moves", note=" Nothing was drawn.")
        check_at_least(self, 1, "max_rungs", note=" Nothing was drawn.")
        for name in ("overlap", "guided_share"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name} is a share between 0 and 1, not {getattr(self, name)}. Nothing was drawn.")

    @torch.no_grad()
    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        distinct, which = unique_prompts(prompts)
        refuse_too_many(len(prompts) * draws * self.num_particles, prompts.tokens.shape[1] + target.space.max_length)
        parts, owners, info = [], [], []
        for number in range(len(distinct)):
            rows = (which == number).nonzero()[:, 0].cpu()
            runs = self.run(target, distinct.rows(slice(number, number + 1)), len(rows) * draws, rng=rng)
            parts.append(_one_of_each_run(runs, rng))
            owners.append(rows)
            least = (float(values[1:].mean(1).min()) for values in (runs.overlap, runs.acceptance))
            info.append([len(runs.rungs) - 1, *least, runs.disagreement()])
        order = torch.cat(owners).argsort()
        x = concatenate([part.x for part in parts])
        place = (order[:, None] * draws + torch.arange(draws)).view(-1)
        log_weight = torch.cat([part.log_weight.view(-1, draws) for part in parts])[order]
        log_base = torch.cat([part.log_base.reshape(-1, draws) for part in parts])[order]
        by_prompt = torch.tensor(info, dtype=torch.float64)[which.cpu()]
        names = {name: by_prompt[:, column] for column, name in enumerate(DIAGNOSTICS)}
        return Draws(
            x.rows(place.to(x.tokens.device)), log_weight, log_base, estimates_z=True, independent=True,
            cost=sum(part.cost for part in parts), info=names,
        )  # fmt: skip

    @torch.no_grad()
    def run(
        self, target: Tilted, prompt: Sequences, runs: int, *, rng: Rng, rungs: Float[Tensor, "K 5"] | None = None
    ) -> LadderRuns:
        """`runs` independent runs after one prompt, with the particles of all rungs, for `esscher.estimators.mbar`. A pilot run
        chooses the rungs, unless they are given, and its cost is included."""
        guide, pilot = _guide(self, target, prompt), None
        kernel = Regeneration(target.base, partial(_scores, target, guide), log_cut=None if guide is None else cut_at_progress)
        if rungs is None:
            pilot = _Run(kernel, prompt, PILOT_RUNS, -(-self.pilot // PILOT_RUNS), rng, guide is not None)
            for rung in self._path(pilot):
                pilot.climb(rung, self.moves, rng)
            rungs = torch.stack(pilot.rungs)
        main = _Run(kernel, prompt, runs, self.num_particles, rng)
        for rung in rungs[1:].double():
            main.climb(rung, self.moves, rng)
        result = main.result()
        if pilot is None:
            return result
        return replace(result, sequences=main.sequences + pilot.sequences, tokens=main.tokens + pilot.tokens)

    def _path(self, pilot: "_Run") -> Iterator[Float[Tensor, "5"]]:
        """The next rung, chosen by the particles of the pilot on the last one, until the target is reached."""
        while not self._arrived(pilot):
            here = float(pilot.rungs[-1][2])
            yield self._farthest(pilot, guided, here, here + GUIDE_STEP)
        if len(pilot.rungs) > 1:
            yield guided(float(pilot.rungs[-1][2]), zeta=float(pilot.log_z().logsumexp(0)) - math.log(PILOT_RUNS), kappa=1.0)
        start, target = pilot.rungs[-1], torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)

        def towards_target(t: float) -> Float[Tensor, "5"]:
            return target if t == 1 else torch.tensor([t, (1 - t) * float(start[1]), *start[2:].tolist()], dtype=torch.float64)

        while float(pilot.rungs[-1][0]) < 1:
            full = len(pilot.rungs) >= self.max_rungs
            yield target if full else self._farthest(pilot, towards_target, float(pilot.rungs[-1][0]), 1.0)

    def _arrived(self, pilot: "_Run") -> bool:
        """Whether the guide has done its part, or there is none."""
        guide = pilot.chains.score[:, 1]
        share = float((guide >= 1 - 1e-9).double().view(pilot.shape).mean(-1).median())
        stuck = float(guide.max()) == 0 and float(pilot.rungs[-1][2]) > 0
        return share >= self.guided_share or stuck or not pilot.has_guide or len(pilot.rungs) >= self.max_rungs

    def _farthest(self, pilot: "_Run", rung: Callable[[float], Tensor], low: float, high: float) -> Float[Tensor, "5"]:
        """The farthest rung from `low` to `high` that overlaps with the last one by the share wanted, among the particles that
        it does not forbid."""

        def overlaps(t: float) -> bool:
            log_ratio = pilot.log_ratio(rung(t))
            allowed = log_ratio > -torch.inf
            share = ess(torch.softmax(log_ratio, -1)) / allowed.sum(-1)
            return not bool(allowed.any()) or float(share[allowed.any(-1)].mean()) >= self.overlap

        if overlaps(high):
            return rung(high)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            low, high = (middle, high) if overlaps(middle) else (low, middle)
        return rung(high)  # rather than `low`, so that there is a step


class _Run:
    """R runs of M particles on their way; all rungs are kept."""

    def __init__(self, kernel: Regeneration, prompt: Sequences, runs: int, particles: int, rng: Rng, has_guide: bool = False):
        self.kernel, self.shape = kernel, (runs, particles)
        x, log_base = draw(kernel.base, prompt, runs * particles, rng=rng)
        self.chains = kernel.start(x, log_base=log_base.view(-1))
        self.has_guide = has_guide
        self.rungs = [torch.zeros(5, dtype=torch.float64)]
        self.levels = [self.chains]
        self.log_ratios = [torch.zeros(runs, dtype=torch.float64)]
        self.overlaps, self.acceptances = [torch.ones_like(self.log_ratios[0])], [torch.ones_like(self.log_ratios[0])]
        self.sequences, self.tokens = len(x), int(x.lengths.sum())

    def log_z(self) -> Float[Tensor, "R"]:
        """log of the estimate by each run of the normaliser of the last rung."""
        return torch.stack(self.log_ratios).sum(0)

    def log_ratio(self, rung: Float[Tensor, "5"]) -> Float[Tensor, "R M"]:
        """The log weights that a next rung gives the particles of the last one."""
        here, there = (log_density(self.chains.score, each) for each in (self.rungs[-1], rung))
        return torch.where(here == -torch.inf, -torch.inf, there - here).view(self.shape)

    def climb(self, rung: Float[Tensor, "5"], moves: int, rng: Rng) -> None:
        """Weigh, resample and move. A run whose particles are all forbidden has weight 0 from here on."""
        runs, particles = self.shape
        joined = float(rung[4]) > float(self.rungs[-1][4])
        log_ratio = self._joined_weights(rung) if joined else self.log_ratio(rung)
        self.log_ratios.append(torch.logsumexp(log_ratio, -1) - math.log(particles))
        alive = log_ratio.amax(-1, keepdim=True) > -torch.inf
        log_ratio = torch.where(alive, log_ratio, 0.0)
        self.overlaps.append(torch.where(alive[:, 0], (ess(torch.softmax(log_ratio, -1)) / particles).clamp(max=1), 0.0))
        column, first = residual_resampling(log_ratio, particles, rng=rng), torch.arange(runs)[:, None] * particles
        chosen = self.chains.rows((first + column % particles).view(-1))
        if joined:
            base = self.levels[0].rows((first + column % particles).view(-1))
            chosen = choose((column >= particles).view(-1), base, chosen)
        self.chains, done = self.kernel(chosen, lambda score: log_density(score, rung), moves=moves, rng=rng)
        self.rungs.append(rung)
        self.levels.append(self.chains)
        self.acceptances.append(done.acceptance.view(self.shape).mean(-1))
        self.tokens += done.tokens

    def _joined_weights(self, rung: Float[Tensor, "5"]) -> Float[Tensor, "R W"]:
        """Weights of the particles, and after them of the draws of the base on the first rung, for the sum of two densities."""
        guided_part = torch.full(self.shape, -float(rung[3]), dtype=torch.float64)
        return torch.cat([guided_part, (-self.log_z())[:, None].expand(self.shape)], 1)

    def result(self) -> LadderRuns:
        score = torch.stack([chains.score.view(*self.shape, -1) for chains in self.levels])
        log_base = torch.stack([chains.log_base.view(self.shape) for chains in self.levels])
        log_ratio, overlap, acceptance = map(torch.stack, (self.log_ratios, self.overlaps, self.acceptances))
        x, rungs = tuple(chains.x for chains in self.levels), torch.stack(self.rungs)
        return LadderRuns(rungs, x, score, log_base, log_ratio, overlap, acceptance, self.sequences, self.tokens)


def _one_of_each_run(runs: LadderRuns, rng: Rng) -> Draws:
    """One particle of the last rung of each run, with the run's estimate of Z; one row of draws."""
    count, particles = runs.log_base.shape[1:]
    column = rng.categorical(torch.zeros(count, particles))[:, 0]
    row = torch.arange(count) * particles + column
    log_base = runs.log_base[-1].gather(1, column[:, None]).T
    each = int(runs.x[0].lengths.sum()) / len(runs.x[0])  # tokens of a draw of the base
    x = runs.x[-1].rows(row.to(runs.x[-1].tokens.device))
    cost = math.ceil(runs.tokens / each)
    return Draws(x, runs.log_z()[None], log_base, estimates_z=True, independent=True, cost=cost)


def _scores(target: Tilted, guide: Callable[[Sequences], Tensor] | None, x: Sequences) -> Float[Tensor, "B 3"]:
    tilt = target.log_weight(x).double().cpu()
    progress = torch.zeros_like(tilt) if guide is None else guide(x).double().cpu()
    if not bool(((progress >= 0) & (progress <= 1)).all()):
        low, high = float(progress.min()), float(progress.max())
        raise ValueError(
            f"A guide is from 0 to 1, and 1 where a point has all that the tilt wants; it gave {low:.4g} to {high:.4g}. The "
            f"draws were dropped; scale it."
        )
    where = torch.zeros_like(tilt) if guide is None else _reached(guide, x, progress)
    return torch.stack([tilt, progress, where], -1)


def _reached(guide: Callable[[Sequences], Tensor], x: Sequences, progress: Float[Tensor, "B"]) -> Float[Tensor, "B"]:
    """After how many tokens a point has what it has of the guide, by bisection, which is right if a guide never falls with more
    tokens; a wrong place costs only time."""
    low, high = torch.zeros_like(x.start), x.lengths.clone()  # the prefix of `low` tokens has less, or is empty
    while bool((high - low > 1).any()):
        middle = (low + high) // 2
        enough = guide(Sequences(x.tokens, x.start, x.start + middle.clamp(min=1))).double().cpu() >= progress
        enough = enough.to(high.device)
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high.double().cpu()


def cut_at_progress(chains: Chains) -> Float[Tensor, "B L"]:
    """The law of the cut with a guide: half uniform, and half where the guide was reached, so that a new rest goes on from what
    the point has."""
    uniform = uniform_cut(chains)
    place = torch.minimum(chains.score[:, 2].long(), chains.x.lengths.cpu() - 1)
    here = torch.arange(uniform.shape[1]) == place[:, None]
    return torch.log(0.5 * uniform.exp() + 0.5 * here.double())


def _guide(settings: Ladder, target: Tilted, prompt: Sequences) -> Callable[[Sequences], Tensor] | None:
    """The guide of the settings, or the mean progress of the features that the energy wants and that have one."""
    if settings.guide is not None:
        return settings.guide
    wanted = [
        feature.progress
        for feature, weight in weighted_features(target.energy, prompt)
        if feature.progress is not None and float(weight) > 0
    ]
    return (lambda x: torch.stack([progress(x).double().cpu() for progress in wanted]).mean(0)) if wanted else None
