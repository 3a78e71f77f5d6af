"""Which of two models keeps better to the truth after its own words: the exposure-bias ratio (Zhang et al. 2019).

Each model decodes its own continuation of the prompt of every sequence, the likeliest token at each step or one by chance. At
each position the true token has a log-probability given the model's own outputs before it, which were made without the truth:

    log a(x_k | y_<k),       y_<k ~ a

and the ratio is the share of positions where that of the model exceeds that of the baseline, ties counting half. Above one half
the model is better. A position counts while neither the sequence nor either output has ended before it. Decoding and scoring
are one run of steps, so any base will do. Replicates are sequences, or the prompts that some share; tokens never are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.estimate import Estimate
from esscher.estimators.exposure import FEWEST
from esscher.estimators.proportions import proportion
from esscher.randomness import Rng
from esscher.samplers.ancestral import rows_at_once
from esscher.space import Sequences, distinct_prompts
from esscher.target import Base

TIE = 1e-6  # nats: what rounding does


@dataclass(frozen=True)
class OwnScores:
    """log a(x_k | own outputs before k), by position, where neither the sequence nor the output has ended before."""

    log_prob: Float[Tensor, "B L"]
    there: Bool[Tensor, "B L"]


@dataclass(frozen=True)
class RatioAt:
    """The share of sequences whose true token at one position, counted from 1, the model finds likelier."""

    position: int
    sequences: int
    ratio: Estimate


@dataclass(frozen=True)
class ExposureRatio:
    """The share of all positions where the model's exceeds, and that at each position which enough sequences reach."""

    ratio: Estimate
    at: tuple[RatioAt, ...]


@torch.no_grad()
def own_scores(base: Base, x: Sequences, *, greedy: bool = True, rng: Rng) -> OwnScores:
    """The true tokens of `x` after the base's own outputs: the likeliest at each step, or drawn by `rng`."""
    parts = [_run(base, some, greedy, rng) for some in x.split(rows_at_once(base.space))]
    length = int(x.lengths.max())
    grown = [torch.nn.functional.pad(each, (0, length - each.shape[1])) for part in parts for each in part]
    return OwnScores(torch.cat(grown[::2]), torch.cat(grown[1::2]))


def _run(base: Base, x: Sequences, greedy: bool, rng: Rng) -> tuple[Float[Tensor, "B L"], Bool[Tensor, "B L"]]:
    log_prob, state = base.begin(x.prompts())
    open_ = torch.ones(len(x), dtype=torch.bool, device=x.tokens.device)
    found, there = [], []
    for t in range(min(int(x.lengths.max()), base.space.max_length)):
        here = open_ & (t < x.lengths)
        truth = x.tokens.gather(1, (x.start + t).clamp(max=x.tokens.shape[1] - 1)[:, None])
        found.append(torch.where(here, log_prob.double().gather(1, truth)[:, 0], 0.0).cpu())
        there.append(here.cpu())
        token = log_prob.argmax(-1) if greedy else rng.categorical(log_prob)[:, 0]
        open_ = open_ & ~base.space.ends(token)
        if not bool((open_ & (t + 1 < x.lengths)).any()):
            break
        if t + 1 < base.space.max_length:
            log_prob, state = base.advance(state, token)
    return torch.stack(found, 1), torch.stack(there, 1)


def exposure_ratio(
    model: Base, baseline: Base, x: Sequences, *, greedy: bool = True, level: float = 0.95, rng: Rng
) -> ExposureRatio:
    """The ratio on sequences `x`; each model decodes by itself."""
    sides = [
        own_scores(base, x, greedy=greedy, rng=rng.stream(name)) for name, base in (("model", model), ("baseline", baseline))
    ]
    prompts, context = distinct_prompts(x)
    replicate = torch.arange(len(x)) if len(prompts) == 1 else context.cpu()
    return ratio_of(sides[0], sides[1], replicate, greedy=greedy, level=level)


def ratio_of(
    model: OwnScores, baseline: OwnScores, replicate: Int[Tensor, "B"], *, greedy: bool = True, level: float = 0.95
) -> ExposureRatio:
    """The ratio from scores of the same sequences, each of a replicate."""
    there = model.there & baseline.there
    gap = model.log_prob - baseline.log_prob
    tied = (model.log_prob == baseline.log_prob) | (gap.abs() <= TIE)
    better = torch.where(tied, 0.5, (gap > 0).double())
    count = int(replicate.max()) + 1
    above, below = (
        torch.zeros(count, there.shape[1], dtype=torch.float64).index_add(0, replicate, torch.where(there, each, 0.0))
        for each in (better, torch.ones_like(better))
    )
    method = f"{'greedy' if greedy else 'sampled'} outputs of both, {count} replicates"

    def share(places: Sequence[int]) -> Estimate:
        up, down = above[:, places].sum(-1), below[:, places].sum(-1)

        def statistic(counts: Tensor) -> Tensor:
            return (counts[0] * up).sum() / (counts[0] * down).sum()

        return proportion(statistic, [(1, count)], level=level, draws=int(down.sum()), method=method)

    reached = there.sum(0).tolist()
    enough = [place for place, many in enumerate(reached) if many >= FEWEST]
    at = tuple(RatioAt(place + 1, reached[place], share([place])) for place in enough)
    return ExposureRatio(share(range(len(reached))), at)
