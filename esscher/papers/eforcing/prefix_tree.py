"""Small networks on every prefix of a string at once, many networks side by side, and exact divergences from a known truth.

Strings have L symbols out of V, so there are V^L of them and V^k prefixes of k symbols, numbered in lexicographic order. A
network of this module returns the logits after *every* prefix in one pass, in which equal prefixes are computed once; all
likelihoods, divergences and draws follow from these without a further pass. R replicas are networks that differ in their
weights only: every parameter has a first dimension R, and the loss of one replica has no gradient in another. M is V^k.

Left out: end symbols, prompts, dropout, and networks of the library, which read each string on its own (ten times the work).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from esscher.core.randomness import SeededRng


def joint_masses(strings: Float[Tensor, "*R K"], symbols: int, length: int) -> list[Float[Tensor, "*R _ V"]]:
    """From the mass of every string, the mass of every prefix of 0 to L - 1 symbols with every next symbol."""
    return [torch.unflatten(strings, -1, (symbols**k, symbols, -1)).sum(-1) for k in range(length)]


@dataclass(frozen=True)
class TreeScores:
    """The logits of R networks after every prefix of 0 to L - 1 symbols, by length."""

    logits: list[Float[Tensor, "R _ V"]]

    @property
    def length(self) -> int:
        return len(self.logits)

    @property
    def symbols(self) -> int:
        return self.logits[0].shape[-1]

    @cached_property
    def logsumexp(self) -> list[Float[Tensor, "R _"]]:
        """The logsumexp of the logits after each prefix."""
        return [logits.logsumexp(-1) for logits in self.logits]

    @cached_property
    def log_next(self) -> list[Float[Tensor, "R _ V"]]:
        """log q(next symbol | prefix)."""
        return [logits - level[..., None] for logits, level in zip(self.logits, self.logsumexp, strict=True)]

    @cached_property
    def log_prefix(self) -> list[Float[Tensor, "R _"]]:
        """log q(prefix) of the prefixes of 0 to L symbols; the last ones are whole strings."""
        log_prob = [torch.zeros_like(self.logsumexp[0])]
        for log_next in self.log_next:
            log_prob.append((log_prob[-1][..., None] + log_next).flatten(1))
        return log_prob

    def double(self) -> "TreeScores":
        """The same logits in float64, without gradients."""
        return TreeScores([logits.detach().double() for logits in self.logits])


@dataclass(frozen=True)
class Divergences:
    """Exact divergences of R networks q from a truth p, in nats a string."""

    kl: Float[Tensor, "R"]
    """KL(p || q): the sum over k of the error of the k-th symbol, KL(p(x_k | x_<k) || q(x_k | x_<k)), after prefixes of p."""
    prefix_kl: Float[Tensor, "R"]
    """KL(prefixes of p || prefixes of q), averaged over their lengths from 1 to L - 1."""
    own_kl: Float[Tensor, "R"]
    """The same sum of errors as `kl`, after prefixes of q: what exposure bias would raise above `kl`."""
    reverse_kl: Float[Tensor, "R"]
    """KL(q || p): how far drawn strings are from the truth."""
    tilted_kl: Float[Tensor, "R"]
    """KL(p || p_L), with p_L(x) proportional to q(x) exp(logsumexp of the logits before the last symbol), E-Forcing's model."""


@torch.no_grad()
def divergences(truth: Float[Tensor, "K"], scores: TreeScores) -> Divergences:
    """The divergences of all replicas from the probabilities of all strings, which are above 0."""
    scores, truth = scores.double(), truth.double()
    joint = joint_masses(truth, scores.symbols, scores.length)
    prefix = [each.sum(-1) for each in joint]
    log_q = scores.log_prefix[-1]
    by_length = [_kl(mass, log_q_prefix) for mass, log_q_prefix in zip(prefix[1:], scores.log_prefix[1:-1], strict=True)]
    own = torch.zeros(len(log_q), dtype=torch.float64)
    for masses, total, log_next, log_q_prefix in zip(joint, prefix, scores.log_next, scores.log_prefix[:-1], strict=True):
        conditional = masses / total[:, None]
        own += (log_q_prefix.exp() * (conditional * (conditional.log() - log_next)).sum(-1)).sum(-1)
    log_tilted = log_q + scores.logsumexp[-1].repeat_interleave(scores.symbols, -1)
    log_tilted = log_tilted - log_tilted.logsumexp(-1, keepdim=True)
    reverse = (log_q.exp() * (log_q - truth.log())).sum(-1)
    return Divergences(_kl(truth, log_q), torch.stack(by_length).mean(0), own, reverse, _kl(truth, log_tilted))


def _kl(truth: Float[Tensor, "K"], log_model: Float[Tensor, "R K"]) -> Float[Tensor, "R"]:
    return (truth * (truth.log() - log_model)).sum(-1)


class TreeLstm(nn.Module):
    """An LSTM with one layer and one-hot input."""

    def __init__(self, symbols: int, length: int, width: int, seeds: Sequence[int]):
        super().__init__()
        self.symbols, self.length = symbols, length
        self.input = _uniform("input", seeds, 1 / math.sqrt(width), symbols + 1, 4 * width)  # the last row is the start
        self.recurrent = _uniform("recurrent", seeds, 1 / math.sqrt(width), width, 4 * width)
        self.output = _uniform("output", seeds, 1 / math.sqrt(width), width, symbols)
        self.bias = _uniform("bias", seeds, 1 / math.sqrt(width), 1, symbols)

    def forward(self) -> TreeScores:
        width = self.recurrent.shape[1]
        start = self.input[:, None, -1]
        hidden, cell = self._step(start, torch.zeros_like(start[..., :width]))
        states = [hidden]
        for _ in range(self.length - 1):
            gates = (hidden @ self.recurrent)[:, :, None] + self.input[:, None, :-1]
            hidden, cell = self._step(gates.flatten(1, 2), _repeat(cell, self.symbols))
            states.append(hidden)
        logits = torch.cat(states, 1) @ self.output + self.bias
        return TreeScores(_by_length(logits, self.symbols, self.length))

    def _step(self, gates: Float[Tensor, "R M G"], cell: Float[Tensor, "R M W"]) -> tuple[Tensor, Tensor]:
        admit, forget, new, show = gates.chunk(4, -1)
        cell = forget.sigmoid() * cell + admit.sigmoid() * new.tanh()
        return show.sigmoid() * cell.tanh(), cell


class TreeTransformer(nn.Module):
    """A pre-norm Transformer, one head, learned positions, norms without weights; a prefix attends to all that begin it."""

    def __init__(self, symbols: int, length: int, width: int, seeds: Sequence[int], layers: int = 2):
        super().__init__()
        self.symbols, self.length = symbols, length
        self.embedding = _uniform("embedding", seeds, 1.0, symbols + 1, width)
        self.position = _uniform("position", seeds, 1.0, length, width)
        narrow, wide = 1 / math.sqrt(width), 1 / math.sqrt(2 * width)
        self.layers = nn.ModuleList()
        for layer in range(layers):
            parts = {
                "qkv_proj": _uniform(f"qkv {layer}", seeds, narrow, width, 3 * width),
                "o_proj": _uniform(f"o {layer}", seeds, narrow, width, width),
                "up_proj": _uniform(f"up {layer}", seeds, narrow, width, 2 * width),
                "down_proj": _uniform(f"down {layer}", seeds, wide, 2 * width, width),
                "up_bias": _uniform(f"up bias {layer}", seeds, narrow, 1, 2 * width),
            }
            self.layers.append(nn.ParameterDict(parts))
        self.output = _uniform("output", seeds, narrow, width, symbols)
        self.bias = _uniform("bias", seeds, narrow, 1, symbols)

    def forward(self) -> TreeScores:
        x = self._inputs()
        for layer in self.layers:
            x = x + self._attention(layer_norm(x, x.shape[-1:]), layer["qkv_proj"]) @ layer["o_proj"]  # type: ignore[index]
            widened = gelu(layer_norm(x, x.shape[-1:]) @ layer["up_proj"] + layer["up_bias"])  # type: ignore[index]
            x = x + widened @ layer["down_proj"]  # type: ignore[index]
        logits = layer_norm(x, x.shape[-1:]) @ self.output + self.bias
        return TreeScores(_by_length(logits, self.symbols, self.length))

    def _inputs(self) -> Float[Tensor, "R N W"]:
        """The embedding of the last symbol of each prefix, and of its length."""
        parts = [self.embedding[:, -1:] + self.position[:, :1]]
        for k in range(1, self.length):
            parts.append((self.embedding[:, :-1] + self.position[:, k : k + 1]).repeat(1, self.symbols ** (k - 1), 1))
        return torch.cat(parts, 1)

    def _attention(self, x: Float[Tensor, "R N W"], qkv_proj: Float[Tensor, "R W U"]) -> Float[Tensor, "R N W"]:
        """Attention of each prefix to its path, with one head: dense within the tree of the shorter prefixes, and within each
        tree below it, where the path to its root is among the keys."""
        symbols, top = self.symbols, min(self.length - 1, self.length // 2 + 1)
        query, key, value = (_by_length(x @ part, symbols, self.length) for part in qkv_proj.chunk(3, -1))
        short_query, short_key, short_value = (torch.cat(part[:top], 1) for part in (query, key, value))
        below_query, below_key, below_value = (
            torch.cat([torch.unflatten(level, 1, (symbols**top, -1)) for level in part[top:]], 2)
            for part in (query, key, value)
        )
        path_key, path_value = (
            torch.cat([_repeat(level, symbols ** (top - k)).unsqueeze(2) for k, level in enumerate(part[:top])], 2)
            for part in (key, value)
        )
        keys, values = torch.cat([path_key, below_key], 2), torch.cat([path_value, below_value], 2)
        under = _path_mask(symbols, self.length - top)
        allowed = torch.cat([torch.ones(len(under), top, dtype=torch.bool), under], 1)
        mixed = _attend(below_query.flatten(0, 1), keys.flatten(0, 1), values.flatten(0, 1), allowed)
        mixed = torch.unflatten(mixed, 0, (len(x), -1))
        below = torch.split(mixed, [symbols**k for k in range(self.length - top)], 2)
        short = _attend(short_query, short_key, short_value, _path_mask(symbols, top))
        return torch.cat([short, *(part.flatten(1, 2) for part in below)], 1)


def _attend(query: Tensor, key: Tensor, value: Tensor, allowed: Bool[Tensor, "Q K"]) -> Float[Tensor, "B Q D"]:
    """Softmax attention to the keys that are allowed."""
    forbidden = torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)
    return torch.baddbmm(forbidden, query, key.transpose(1, 2), alpha=1 / math.sqrt(query.shape[-1])).softmax(-1) @ value


def _path_mask(symbols: int, lengths: int) -> Bool[Tensor, "N N"]:
    """Whether prefix j begins prefix i, for all prefixes of fewer than `lengths` symbols, by length."""
    count = [symbols**k for k in range(lengths)]
    number, length = (
        torch.cat([torch.arange(each) for each in count]),
        torch.arange(lengths).repeat_interleave(torch.tensor(count)),
    )
    longer = (length[:, None] - length).clamp(min=0)
    return (length[:, None] >= length) & (number[:, None] // symbols**longer == number)


def _repeat(values: Tensor, times: int) -> Tensor:
    """Each entry of the second dimension so many times in a row; faster to differentiate than `repeat_interleave`."""
    return values.unsqueeze(2).expand(-1, -1, times, *values.shape[2:]).flatten(1, 2)


NETWORKS = {"LSTM": TreeLstm, "Transformer": TreeTransformer}


def _uniform(name: str, seeds: Sequence[int], bound: float, *shape: int) -> nn.Parameter:
    """Weights that each seed draws for itself, uniform between -bound and bound."""
    drawn = [SeededRng(seed, "initial weights", name).uniform(*shape) for seed in seeds]
    return nn.Parameter(bound * (2 * torch.stack(drawn) - 1))


def _by_length(values: Tensor, symbols: int, length: int) -> list[Tensor]:
    """Values of all prefixes, which stand by length, as one tensor a length."""
    return list(torch.split(values, [symbols**k for k in range(length)], 1))


def string_numbers(tokens: Int[Tensor, "B L"], symbols: int) -> Int[Tensor, "B"]:
    """The number of each string in lexicographic order."""
    place = symbols ** torch.arange(tokens.shape[1] - 1, -1, -1)
    return (tokens * place).sum(-1)
