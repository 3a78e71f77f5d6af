"""Sequential Monte Carlo: extend all particles of a prompt together, weigh the prefixes, resample when few dominate.

An unfinished prefix is weighed by a guess of its final weight, the *twist* (`esscher.samplers.twists`); a finished sequence by
the energy itself, so the draws are properly weighted with any twist. A learnt twist (`esscher.energies.twist`) proposes the
tokens, too, and a prefix is then weighed by its ratio of base and proposal as well. Without a twist nothing is weighed before
the last sequence has finished, which is importance sampling: one guess for all prefixes would not do better
(docs/why/particles.md).
Pruning halves the prefixes block by block: the largest weight is paired with the smallest, the second largest with the second
smallest; one of each pair survives, with probability proportional to its weight, and gets their mean weight. The weights stay
proper, their sum stays exact, no prefix is duplicated.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from esscher.core.config import check_at_least
from esscher.core.device import on_device_of, widest_float
from esscher.core.draws import Draws, checked_sampler, ess, refuse_too_many
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.target import Base, Tilted
from esscher.energies.twist import LearntTwist, TwistedBase
from esscher.samplers.ancestral import rows_at_once
from esscher.samplers.proposals import ProposalSteps, max_log_ratio
from esscher.samplers.scoring import log_weight, max_rows, score_in_batches


def residual_resampling(log_weight: Float[Tensor, "P N"], count: int, *, rng: Rng) -> Int[Tensor, "P {count}"]:
    """Residual resampling: `count` columns for each row, in order; a column of share s appears count * s times on average, and
    only the fractional part is random, so equal weights give every column once."""
    share = torch.softmax(log_weight.double(), -1)
    if bool(share.isnan().any()):
        raise ValueError(
            "A prompt has no draw of any weight: its energies are all infinite. Nothing was resampled; tilt less, or draw more."
        )
    expected = count * share
    certain = (expected + 1e-9).floor()  # rounding must not make an integer random
    missing = (count - certain.sum(-1)).long()
    left = torch.where(missing[:, None] > 0, (expected - certain).clamp(min=0), 1.0)  # a dummy, not used
    most = int(missing.max()) if len(missing) else 0
    chosen = rng.categorical(left.log(), max(1, most))
    used = torch.arange(chosen.shape[1], device=chosen.device) < missing[:, None]
    times = certain.long().scatter_add(1, chosen, used.long())
    column = torch.arange(times.shape[1], device=times.device).expand(times.shape)
    return column.reshape(-1).repeat_interleave(times.view(-1)).view(-1, count)


def resample(draws: Draws, count: int, *, rng: Rng) -> Sequences:
    """`count` points for each prompt, prompt-major; a draw of share s appears count * s times on average."""
    column = residual_resampling(draws.log_weight, count, rng=rng)
    first = torch.arange(len(column))[:, None] * draws.log_weight.shape[1]
    return draws.x.rows((first + column).view(-1).to(draws.x.tokens.device))


@checked_sampler
@dataclass(frozen=True)
class Particles:
    """Weighted draws by sequential Monte Carlo, dependent within a prompt; a pruned prefix counts in `cost` as far as drawn."""

    twist: Callable[[Sequences], Tensor] | LearntTwist | None = None
    """Guess of -E(x) from a prefix of x, on the scale of -E: for E + c it must be lower by c. A learnt one also proposes the
    tokens. None weighs and prunes only when all sequences have finished, and never resamples."""
    threshold: float = 0.5
    """Resample the particles of a prompt where their effective sample size falls below this share of them."""
    block: int = 1
    """Tokens between two weighings."""
    pruning_rounds: int = 0
    """Start with 2^this times as many prefixes, and keep half of them after each block."""
    proposal: Base | None = None
    """The base that draws the tokens; None is the base of the target. A prefix is weighed by its a / q, too."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "block", note=" Nothing was drawn.")
        check_at_least(self, 0, "pruning_rounds", "threshold", note=" Nothing was drawn.")
        if self.proposal is not None and isinstance(self.twist, LearntTwist):
            raise ValueError(
                "A learnt twist proposes the tokens itself. Nothing was drawn; leave the proposal out, or the twist."
            )

    @torch.no_grad()
    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        device, prompts = prompts.tokens.device, on_device_of(prompts, self.proposal, target.base, target.energy)
        refuse_too_many(len(prompts) * draws << self.pruning_rounds, prompts.tokens.shape[1] + target.space.max_length)
        together = max(1, rows_at_once(target.space) // (draws * 2**self.pruning_rounds))
        drawn = Draws.cat([self._run(target, group, draws, rng) for group in prompts.split(together)], 0)
        return replace(drawn, x=drawn.x.to(device))

    def _run(self, target: Tilted, prompts: Sequences, draws: int, rng: Rng) -> Draws:
        learnt = self.twist if isinstance(self.twist, LearntTwist) else None
        cloud = _ParticleCloud(target, prompts, draws * 2**self.pruning_rounds, rng, self.proposal, learnt)
        while True:
            cloud.extend()
            if not cloud.growing() or (self.twist is not None and cloud.length % self.block == 0):
                cloud.weigh(self.twist if learnt is None else None)
                if cloud.shape[1] > draws:
                    cloud.halve()
                if cloud.growing():
                    cloud.resample(self.threshold)
            if not cloud.growing():
                while cloud.shape[1] > draws:
                    cloud.halve()
                return cloud.draws()
            cloud.advance()


class _ParticleCloud:
    """P * N growing sequences. All is kept on the CPU but the state of the base, which has a row for each open sequence, and
    the prefixes of these, for the twist: an accelerator is asked once a step for the tokens, and once for the twist."""

    def __init__(
        self, target: Tilted, prompts: Sequences, draws: int, rng: Rng, proposal: Base | None = None,
        learnt: LearntTwist | None = None,
    ):  # fmt: skip
        self.target, self.rng, self.shape, self.learnt = target, rng, (len(prompts), draws), learnt
        proposal = proposal if learnt is None else TwistedBase(target.base, learnt)
        self.steps, self.max_log_ratio = ProposalSteps(target, proposal), max_log_ratio(target.base, proposal)
        log_prob, log_base, self.state = self.steps.begin(prompts)
        prefixes = prompts.repeat(draws)
        rows, device = prefixes.to("cpu"), log_prob.device
        self.start, self.stop = rows.start, rows.start.clone()
        self.tokens = pad(rows.tokens, (0, target.space.max_length))
        self.prefixes = Sequences(pad(prefixes.tokens, (0, target.space.max_length)), prefixes.start, prefixes.stop)
        self.open_ = torch.ones(len(rows), dtype=torch.bool)
        self.closing = torch.zeros_like(self.open_)  # finished since the last weighing
        self.log_base = torch.zeros(len(rows), dtype=torch.float64)
        self.log_twist = torch.zeros(len(rows), dtype=torch.float64)
        self.log_ratio = torch.zeros(len(rows), dtype=torch.float64)  # log a - log q of the tokens since the last weighing
        self.log_psi = torch.zeros(len(rows), dtype=torch.float64)  # the learnt twist of the prefix
        self.log_weight = torch.zeros(self.shape, dtype=torch.float64)
        self.length, self.lost = 0, 0  # tokens of an open row, and of all pruned rows
        self.choices = rng.tokens(len(rows), device)
        self.slot = torch.arange(len(rows)) // draws  # the row of the state of each open sequence
        self.token: Int[Tensor, "A"] | None = None
        self.log_prob, self.log_base_prob = log_prob, log_base  # of the next token, under proposal and base
        self._align_state()

    def growing(self) -> bool:
        return bool(self.open_.any())

    def extend(self) -> None:
        """One more token for every open row."""
        self.token = self.choices.categorical(self.log_prob)
        tables = [self.log_base_prob, self.log_prob, *([] if self.learnt is None else [self.state.log_twist])]
        columns = [self.token, *(table.gather(1, self.token[:, None])[:, 0] for table in tables)]
        dtype = widest_float(self.log_prob.device)
        token, log_token, log_proposal, *log_psi = torch.stack([part.to(dtype) for part in columns]).cpu().double()
        token, rows = token.long(), self.open_.nonzero()[:, 0]
        if self.learnt is not None:
            self.log_psi[rows] = log_psi[0] + self.learnt.offset
        self.tokens[rows, self.stop[rows]] = token
        self.prefixes.tokens.scatter_(1, self.prefixes.stop[:, None], self.token[:, None])
        self.prefixes = replace(self.prefixes, stop=self.prefixes.stop + 1)
        self.log_base[rows] += log_token
        self.log_ratio[rows] += log_token - log_proposal
        self.stop[rows] += 1
        self.length += 1
        ended = self.target.space.is_eos(token) | (self.length == self.target.space.max_length)
        self.slot = (~ended).nonzero()[:, 0]
        self.closing[rows[ended]] = True
        self.open_[rows[ended]] = False
        if len(self.slot) < len(ended):
            self.prefixes = self.prefixes.rows(self.slot.to(self.token.device))

    def weigh(self, twist: Callable[[Sequences], Tensor] | None) -> None:
        """Update each row's log weight: by the energy where it has finished, by the twist where it is open."""
        log_twist = self.log_twist.clone() if self.learnt is None else torch.where(self.open_, self.log_psi, self.log_twist)
        if bool(self.closing.any()):
            log_twist[self.closing] = log_weight(self.target, self.points(self.closing))
        if twist is not None and bool(self.open_.any()):
            width = int(self.stop[self.open_].max())
            prefixes = replace(self.prefixes, tokens=self.prefixes.tokens[:, :width])
            guess = twist(prefixes).cpu().double() if len(prefixes) <= max_rows(width) else score_in_batches(twist, prefixes)
            if not bool(torch.isfinite(guess).all()):
                raise ValueError(
                    "A twist must be finite: it gave infinity or NaN for a prefix, which would forbid sequences that the "
                    "target allows. The draws were dropped; return a large negative number instead."
                )
            log_twist[self.open_] = guess
        change = torch.where(log_twist == -torch.inf, log_twist, log_twist - self.log_twist)
        self.log_weight = self.log_weight + (change + self.log_ratio).view(self.shape)
        self.log_twist, self.closing = log_twist, torch.zeros_like(self.closing)
        self.log_ratio = torch.zeros_like(self.log_ratio)

    def resample(self, threshold: float) -> None:
        """Resample the prompts whose effective sample size is low; their mean weight stays."""
        share = torch.softmax(self.log_weight, -1)
        few = ess(share) < threshold * self.shape[1]
        if not bool(few.any()):
            return
        ancestor = torch.arange(len(self.start), device=self.start.device).view(self.shape)
        first = ancestor[few, :1]
        ancestor[few] = first + residual_resampling(self.log_weight[few], self.shape[1], rng=self.rng)
        mean = torch.logsumexp(self.log_weight, -1, keepdim=True) - math.log(self.shape[1])
        self.log_weight = torch.where(few[:, None], mean, self.log_weight)
        self._keep(ancestor.view(-1))

    def halve(self) -> None:
        """Prune half of the rows of each prompt, one of each pair; the mean weight stays."""
        rows, half = torch.arange(len(self.start), device=self.start.device).view(self.shape), self.shape[1] // 2
        below = (self.log_weight.amax(-1, keepdim=True) - self.log_weight).nan_to_num(nan=0.0)  # all have weight 0
        order = (below * 2**20).round().argsort(dim=-1, stable=True)  # rounding must not order equal weights
        strong, weak = order[:, :half], order[:, half:].flip(-1)
        pair = torch.stack([self.log_weight.gather(1, strong), self.log_weight.gather(1, weak)], -1)
        either = pair.masked_fill((pair == -torch.inf).all(-1, keepdim=True), 0.0)  # of two without weight, any
        lost = self.rng.categorical(either.view(-1, 2)).view(-1, half) == 0  # the weak one is
        keep = rows.gather(1, torch.where(lost, strong, weak))
        self.lost += int((self.stop - self.start).sum() - (self.stop - self.start)[keep].sum())
        self.log_weight = torch.logsumexp(pair, -1) - math.log(2)
        self.shape = (self.shape[0], half)
        self._keep(keep.view(-1))

    def _keep(self, ancestor: Int[Tensor, "K"]) -> None:
        """Replace the rows by these; the states follow at the next `advance`."""
        rank = self.open_.cumsum(0) - 1  # of an open row among the open ones
        chosen = rank[ancestor][self.open_[ancestor]]
        self.slot = self.slot[chosen]
        for name in ("tokens", "start", "stop", "open_", "closing", "log_base", "log_twist", "log_ratio", "log_psi"):
            setattr(self, name, getattr(self, name)[ancestor])
        self.prefixes = self.prefixes.rows(chosen.to(self.prefixes.start.device))

    def advance(self) -> None:
        self._align_state()
        assert self.token is not None
        self.log_prob, self.log_base_prob, self.state = self.steps.advance(self.state, self.token)

    def _align_state(self) -> None:
        """A row of the state for each open sequence."""
        if len(self.slot) != len(self.log_prob) or bool((self.slot[1:] <= self.slot[:-1]).any()):
            index = self.slot.to(self.log_prob.device)
            one = self.log_base_prob is self.log_prob
            self.state, self.log_prob = self.steps.select(self.state, index), self.log_prob[index]
            self.log_base_prob = self.log_prob if one else self.log_base_prob[index]
            self.token = None if self.token is None else self.token[index]

    def points(self, rows: Tensor) -> Sequences:
        width = int(self.stop[rows].max())
        return Sequences(self.tokens[rows, :width], self.start[rows], self.stop[rows])

    def draws(self) -> Draws:
        every = torch.ones_like(self.open_)
        weights, log_base = self.log_weight, self.log_base.view(self.shape)
        dropped = math.ceil(self.lost * len(every) / int((self.stop - self.start).sum()))
        return Draws(
            self.points(every), weights, log_base, estimates_z=True, independent=False, cost=len(every) + dropped,
            max_log_ratio=self.max_log_ratio,
        )  # fmt: skip
