"""Probabilities of continuations under a tilted model: of given tokens after a prompt, and of the likeliest next tokens.

    log p(b | c) = log a(b | c) + R(c b) - R(c)                     R = log E[exp(-E(x))] over completions by the base
    p(t | c) = a(t | c) W(t) / sum over u of a(u | c) W(u)          W(t) = E[exp(-E(x))] over x ~ a that begin with t

R of the prompt alone is log Z, R of a complete point is -E(x). All continuations of a prompt share its draws, so their order
does not depend on the error of log Z. a(t | c) is exact; W is a mean over draws of each shown token's stratum, and of one
stratum of all others. A pilot sample, not used again, and the base choose the shown tokens. All is exact where a point is a
single token. The bias of a log mean and of a ratio of means is left in; it falls as 1 / draws.
"""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.bases.wrappers import FirstTokenRestricted, tilted_continuation
from esscher.core.device import on_device_of
from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, Space, unique_prompts
from esscher.core.target import Tilted, flat
from esscher.estimators.intervals import combined, interval, log_mean
from esscher.estimators.log_z import log_mean_weight, log_z
from esscher.estimators.reliability import TOO_FEW
from esscher.exact.enumeration import enumerate_points
from esscher.samplers.importance import Importance
from esscher.samplers.scoring import log_prob, log_weight

PILOT = 4  # times the draws of a stratum


@dataclass(frozen=True)
class PrefixLogProbs:
    """log p of each row and of their product, in nats; `log_z` is the mean over the different prompts."""

    each: tuple[Estimate, ...]
    total: Estimate
    log_z: Estimate


@torch.no_grad()
def prefix_log_probs(target: Tilted, x: Sequences, draws: int, *, confidence: float = 0.95, rng: Rng) -> PrefixLogProbs:
    """log p of the points in `x`, complete or not, given their prompts; `draws` follow each prompt and each row."""
    if len(x) == 0 or draws < 2:
        raise ValueError(f"Got {len(x)} rows and {draws} draws; nothing was estimated. Give at least 1 row and 2 draws.")
    log_base = log_prob(target.base, x)
    if target.energy is flat:
        exact = partial(Estimate.exact, unit="nats")
        return PrefixLogProbs(tuple(map(exact, log_base.tolist())), exact(float(log_base.sum())), exact(0.0))
    prompts, which = unique_prompts(x)
    which, drawn = which.cpu(), Importance()(target, prompts, draws, rng=rng.stream("prompts"))
    log_before, log_after = drawn.log_weight.cpu().double(), _continuation_log_weights(target, x, draws, rng)
    if bool((log_before == -torch.inf).all(-1).any()):
        raise ValueError(f"The energy forbids all {draws} draws after a prompt. Nothing was estimated; raise draws.")
    method, complete = f"{draws} draws after each prompt and each row", is_complete(x, target.space).cpu()

    def normaliser_of(log_weight: Float[Tensor, "N"]) -> Estimate:
        return log_mean_weight(log_weight, method=method, confidence=confidence)

    def log_p(rows: Int[Tensor, "K"]) -> Estimate:
        """The sum of log p over these rows."""
        chosen, place = torch.unique(which[rows], return_inverse=True)
        base, before, after = log_base[rows], log_before[chosen], log_after[rows]
        if not bool((base > -torch.inf).all() & (after > -torch.inf).any(-1).all()):
            return Estimate(-torch.inf, -torch.inf, -torch.inf, confidence, draws, f"{method}, all forbidden", "nats")
        times = place.bincount(minlength=len(before)).tolist()
        parts = [(-float(count), normaliser_of(row)) for count, row in zip(times, before, strict=True)]
        parts += [(1.0, normaliser_of(row)) for row, whole in zip(after, complete[rows], strict=True) if not whole]
        log_z_before, log_z_after = (log_mean(torch.ones_like(side), side) for side in (before, after))
        value = float((base + log_z_after - log_z_before[place]).sum())
        return combined(value, parts, n=draws, method=method)

    normaliser = log_z(drawn, prompts="same" if len(prompts) == 1 else "fixed", confidence=confidence)
    rows = torch.arange(len(x))
    return PrefixLogProbs(tuple(log_p(row[None]) for row in rows), log_p(rows), normaliser)


def is_complete(x: Sequences, space: Space) -> Bool[Tensor, "B"]:
    """True where a point is complete: it ends with the end symbol or has the maximal length."""
    return (x.lengths >= space.max_length) | space.ends_with_eos(x)


def _continuation_log_weights(target: Tilted, x: Sequences, draws: int, rng: Rng) -> Float[Tensor, "B N"]:
    """log weights of draws after each row; a complete point repeats its own."""
    log_weights = torch.full((len(x), draws), -torch.inf, dtype=torch.float64)
    whole = is_complete(x, target.space)
    if bool(whole.any()):
        log_weights[whole.cpu()] = log_weight(target, x.rows(whole))[:, None].expand(-1, draws)
    for length in torch.unique(x.lengths[~whole]).tolist():
        here = (~whole & (x.lengths == length)).nonzero()[:, 0]
        points = x.rows(here)
        prefixes = Sequences(points.tokens, points.stop, points.stop).prompts()
        drawn = Importance()(tilted_continuation(target, length), prefixes, draws, rng=rng.stream("after", length))
        log_weights[here.cpu()] = drawn.log_weight.cpu().double()
    return log_weights


@dataclass(frozen=True)
class NextToken:
    """Probabilities of one token, or of all tokens that are not shown (`token` None)."""

    token: int | None
    base: Estimate
    joint: Estimate


@dataclass(frozen=True)
class NextTokens:
    """Rows of shown tokens, the likeliest of the base first, then one of all others, if any; they sum to one."""

    rows: tuple[NextToken, ...]
    ess: tuple[float, ...] = ()  # of each row, 0 where no draw has weight; empty where all is exact

    @property
    def warnings(self) -> list[str]:
        """Warnings about rows with few effective draws."""
        poor = [ess for ess in self.ess if ess < TOO_FEW]
        if not poor:
            return []
        return [
            f"{len(poor)} of {len(self.ess)} rows rest on fewer than {TOO_FEW} effective draws, the worst on "
            f"{min(poor):.1f}: a handful decides there; raise draws."
        ]


@torch.no_grad()
def next_tokens(
    target: Tilted, prompt: Sequences, *, top: int = 10, draws: int = 256, confidence: float = 0.95, rng: Rng
) -> NextTokens:
    """The `top` tokens of the base and those of the joint after one prompt, with `draws` for each row of the table."""
    if target.energy is flat:
        raise ValueError("There is no energy, so the joint is the base. Nothing was computed; give a tilted model.")
    if len(prompt) != 1 or int(prompt.lengths[0]) != 0:
        raise ValueError(f"A table is for one prompt with an empty point, not for {len(prompt)} rows. Nothing was computed.")
    if top < 1 or draws < 2:
        raise ValueError(f"A table shows at least 1 token by at least 2 draws, not {top} by {draws}. Nothing was computed.")
    share = target.base.begin(on_device_of(prompt, target))[0][0].cpu().double().softmax(-1)
    if target.space.max_length == 1:
        return _exact_table(share, target, prompt, top)
    pilot = Importance()(target, prompt, PILOT * draws, rng=rng.stream("pilot"))
    first_token = pilot.x.tokens.gather(1, pilot.x.start[:, None])[:, 0].cpu()
    pilot_share = torch.softmax(pilot.log_weight[0].double(), -1).nan_to_num(nan=0.0)
    shown = _likeliest_tokens(share, torch.bincount(first_token, pilot_share, minlength=len(share)), top)
    strata = [torch.arange(len(share)) == token for token in shown]
    others = ~torch.stack(strata).any(0)
    if float(share[others].sum()) > 0:
        strata.append(others)
    drawn = [_stratum(target, prompt, mask, draws, rng=rng.stream("row", row)) for row, mask in enumerate(strata)]
    log_tilt = torch.cat([stratum.log_weight.double() for stratum in drawn])
    if bool((log_tilt == -torch.inf).all()):
        raise ValueError(
            f"The energy forbids all {log_tilt.numel()} draws after this prompt. Nothing was estimated; raise draws, or try "
            f"another prompt."
        )
    mass = torch.stack([share[mask].sum() for mask in strata])
    tokens = [*shown, *([None] if len(strata) > len(shown) else [])]
    rows = tuple(
        NextToken(token, Estimate.exact(min(1.0, float(mass[row]))), _tilted_probability(row, mass, log_tilt, confidence))
        for row, token in enumerate(tokens)
    )
    return NextTokens(rows, tuple(float(stratum.ess().nan_to_num(nan=0.0)) for stratum in drawn))


def _tilted_probability(row: int, mass: Float[Tensor, "S"], log_tilt: Float[Tensor, "S N"], confidence: float) -> Estimate:
    """Strata are drawn by themselves, so each has its own counts; a mean is held above 0 as in `intervals.log_mean`."""
    weight = (log_tilt - log_tilt.max()).exp()
    floor = (1 - confidence) / 2 * weight.mean(-1)

    def probability(count: Tensor) -> Tensor:
        mean = torch.maximum((count * weight).sum(-1) / count.sum(-1), floor)
        return mass[row] * mean[row] / (mass * mean).sum()

    strata, draws = weight.shape
    method = f"ratio of mean weights, {draws} draws for each of {strata} rows"
    return interval(probability, [(strata, draws)], confidence=confidence, n=strata * draws, method=method)


def _stratum(target: Tilted, prompt: Sequences, allowed: Bool[Tensor, "V"], draws: int, *, rng: Rng) -> Draws:
    """Draws of the base that begin with one of the allowed tokens, weighted by the energy."""
    return Importance()(Tilted(FirstTokenRestricted(target.base, allowed), target.energy), prompt, draws, rng=rng)


def _exact_table(share: Float[Tensor, "V"], target: Tilted, prompt: Sequences, top: int) -> NextTokens:
    x = enumerate_points(target.space, prompt)
    last = x.tokens[:, -1].cpu()  # the only token of each point
    log_tilt = torch.empty(len(last), dtype=torch.float64).index_put((last,), log_weight(target, x))
    joint = torch.softmax(share.log() + log_tilt, -1)
    if bool(joint.isnan().any()):
        raise ValueError("The energy forbids every token after this prompt, so nothing can follow. Nothing was computed.")
    shown = _likeliest_tokens(share, joint, top)
    others = torch.tensor([token not in shown for token in range(len(share))])
    rows = [NextToken(token, Estimate.exact(float(share[token])), Estimate.exact(float(joint[token]))) for token in shown]
    if bool(others.any()):
        rows.append(NextToken(None, Estimate.exact(float(share[others].sum())), Estimate.exact(float(joint[others].sum()))))
    return NextTokens(tuple(rows))


def _likeliest_tokens(base: Float[Tensor, "V"], joint: Float[Tensor, "V"], top: int) -> list[int]:
    """The `top` tokens of either distribution, sorted by the base; tokens of probability 0 are left out."""
    chosen = {int(token) for share in (base, joint) for token in share.topk(min(top, len(share))).indices if share[token] > 0}
    return sorted(chosen, key=lambda token: (-float(base[token]), token))
