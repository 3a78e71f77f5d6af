"""Training of many small networks side by side on the strings of a prefix tree, by likelihood and six other objectives.

A batch is all training strings, so that the only noise of an update is that of the objective. Everything is per symbol, as in
`esscher.objectives`, and for networks of `prefix_tree` the same as there:

    likelihood            -log q
    label smoothing       a share of the target is uniform
    scheduled sampling    a share of the symbols of a prefix are drawn by the network, given the data ("passes")
    E-Forcing             likelihood + sum over k of weight decay^k KL(data || p_k)

E-Forcing counts the likelihood of prefixes again for every k, as published, or once. Its negatives are all prefixes with their
exact probabilities (exhaustive), or `draws` strings of the network; in the published estimator prefixes of draws have the
weight w instead of w - 1, and the next symbol is the drawn one: the same mean with more noise (docs/why/eforcing.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from esscher.core.randomness import Rng, SeededRng
from esscher.papers.eforcing.prefix_tree import TreeScores, joint_masses

DECAY = 0.9
Kind = Literal["likelihood", "label smoothing", "scheduled sampling", "E-Forcing"]
Negatives = Literal["exhaustive", "drawn", "drawn, published estimator"]


@dataclass(frozen=True)
class Method:
    """An objective, without its settings."""

    kind: Kind
    counts: Literal["again", "once"] = "again"
    negatives: Negatives = "exhaustive"

    def __str__(self) -> str:
        if self.kind != "E-Forcing":
            return self.kind
        return f"{self.kind}, {'published' if self.counts == 'again' else 'counted once'}, {self.negatives}"


LIKELIHOOD, SMOOTHING, SCHEDULED = Method("likelihood"), Method("label smoothing"), Method("scheduled sampling")
PUBLISHED, ONCE = Method("E-Forcing"), Method("E-Forcing", "once")
METHODS = (
    LIKELIHOOD,
    SMOOTHING,
    SCHEDULED,
    PUBLISHED,
    ONCE,
    Method("E-Forcing", "again", "drawn"),
    Method("E-Forcing", "once", "drawn"),
    Method("E-Forcing", "again", "drawn, published estimator"),
)


@dataclass(frozen=True)
class Setting:
    """The strength of an objective (smoothing, share of own symbols, or weight), and the update at which it begins."""

    strength: float = 0.0
    begin: int = 0


@dataclass(frozen=True)
class TreeData:
    """The strings of each replica, by number, to learn from and to validate with."""

    training: Int[Tensor, "R N"]
    validation: Int[Tensor, "R U"]
    symbols: int
    length: int

    def masses(self, strings: Int[Tensor, "R N"]) -> list[Float[Tensor, "R _ V"]]:
        """The share of the strings that begin with each prefix and next symbol."""
        return joint_masses(shares(strings, self.symbols**self.length), self.symbols, self.length)


def shares(strings: Int[Tensor, "R N"], count: int) -> Float[Tensor, "R K"]:
    """How often each of `count` strings occurs in each row, divided by the length of the row."""
    zeros = torch.zeros(len(strings), count)
    return zeros.scatter_add(1, strings, torch.full(strings.shape, 1 / strings.shape[1]))


def nll(scores: TreeScores, data: Sequence[Tensor], smoothing: Float[Tensor, "R"] | None = None) -> Float[Tensor, "R"]:
    """Minus the mean log-probability of a symbol, with a share `smoothing` of the target uniform."""
    total = torch.zeros(len(scores.logits[0]))
    for joint, log_next in zip(data, scores.log_next, strict=True):
        each = (joint * log_next).sum((1, 2))
        if smoothing is not None:
            uniform = (joint.sum(-1) * log_next.mean(-1)).sum(-1)
            each = (1 - smoothing) * each + smoothing * uniform
        total = total - each
    return total / scores.length


def contrast(
    scores: TreeScores, data: Sequence[Tensor], negatives: Sequence[Tensor], method: Method, decay: float = DECAY
) -> Float[Tensor, "R"]:
    """The sum of decay^k KL(data || p_k) per symbol, but for constants, with the gradient of its estimator; `negatives` are the
    masses of prefixes and next symbols under the network or among its draws."""
    total = torch.zeros(len(scores.logits[0]))
    for k, (joint, own) in enumerate(zip(data, negatives, strict=True)):
        logsumexp, log_prefix, prefix, seen = scores.logsumexp[k], scores.log_prefix[k], own.sum(-1), joint.sum(-1)
        log_z = (prefix.log() + logsumexp.detach()).logsumexp(-1)
        ratio = (logsumexp.detach() - log_z[:, None]).exp()  # w of each prefix
        if method.negatives == "drawn, published estimator":
            surrogate = (own * ratio[..., None] * scores.logits[k]).sum((1, 2)) + (prefix * ratio * log_prefix).sum(-1)
        else:
            surrogate = (prefix * (ratio * logsumexp + (ratio - 1) * log_prefix)).sum(-1)
        data_score = (seen * logsumexp).sum(-1)
        if method.counts == "again":
            data_score = data_score + (seen * log_prefix).sum(-1) + (joint * scores.log_next[k]).sum((1, 2))
        total = total + decay**k * (surrogate - surrogate.detach() + log_z - data_score)
    return total / scores.length


def scheduled_nll(
    scores: TreeScores, strings: Int[Tensor, "R N"], share: Float[Tensor, "R"], *, rng: Rng
) -> Float[Tensor, "R"]:
    """Minus the mean log-probability of a symbol after prefixes in which a share of the symbols are the network's own."""
    symbols, length, log_share = scores.symbols, scores.length, share.double().log()[:, None].expand(strings.shape)
    total, mixed = torch.zeros(len(strings)), torch.zeros_like(strings)
    for k, log_next in enumerate(scores.log_next):
        prefix, token = strings // symbols ** (length - k), strings // symbols ** (length - k - 1) % symbols
        total = total - _at(log_next, mixed).gather(-1, token[..., None]).mean((1, 2))
        own = rng.categorical(_at(log_next.detach(), prefix).flatten(0, 1)).view(strings.shape)
        mixed = mixed * symbols + torch.where(rng.bernoulli(log_share), own, token)
    return total / length


def _at(values: Float[Tensor, "R M V"], prefix: Int[Tensor, "R N"]) -> Float[Tensor, "R N V"]:
    return values.gather(1, prefix[..., None].expand(-1, -1, values.shape[-1]))


def negative_masses(scores: TreeScores, method: Method, draws: int, *, rng: Rng) -> list[Float[Tensor, "R _ V"]]:
    """The masses of prefixes and next symbols: exact, or of fresh draws."""
    log_q = scores.log_prefix[-1].detach()  # not under no_grad: the scores keep what they compute
    strings = log_q.exp() if method.negatives == "exhaustive" else shares(rng.categorical(log_q, draws), log_q.shape[1])
    return joint_masses(strings, scores.symbols, scores.length)


@dataclass(frozen=True)
class TrainingPlan:
    """How a study trains: Adam on all strings at once, until no replica has had a lower validation loss for `patience`
    updates."""

    learning_rate: float
    updates: int
    patience: int
    draws: int  # negatives of an update


@dataclass(frozen=True)
class Trained:
    """The networks after the update with the lowest validation loss of each, that loss per symbol, and that update."""

    scores: TreeScores
    validation: Float[Tensor, "R"]
    update: Int[Tensor, "R"]


def train(
    network: nn.Module, data: TreeData, method: Method, settings: Sequence[Setting], plan: TrainingPlan, *, rng: SeededRng
) -> Trained:
    """Train all replicas of a network by one objective, each with its own setting. A replica that diverges (a weight for which
    E-Forcing counted once has no minimum) keeps the weights of its lowest validation loss, and disturbs no other."""
    optimizer = torch.optim.Adam(network.parameters(), plan.learning_rate)
    masses, held_out = data.masses(data.training), data.masses(data.validation)
    best = torch.full((len(settings),), torch.inf)
    best_update = torch.zeros(len(settings), dtype=torch.long)
    kept = [weight.detach().clone() for weight in network.parameters()]
    for update in range(plan.updates + 1):
        scores: TreeScores = network()
        validation = nll(scores, held_out).detach()
        better = validation < best
        best, best_update = torch.where(better, validation, best), torch.where(better, update, best_update)
        _keep(kept, network, better)
        if update == plan.updates or bool((update - best_update >= plan.patience).all()):
            break
        loss = _loss(scores, data, masses, method, settings, plan.draws, update, rng.stream("update", update))
        optimizer.zero_grad()
        torch.autograd.backward(loss.sum())
        optimizer.step()
    with torch.no_grad():
        for weight, value in zip(network.parameters(), kept, strict=True):
            weight.copy_(value)
        return Trained(network(), best, best_update)


def _keep(kept: list[Tensor], network: nn.Module, better: Bool[Tensor, "R"]) -> None:
    for value, weight in zip(kept, network.parameters(), strict=True):
        value[better] = weight.detach()[better]


def _loss(
    scores: TreeScores,
    data: TreeData,
    masses: Sequence[Tensor],
    method: Method,
    settings: Sequence[Setting],
    draws: int,
    update: int,
    rng: Rng,
) -> Float[Tensor, "R"]:
    """The loss of each replica; before its beginning an objective is likelihood."""
    strength = torch.tensor([setting.strength if update >= setting.begin else 0.0 for setting in settings])
    if not bool(strength.any()):
        return nll(scores, masses)
    if method.kind == "label smoothing":
        return nll(scores, masses, strength)
    if method.kind == "scheduled sampling":
        return scheduled_nll(scores, data.training, strength, rng=rng)
    negatives = negative_masses(scores, method, draws, rng=rng)
    return nll(scores, masses) + strength * contrast(scores, masses, negatives, method)
