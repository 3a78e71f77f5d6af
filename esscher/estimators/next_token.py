"""The likeliest next tokens after a prompt, under the base and under the tilted model (the joint).

    p(t | c) = a(t | c) W(t) / sum over u of a(u | c) W(u),      W(t) = E[exp(-E(x))] over x ~ a that begin with t

a(t | c) is exact. W is a mean over draws of each token's stratum, and over one more stratum for all tokens that the table
does not show, so that the probabilities of a table sum to one. Which tokens are shown is decided beforehand: the likeliest of
the base, and the likeliest of the joint in a pilot sample whose draws are not used again. Where a point is a single token, all
is exact, by enumeration. The bias of a ratio of means is left in; it falls as 1 / draws.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from esscher.bases.begun import Begun
from esscher.draws import Draws
from esscher.estimate import Estimate
from esscher.estimators.intervals import interval
from esscher.estimators.reliability import TOO_FEW
from esscher.exact.enumeration import enumerate_points
from esscher.randomness import Rng
from esscher.samplers.importance import Importance
from esscher.samplers.scores import log_weight
from esscher.space import Sequences, Space
from esscher.target import Tilted, flat

PILOT = 4  # times the draws of a token


@dataclass(frozen=True)
class NextToken:
    """Probabilities of one token, or of all that are not shown (token None)."""

    token: int | None
    base: Estimate
    joint: Estimate


@dataclass(frozen=True)
class NextTokens:
    """Shown tokens, the likeliest of the base first, and the others, if any, last; their probabilities sum to one."""

    rows: tuple[NextToken, ...]
    effective: tuple[float, ...] = ()  # draws of each row, 0 where none has any weight; none at all where all is exact

    @property
    def warnings(self) -> list[str]:
        """What the reader must know before believing the joint's probabilities."""
        poor = [draws for draws in self.effective if draws < TOO_FEW]
        if not poor:
            return []
        return [
            f"{len(poor)} of {len(self.effective)} rows rest on fewer than {TOO_FEW} effective draws, the worst on "
            f"{min(poor):.1f}: a handful decides there; raise draws."
        ]


@torch.no_grad()
def next_tokens(
    target: Tilted, prompt: Sequences, *, top: int = 10, draws: int = 256, level: float = 0.95, rng: Rng
) -> NextTokens:
    """A table for one prompt: the `top` tokens of the base and those of the joint, with `draws` for each row."""
    _check(target, prompt, top, draws)
    share = target.base.begin(prompt)[0][0].double().softmax(-1).cpu()
    if target.space.max_length == 1:
        return _exact(share, target, prompt, top)
    pilot = Importance()(target, prompt, PILOT * draws, rng=rng.stream("pilot"))
    shown = _shown(share, _first_tokens(pilot, target.space), top)
    strata = [_only(token, target.space) for token in shown]
    others = ~torch.stack(strata).any(0)
    if float(share[others].sum()) > 0:
        strata.append(others)
    drawn = [_stratum(target, prompt, own, draws, rng=rng.stream("row", row)) for row, own in enumerate(strata)]
    log_tilt = torch.cat([one.log_weight.double() for one in drawn])
    if bool((log_tilt == -torch.inf).all()):
        raise ValueError(
            f"The energy forbids all {log_tilt.numel()} draws after this prompt. Nothing was estimated; raise draws, or look "
            f"at another prompt."
        )
    mass = torch.stack([share[own].sum() for own in strata])
    tokens = [*shown, *([None] if len(strata) > len(shown) else [])]
    rows = tuple(
        NextToken(token, Estimate.exact(min(1.0, float(mass[row]))), _joint(row, mass, log_tilt, level))
        for row, token in enumerate(tokens)
    )
    return NextTokens(rows, tuple(float(one.effective().nan_to_num(nan=0.0)) for one in drawn))


def _joint(row: int, mass: Float[Tensor, "S"], log_tilt: Float[Tensor, "S N"], level: float) -> Estimate:
    """Strata are drawn by themselves, so each has its own counts; a mean is held above 0 as in `intervals.log_mean`."""
    weight = (log_tilt - log_tilt.max()).exp()
    floor = (1 - level) / 2 * weight.mean(-1)

    def probability(count: Tensor) -> Tensor:
        mean = torch.maximum((count * weight).sum(-1) / count.sum(-1), floor)
        return mass[row] * mean[row] / (mass * mean).sum()

    strata, draws = weight.shape
    method = f"ratio of mean weights, {draws} draws for each of {strata} rows"
    return interval(probability, [(strata, draws)], level=level, draws=strata * draws, method=method)


def _stratum(target: Tilted, prompt: Sequences, allowed: Bool[Tensor, "V"], draws: int, *, rng: Rng) -> Draws:
    """Draws of the base that begin with one of the allowed tokens, weighed by the energy."""
    return Importance()(Tilted(Begun(target.base, allowed), target.energy), prompt, draws, rng=rng)


def _exact(share: Float[Tensor, "V"], target: Tilted, prompt: Sequences, top: int) -> NextTokens:
    x = enumerate_points(target.space, prompt)
    token = x.tokens[:, -1].cpu()  # the only one of each point, after a prompt that all share
    log_tilt = torch.empty(len(token), dtype=torch.float64).index_put((token,), log_weight(target, x))
    joint = torch.softmax(share.log() + log_tilt, -1)
    if bool(joint.isnan().any()):
        raise ValueError("The energy forbids every token after this prompt, so nothing can follow. Nothing was computed.")
    shown = _shown(share, joint, top)
    others = ~torch.stack([_only(one, target.space) for one in shown]).any(0)
    rows = [NextToken(one, Estimate.exact(float(share[one])), Estimate.exact(float(joint[one]))) for one in shown]
    if bool(others.any()):
        rows.append(NextToken(None, Estimate.exact(float(share[others].sum())), Estimate.exact(float(joint[others].sum()))))
    return NextTokens(tuple(rows))


def _shown(base: Float[Tensor, "V"], joint: Float[Tensor, "V"], top: int) -> list[int]:
    """The likeliest of either, by the base's probability; tokens without any are not shown."""
    chosen = {int(token) for share in (base, joint) for token in share.topk(min(top, len(share))).indices if share[token] > 0}
    return sorted(chosen, key=lambda token: (-float(base[token]), token))


def _first_tokens(pilot: Draws, space: Space) -> Float[Tensor, "V"]:
    """The joint's share of each first token among the draws."""
    token = pilot.x.tokens.gather(1, pilot.x.start[:, None])[:, 0].cpu()
    share = torch.softmax(pilot.log_weight[0].double(), -1).nan_to_num(nan=0.0)
    return torch.bincount(token, share, minlength=space.vocab_size)


def _only(token: int, space: Space) -> Bool[Tensor, "V"]:
    return torch.arange(space.vocab_size) == token


def _check(target: Tilted, prompt: Sequences, top: int, draws: int) -> None:
    if target.energy is flat:
        raise ValueError("There is no energy, so the joint is the base. Nothing was computed; give a tilted model.")
    if len(prompt) != 1 or int(prompt.lengths[0]) != 0:
        raise ValueError(f"A table is for one prompt with an empty point, not for {len(prompt)} rows. Nothing was computed.")
    if top < 1 or draws < 2:
        raise ValueError(f"A table shows at least 1 token by at least 2 draws, not {top} by {draws}. Nothing was computed.")
