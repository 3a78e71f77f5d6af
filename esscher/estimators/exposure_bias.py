"""Exposure bias: how far prefixes that a model generates lie from those of the data, and which of two models suffers less.

`exposure` bounds the gap at each position k: with lse_k the logsumexp of the logits before token k,

    E_data[lse_k] - log E_q[exp lse_k]        over prefixes, prompt included, that have not ended before k

is a lower bound on KL(data prefixes || model prefixes) (Donsker and Varadhan). The logsumexp is a good critic after E-Forcing;
otherwise the bound may be 0 or negative, which says nothing. Replicates are rows, as in `esscher.estimators.populations`, never
tokens. The bias of the log mean is corrected to first order. Left out: heavy tails of exp lse_k that few draws do not show, and
positions that fewer than `MIN_REACHED` sequences or draws reach.

`exposure_ratio` (Zhang et al. 2019) is the share of positions where the model scores the true token, given its own outputs
before it, higher than the baseline given its own: log a(x_k | y_<k), y_<k ~ a; ties count half. A position counts while neither
the sequence nor either output has ended before it. Replicates are sequences, or the prompts that several share.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.bases.logits import log_probs_and_logsumexp
from esscher.core.device import on_device_of
from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, point_values, unique_prompts
from esscher.core.target import Base
from esscher.energies.self_energy import rows_per_pass
from esscher.estimators.intervals import interval, proportion, ratio
from esscher.estimators.populations import Population, populations
from esscher.samplers.ancestral import rows_at_once

MIN_REACHED = 10  # sequences and draws that a reported position has
TIE = 1e-6  # nats: rounding error


@dataclass(frozen=True)
class LogSumExps:
    """The logsumexp before every token of weighted rows, by position in the point, and the replicate of each row."""

    logsumexp: Float[Tensor, "M L"]
    valid: Bool[Tensor, "M L"]
    weight: Float[Tensor, "M"]
    replicate: Int[Tensor, "M"]

    def sums(self, values: Float[Tensor, "M L"], replicates: int) -> Float[Tensor, "R L"]:
        """The sum of weighted valid values of each replicate."""
        each = self.weight[:, None] * torch.where(self.valid[:, : values.shape[1]], values, 0.0)
        return torch.zeros(replicates, values.shape[1], dtype=torch.float64).index_add(0, self.replicate, each)


@dataclass(frozen=True)
class ExposureAt:
    """The bound at one position, counted from 1, and how many sequences and draws reach it."""

    position: int
    sequences: int
    draws: int
    bound: Estimate


@dataclass(frozen=True)
class Exposure:
    """The bound at every position that enough sequences and draws reach, and its mean over the tokens of the data."""

    at: tuple[ExposureAt, ...]
    mean: Estimate


@torch.no_grad()
def exposure(base: Base, x: Sequences, draws: Draws, *, confidence: float = 0.95) -> Exposure:
    """The bound for data `x` and unweighted draws of the base after `unique_prompts(x)[0]`."""
    if bool((draws.log_weight != 0).any()):
        raise ValueError(
            "Exposure needs unweighted draws of the base, and these are weighted. Nothing was measured; use Ancestral()."
        )
    pops = populations(x, draws)

    def logsumexps(population: Population) -> LogSumExps:
        rows, width = population.x, int(population.x.lengths.max())
        parts = rows.split(rows_per_pass(base, rows.tokens.shape[1]))
        values = [_logsumexps(base, on_device_of(part, base), width) for part in parts]
        valid = torch.arange(width) < rows.lengths.cpu()[:, None]
        return LogSumExps(torch.cat(values), valid, population.weight, population.replicate)

    return exposure_of(logsumexps(pops.data), logsumexps(pops.base), sources=pops.sources, confidence=confidence)


def _logsumexps(base: Base, x: Sequences, width: int) -> Float[Tensor, "B L"]:
    return point_values(x, log_probs_and_logsumexp(base, x)[1], width).cpu().double()


def exposure_of(
    data: LogSumExps, drawn: LogSumExps, *, sources: Sequence[tuple[int, int]], confidence: float = 0.95
) -> Exposure:
    """The bound from logsumexps; data and draws share the replicates of a single source, or have one source each."""
    length = min(data.logsumexp.shape[1], drawn.logsumexp.shape[1])
    sequences, draws = data.valid[:, :length].sum(0), drawn.valid[:, :length].sum(0)
    positions = ((sequences >= MIN_REACHED) & (draws >= MIN_REACHED)).nonzero()[:, 0]
    if len(positions) == 0:
        raise ValueError(
            f"No position is reached by {MIN_REACHED} sequences and {MIN_REACHED} draws: there are {len(data.logsumexp)} and "
            f"{len(drawn.logsumexp)}. Nothing was measured; give more."
        )
    (_, rows), (_, others) = sources[0], sources[-1]
    lse, lse_of_draws = data.logsumexp[:, :length], drawn.logsumexp[:, :length]
    top = torch.where(drawn.valid[:, :length], lse_of_draws, -torch.inf).amax(0).clamp(min=-1e300)
    of_data = data.sums(lse, rows), data.sums(torch.ones_like(lse), rows)
    of_draws = drawn.sums((lse_of_draws - top).exp(), others), drawn.sums(torch.ones_like(lse_of_draws), others)
    replicates = f"{rows} replicates of the data, {others} of the draws"
    method = f"logsumexp as critic, bias corrected, skewness-corrected infinitesimal jackknife; {replicates}"
    n, counted = len(lse) + len(lse_of_draws), "sequences and draws"

    def estimate(at: Int[Tensor, "k"]) -> Estimate:
        """The bound averaged over the tokens of the data at these positions."""
        total, size, weight, number = (column[:, at] for column in (*of_data, *of_draws))
        least = (1 - confidence) / 2 * weight.sum(0) / number.sum(0)  # by Markov's inequality, as in `log_mean`
        effect = weight / weight.sum(0) - number / number.sum(0)
        bias = effect.square().sum(0) * others / (2 * (others - 1))  # first order: half the squared relative error

        def mean(*counts: Tensor) -> Tensor:
            first, last = counts[0][0], counts[-1][0]
            tokens = (first @ size).clamp(min=1e-12)
            log_mean = torch.maximum((last @ weight) / (last @ number).clamp(min=1e-12), least).log() + top[at]
            return (tokens * ((first @ total) / tokens - log_mean - bias)).sum() / tokens.sum()

        return interval(mean, sources, confidence=confidence, n=n, method=method, unit="nats", counted=counted)

    at = tuple(ExposureAt(int(k) + 1, int(sequences[k]), int(draws[k]), estimate(k[None])) for k in positions)
    return Exposure(at, estimate(positions))


@dataclass(frozen=True)
class SelfConditionedScores:
    """log a(x_k | y_<k) by position, valid while neither the sequence nor the output has ended before."""

    log_prob: Float[Tensor, "B L"]
    valid: Bool[Tensor, "B L"]


@dataclass(frozen=True)
class RatioAt:
    """The ratio at one position, counted from 1."""

    position: int
    sequences: int
    ratio: Estimate


@dataclass(frozen=True)
class ExposureRatio:
    """The ratio over all positions, and at each position that enough sequences reach."""

    ratio: Estimate
    at: tuple[RatioAt, ...]


@torch.no_grad()
def self_conditioned_scores(base: Base, x: Sequences, *, greedy: bool = True, rng: Rng) -> SelfConditionedScores:
    """Score the true tokens of `x` after the base's own outputs, decoded greedily or drawn by `rng`."""
    parts = [_score_own_prefixes(base, on_device_of(rows, base), greedy, rng) for rows in x.split(rows_at_once(base.space))]
    length = int(x.lengths.max())
    padded = [torch.nn.functional.pad(each, (0, length - each.shape[1])) for part in parts for each in part]
    return SelfConditionedScores(torch.cat(padded[::2]), torch.cat(padded[1::2]))


def _score_own_prefixes(base: Base, x: Sequences, greedy: bool, rng: Rng) -> tuple[Float[Tensor, "B L"], Bool[Tensor, "B L"]]:
    log_prob, state = base.begin(x.prompts())
    open_ = torch.ones(len(x), dtype=torch.bool, device=x.tokens.device)
    scores, valid = [], []
    for t in range(min(int(x.lengths.max()), base.space.max_length)):
        here = open_ & (t < x.lengths)
        truth = x.tokens.gather(1, (x.start + t).clamp(max=x.tokens.shape[1] - 1)[:, None])
        scores.append(torch.where(here, log_prob.gather(1, truth)[:, 0], 0.0).cpu().double())
        valid.append(here.cpu())
        token = log_prob.argmax(-1) if greedy else rng.categorical(log_prob)[:, 0]
        open_ = open_ & ~base.space.is_eos(token)
        if not bool((open_ & (t + 1 < x.lengths)).any()):
            break
        if t + 1 < base.space.max_length:
            log_prob, state = base.advance(state, token)
    return torch.stack(scores, 1), torch.stack(valid, 1)


def exposure_ratio(
    model: Base, baseline: Base, x: Sequences, *, greedy: bool = True, confidence: float = 0.95, rng: Rng
) -> ExposureRatio:
    """The exposure-bias ratio of `model` against `baseline` on sequences `x`."""
    sides = [
        self_conditioned_scores(base, x, greedy=greedy, rng=rng.stream(name))
        for name, base in (("model", model), ("baseline", baseline))
    ]
    prompts, context = unique_prompts(x)
    replicate = torch.arange(len(x)) if len(prompts) == 1 else context.cpu()
    return ratio_of(sides[0], sides[1], replicate, greedy=greedy, confidence=confidence)


def ratio_of(
    model: SelfConditionedScores,
    baseline: SelfConditionedScores,
    replicate: Int[Tensor, "B"],
    *,
    greedy: bool = True,
    confidence: float = 0.95,
) -> ExposureRatio:
    """The ratio from scores of the same sequences; `replicate` numbers the replicate of each."""
    valid = model.valid & baseline.valid
    gap = model.log_prob - baseline.log_prob
    tied = (model.log_prob == baseline.log_prob) | (gap.abs() <= TIE)
    better = torch.where(tied, 0.5, (gap > 0).double())
    count = int(replicate.max()) + 1
    above, below = (
        torch.zeros(count, valid.shape[1], dtype=torch.float64).index_add(0, replicate, torch.where(valid, each, 0.0))
        for each in (better, torch.ones_like(better))
    )
    method = f"{'greedy' if greedy else 'sampled'} outputs of both, {count} replicates"

    def share(positions: Sequence[int]) -> Estimate:
        up, down = above[:, positions].sum(-1), below[:, positions].sum(-1)
        n = int(down.sum())
        return proportion(ratio(up, down), [(1, count)], confidence=confidence, n=n, method=method, counted="tokens")

    reached = valid.sum(0).tolist()
    at = tuple(RatioAt(k + 1, sequences, share([k])) for k, sequences in enumerate(reached) if sequences >= MIN_REACHED)
    return ExposureRatio(share(range(len(reached))), at)
