"""Weighted draws that are led to an event which a finite automaton recognises (`esscher.exact.acceptors`): independent ones, or
particles of sequential Monte Carlo.

After a prefix of t tokens that leads to state s of the acceptor, the twist psi_t(s) guesses the probability that the finished
point is accepted. Tokens are drawn from

    q(v | prefix) = a(v | prefix) psi_{t+1}(state after v) / n(prefix),    n = the sum of the numerator over v

so the base reads no token twice, and the weight a(x) / q(x) of a point that is accepted is the product over its tokens of
n(prefix) / psi_{t+1}(state after the token). Its mean over draws is the probability of the event, whatever the twist is, as
long as psi is above 0 where the event is still possible. A draw ends as soon as its acceptance is settled. Where the weights
are uneven, because the probability of the event depends on more of the prefix than its state, draws of a run are resampled by
the weights of their prefixes, a psi / q, so that prefixes go on that lead to the event by themselves.

`fit_twist` replaces the base by a chain on the states of the acceptor, whose transition probabilities are the mean next-token
probabilities of the base after prefixes in each state, as far as draws have shown them (`Transitions`), and computes psi by a
backward recursion. It is exact where the base itself is such a chain. Draws with one twist show the base where the event
happens, and the next twist is fitted to what they saw, as in the cross-entropy method (Rubinstein and Kroese, 2004) and in
controlled sequential Monte Carlo (Heng et al., Annals of Statistics, 2020).

Letters beside those of `esscher.core.space`: S states of the acceptor, U = S + 2 with the two in which acceptance is settled, K
groups of positions, R runs of N draws, A draws that are not finished.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from esscher.core.device import on_device_of
from esscher.core.randomness import Rng
from esscher.core.space import Sequences, Space, concatenate
from esscher.core.target import Base
from esscher.exact.acceptors import Acceptor
from esscher.samplers.ancestral import redraw, rows_at_once
from esscher.samplers.particles import residual_resampling

EARLY, GROUPS = 16, 16  # positions with transition probabilities of their own, and groups of the later ones
FROM_POOLED, FROM_TOKENS = 8.0, 2.0  # how many prefixes the pooled transitions, and those by token frequencies, count as
BISECTIONS = 20
EVEN, DRAWS_OF_PROMPT = 0.3, 16  # see `Shares.by_spread`
COUNTED = 0.5  # share of the draws that must be effective where transitions are fitted


@dataclass(frozen=True)
class EventStates:
    """The states of an acceptor on a space. State S is that of points that are accepted whatever follows, S + 1 that of points
    that are not; the end symbol leads to one of the two."""

    next_state: Int[Tensor, "S V"]  # up to S + 1
    accepting: Bool[Tensor, "U"]  # of points that end by their length
    length: int

    @classmethod
    def of(cls, acceptor: Acceptor, space: Space) -> "EventStates":
        """The states of an acceptor that reads the tokens of the space."""
        states = len(acceptor.next_state)
        accepted, refused = states, states + 1
        settled = torch.arange(states + 2)
        always, never = _closed(acceptor.next_state, acceptor.accepting), _closed(acceptor.next_state, ~acceptor.accepting)
        settled[:states][always], settled[:states][never] = accepted, refused
        next_state = settled[acceptor.next_state]
        if space.eos is not None:
            at_end = acceptor.accepting[acceptor.next_state[:, space.eos]]
            next_state[:, space.eos] = torch.where(at_end, accepted, refused)
        accepting = torch.cat([acceptor.accepting, torch.tensor([True, False])])
        return cls(next_state, accepting, space.max_length)

    @property
    def states(self) -> int:
        return len(self.next_state)

    @cached_property
    def group(self) -> Int[Tensor, "L"]:
        """The group of each position: the first positions alone, then longer and longer groups."""
        position = torch.arange(self.length)
        scale = GROUPS / math.log(max(2.0, self.length / EARLY))
        later = EARLY + (scale * (position.clamp(min=EARLY) / EARLY).log()).long().clamp(max=GROUPS - 1)
        return torch.where(position < EARLY, position, later)


def _closed(next_state: Int[Tensor, "S V"], inside: Bool[Tensor, "S"]) -> Bool[Tensor, "S"]:
    """The states from which all that is reached is `inside`."""
    while True:
        smaller = inside & inside[next_state].all(-1)
        if bool((smaller == inside).all()):
            return inside
        inside = smaller


@dataclass(frozen=True)
class Transitions:
    """Sums, over prefixes in each state and group of positions, of the probabilities of the next states, with the number of
    prefixes; and the same of the probabilities of tokens, over all prefixes."""

    sums: Float[Tensor, "K S U"]
    counts: Float[Tensor, "K S"]
    tokens: Float[Tensor, "V"]

    @classmethod
    def none(cls, events: EventStates) -> "Transitions":
        states, vocab_size = events.next_state.shape
        shape, even = (EARLY + GROUPS, states), torch.full((vocab_size,), 1 / vocab_size, dtype=torch.float64)
        return cls(torch.zeros(*shape, states + 2, dtype=torch.float64), torch.zeros(shape, dtype=torch.float64), even)

    @classmethod
    def counted(cls, events: EventStates, x: Sequences) -> "Transitions":
        """Those of draws of the base, by the tokens that were drawn; costs no pass of the base."""
        none = cls.none(events)
        tokens, lengths, group = x.tokens.cpu(), x.lengths.cpu(), events.group
        state, seen = torch.zeros(len(x), dtype=torch.long), none.tokens.clone()
        alive = torch.arange(len(x))
        for t in range(int(lengths.max()) if len(x) else 0):
            alive = alive[(lengths[alive] > t) & (state[alive] < events.states)]
            token = tokens[alive, x.start.cpu()[alive] + t]
            following = events.next_state[state[alive], token]
            one = torch.ones(len(alive), dtype=torch.float64)
            none.sums[group[t]].index_put_((state[alive], following), one, accumulate=True)
            none.counts[group[t]].index_add_(0, state[alive], one)
            seen.index_add_(0, token, one)
            state[alive] = following
        return replace(none, tokens=seen)

    def add(
        self,
        events: EventStates,
        t: int,
        state: Int[Tensor, "A"],
        probability: Float[Tensor, "A V"],
        log_weight: Float[Tensor, "A"],
    ) -> None:
        """Add prefixes of t tokens with the probabilities of their next tokens. A prefix counts by its weight to the largest
        power at which at least a share of `COUNTED` of them is effective: the twist should be right where the event happens,
        and one prefix should not decide it."""
        weight, group = _tempered(log_weight, COUNTED), int(events.group[t])
        following = torch.zeros(len(state), events.states + 2, dtype=torch.float64)
        following.scatter_add_(1, events.next_state[state], probability)
        self.sums[group].index_add_(0, state, following * weight[:, None])
        self.counts[group].index_add_(0, state, weight)
        self.tokens.add_(probability.sum(0))

    def faded(self, factor: float) -> "Transitions":
        """The same with less weight, before those of a better twist are added."""
        return Transitions(factor * self.sums, factor * self.counts, factor * self.tokens)

    def probabilities(self, events: EventStates) -> Float[Tensor, "K S U"]:
        """Of the next states in each group: what was seen there, shrunk to what was seen at all positions, and that to what
        the frequencies of tokens give."""
        by_tokens = torch.zeros(events.states, events.states + 2, dtype=torch.float64)
        by_tokens.scatter_add_(1, events.next_state, (self.tokens / self.tokens.sum()).expand_as(events.next_state))
        pooled = self.sums.sum(0) + FROM_TOKENS * by_tokens
        pooled = pooled / (self.counts.sum(0) + FROM_TOKENS)[:, None]
        return (self.sums + FROM_POOLED * pooled) / (self.counts + FROM_POOLED)[..., None]


def _tempered(log_weight: Float[Tensor, "B"], effective: float) -> Float[Tensor, "B"]:
    """The weights to the largest power up to 1 at which this share of the draws is effective; they average to 1."""
    if not bool((log_weight > -torch.inf).any()):
        return torch.ones_like(log_weight)
    low, high, power = 1e-6, 1.0, 1.0
    for _ in range(BISECTIONS):
        share = torch.softmax(power * log_weight, -1)
        low, high = (power, high) if float(1 / share.square().sum()) >= effective * len(share) else (low, power)
        power = (low + high) / 2
    return torch.softmax(low * log_weight, -1) * len(log_weight)


@dataclass(frozen=True)
class AcceptorTwist:
    """log psi_t(s) for t = 0 ... L: the value of a prefix of t tokens in each state."""

    events: EventStates
    log_psi: Float[Tensor, "M U"]  # M = L + 1

    @classmethod
    def flat(cls, events: EventStates) -> "AcceptorTwist":
        """psi = 1 everywhere: draws of the base, which end where acceptance is settled."""
        return cls(events, torch.zeros(events.length + 1, events.states + 2, dtype=torch.float64))


def fit_twist(events: EventStates, transitions: Transitions) -> AcceptorTwist:
    """The probability of acceptance after every prefix, for a chain on the states with these transitions."""
    log_chain, group = transitions.probabilities(events).log(), events.group.tolist()
    log_psi = torch.full((events.length + 1, events.states + 2), -torch.inf, dtype=torch.float64)
    log_psi[-1, events.accepting] = 0.0
    log_psi[:, events.states] = 0.0
    for t in range(events.length - 1, -1, -1):
        log_psi[t, : events.states] = torch.logsumexp(log_chain[group[t]] + log_psi[t + 1], -1)
    return AcceptorTwist(events, log_psi)


@dataclass(frozen=True)
class TwistedDraws:
    """Runs of N points, which end where their acceptance was settled, run by run. The mean weight of a run is an unbiased
    estimate of the probability of the event; without resampling its draws are independent."""

    points: Sequences
    log_weight: Float[Tensor, "R N"]  # -inf of points that are not accepted
    prompt: Int[Tensor, "R N"]
    roots: Int[Tensor, "R"]  # first particles from which accepted points come
    variance: Float[Tensor, "R"]  # of the log of the mean weight, if what is between two resamplings were independent
    cost: int  # tokens that were drawn

    @property
    def log_mean_weight(self) -> Float[Tensor, "R"]:
        """The log of the estimate of each run."""
        return self.log_weight.logsumexp(-1) - math.log(self.log_weight.shape[1])


@torch.no_grad()
def draw_twisted(
    base: Base,
    prompts: Sequences,
    twist: AcceptorTwist,
    count: int,
    *,
    rng: Rng,
    runs: int = 1,
    threshold: float = 0.0,
    shares: "Shares | None" = None,
    transitions: Transitions | None = None,
) -> TwistedDraws:
    """`count` draws for each run, after prompts with these shares, by default even ones. Where the effective sample size of a
    run falls below this share of it, its unfinished and finished draws are resampled. What the base gave is added to
    `transitions`."""
    shares = Shares.even(len(prompts)) if shares is None else shares
    at_once = max(1, rows_at_once(base.space) // count)
    groups = [min(at_once, runs - done) for done in range(0, runs, at_once)]
    parts = []
    for size in groups:
        cloud = _Cloud(base, prompts, twist, (size, count), shares, rng)
        cloud.run(threshold, transitions)
        parts.append(cloud.draws())
    points = concatenate([part.points for part in parts])
    names = ("log_weight", "prompt", "roots", "variance")
    joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return TwistedDraws(points, **joined, cost=sum(part.cost for part in parts))


class _Cloud:
    """R * N growing points. All is kept on the CPU but the state of the base, which has a row for each open point."""

    def __init__(
        self, base: Base, prompts: Sequences, twist: AcceptorTwist, shape: tuple[int, int], shares: "Shares", rng: Rng
    ):
        self.base, self.prompts, self.twist, self.events, self.shape, self.rng = base, prompts, twist, twist.events, shape, rng
        rows = shape[0] * shape[1]
        drawn = [shares.draw(shape[1], rng=rng) for _ in range(shape[0])]
        self.prompt = torch.cat([prompt for prompt, _ in drawn])
        self.log_weight = torch.cat([log_weight for _, log_weight in drawn]) + twist.log_psi[0, 0]  # of a psi / q
        used, row = torch.unique(self.prompt, return_inverse=True)
        log_prob, held = base.begin(on_device_of(prompts.rows(used.to(prompts.tokens.device)), base))
        self.device = log_prob.device
        self.log_prob, self.held = log_prob[row.to(self.device)], base.select(held, row.to(self.device))
        self.state, self.root = torch.zeros(rows, dtype=torch.long), torch.arange(rows)
        self.open = torch.arange(rows)  # the points that are not finished, in the order of the rows of `held`
        self.drawn = torch.zeros(rows, self.events.length, dtype=torch.long)
        self.lengths = torch.zeros(rows, dtype=torch.long)
        self.variance = torch.zeros(shape[0], dtype=torch.float64)
        self.tokens = 0

    def run(self, threshold: float, transitions: Transitions | None) -> None:
        for t in range(self.events.length):
            row = self.extend(t, transitions)
            if threshold > 0 and t + 1 < self.events.length:
                row = self.resample(threshold, row)
            if t + 1 == self.events.length or len(self.open) == 0:
                break
            if len(row) < len(self.log_prob) or bool((row[1:] <= row[:-1]).any()):
                self.held = self.base.select(self.held, row.to(self.device))
            self.log_prob, self.held = self.base.advance(self.held, self.drawn[self.open, t].to(self.device))

    def extend(self, t: int, transitions: Transitions | None) -> Int[Tensor, "A"]:
        """One more token for each open point; returns the rows of `held` of those that stay open."""
        events, rows, state = self.events, self.open, self.state[self.open]
        log_next = self.log_prob.cpu().double()
        if transitions is not None:
            transitions.add(events, t, state, log_next.exp(), self.log_weight[rows])
        value = self.twist.log_psi[t + 1][events.next_state[state]]
        norm = (log_next + value).logsumexp(-1)
        possible = norm > -torch.inf  # of other points a token is drawn, which counts for nothing
        token = self.rng.categorical(torch.where(possible[:, None], log_next + value, 0.0))[:, 0]
        self.drawn[rows, t], self.lengths[rows] = token, t + 1
        self.tokens += len(rows)
        after = torch.where(possible, events.next_state[state, token], events.states + 1)
        self.state[rows] = after
        stay = (after < events.states) & (t + 1 < events.length)
        refused = ~stay & ~events.accepting[after]
        change = norm - self.twist.log_psi[t][state]
        self.log_weight[rows] = torch.where(refused, -torch.inf, self.log_weight[rows] + change)
        self.open = rows[stay]
        return stay.nonzero()[:, 0]

    def resample(self, threshold: float, row: Int[Tensor, "A"]) -> Int[Tensor, "A"]:
        """Resample runs with few effective points; their mean weight stays. Takes and returns rows of `held`."""
        log_weight, count = self.log_weight.view(self.shape), self.shape[1]
        alive = (log_weight > -torch.inf).any(-1)
        share = torch.softmax(torch.where(alive[:, None], log_weight, 0.0), -1)
        effective = 1 / share.square().sum(-1)
        few = alive & (effective < threshold * count)
        if not bool(few.any()):
            return row
        self.variance[few] += 1 / effective[few] - 1 / count
        ancestor = torch.arange(len(self.state)).view(self.shape)
        ancestor[few] = ancestor[few, :1] + residual_resampling(log_weight[few], count, rng=self.rng)
        mean = (log_weight.logsumexp(-1, keepdim=True) - math.log(count)).expand(self.shape)
        self.log_weight = torch.where(few[:, None], mean, log_weight).reshape(-1)
        held_row = torch.full((len(self.state),), -1)
        held_row[self.open] = row
        held_row = held_row[ancestor.view(-1)]
        for name in ("state", "root", "drawn", "lengths", "prompt"):
            setattr(self, name, getattr(self, name)[ancestor.view(-1)])
        self.open = (held_row >= 0).nonzero()[:, 0]
        return held_row[self.open]

    def draws(self) -> TwistedDraws:
        log_weight = self.log_weight.view(self.shape)
        alive = (log_weight > -torch.inf).any(-1)
        share = torch.softmax(torch.where(alive[:, None], log_weight, 0.0), -1)
        variance = self.variance + share.square().sum(-1) - 1 / self.shape[1]
        accepted = torch.unique(self.root[self.log_weight > -torch.inf])
        roots = torch.bincount(accepted // self.shape[1], minlength=self.shape[0])
        device = self.prompts.tokens.device
        points = _points(self.prompts.rows(self.prompt.to(device)), self.drawn, self.lengths)
        return TwistedDraws(points, log_weight, self.prompt.view(self.shape), roots, variance, self.tokens)


def _points(prompts: Sequences, drawn: Int[Tensor, "B L"], lengths: Int[Tensor, "B"]) -> Sequences:
    """The prompts followed by the first tokens that were drawn."""
    device, width = prompts.tokens.device, max(1, int(lengths.max()))
    position = torch.arange(width)
    tokens = torch.where(position < lengths[:, None], drawn[:, :width], 0).to(device)
    padded = torch.nn.functional.pad(prompts.tokens, (0, width))
    padded.scatter_(1, prompts.start[:, None] + position.to(device), tokens)
    stop = prompts.start + lengths.to(device)
    return Sequences(padded[:, : int(stop.max())], prompts.start, stop)


@torch.no_grad()
def completed(base: Base, x: Sequences, *, rng: Rng) -> Sequences:
    """Points that ended where their acceptance was settled, with the rest drawn from the base."""
    last = x.tokens.gather(1, (x.stop - 1).clamp(min=0)[:, None])[:, 0]
    ended = (x.lengths > 0) & base.space.is_eos(last)
    open_ = (~ended & (x.lengths < base.space.max_length)).nonzero()[:, 0]
    if len(open_) == 0:
        return x
    part = x.rows(open_)
    longer = Sequences(torch.nn.functional.pad(part.tokens, (0, 1)), part.start, part.stop + 1)  # one token, drawn again
    new, _ = redraw(base, longer, part.lengths, rng=rng)
    row = torch.arange(len(x), device=open_.device)
    row[open_] = len(x) + torch.arange(len(open_), device=open_.device)
    return concatenate([x, new]).rows(row)


@dataclass(frozen=True)
class Shares:
    """With which probability draws are made after each prompt, and the log weight that makes up for it."""

    log_probability: Float[Tensor, "P"]

    @classmethod
    def even(cls, prompts: int) -> "Shares":
        return cls(torch.full((prompts,), -math.log(prompts), dtype=torch.float64))

    @classmethod
    def by_spread(cls, prompt: Int[Tensor, "B"], log_weight: Float[Tensor, "B"], prompts: int) -> "Shares":
        """In proportion to the root mean square weight of the draws after each prompt, and `EVEN` of it evenly; evenly where
        there are fewer than `DRAWS_OF_PROMPT` draws for each."""
        if prompts == 1 or len(prompt) < DRAWS_OF_PROMPT * prompts or not bool((log_weight > -torch.inf).any()):
            return cls.even(prompts)
        square = (2 * (log_weight - log_weight.max())).exp()
        count = torch.bincount(prompt, minlength=prompts).clamp(min=1)
        root = (torch.zeros(prompts, dtype=torch.float64).index_add_(0, prompt, square) / count).sqrt()
        return cls((EVEN / prompts + (1 - EVEN) * root / root.sum()).log())

    def draw(self, count: int, *, rng: Rng) -> tuple[Int[Tensor, "{count}"], Float[Tensor, "{count}"]]:
        """The prompts of so many draws, and their log weights."""
        prompts = len(self.log_probability)
        if prompts == 1:
            return torch.zeros(count, dtype=torch.long), torch.zeros(count, dtype=torch.float64)
        prompt = rng.categorical(self.log_probability[None], count)[0]
        return prompt, -math.log(prompts) - self.log_probability[prompt]
