"""Dynamic evaluation: a model goes on learning from the text that it is measured on (Krause et al. 2018).

A text is read piece by piece. Each piece is scored by the weights as they are before anything of it is learnt, so its
perplexity is as honest as that of weights at rest; then a gradient of its mean loss moves them:

    w <- w + min(1, decay rate(w)) (w_0 - w) - learning_rate g / (size(w) + epsilon)

w_0 are the weights of the model as it was given; a copy learns. size(w) is that of the weight's usual gradient, and rate(w)
the same in units of all weights (`esscher.training.gradient_statistics`). Weights that usually move much are the ones that move
now, and the ones that return.

A `Reader` cuts the text: a stream into segments, each after the memory of those before, which earlier weights made; or
sequences, one at a time. Nothing is dropped out, neither here nor in the statistics; the code published with mixtures of
softmaxes left the dropout of recurrent weights on in both.
"""

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from esscher.bases.network import NetworkBase
from esscher.hub import SavedBase
from esscher.settings.dynamic import DynamicConfig
from esscher.space import Sequences
from esscher.training.gradient_statistics import GradientStatistics

PAUSE = 10.0  # seconds between two lines

Reader = Callable[[SavedBase], Iterator[Tensor]]
"""The log-probabilities of one piece of a text after another, each made when it is asked for."""


def stream_reader(rows: Int[Tensor, "B N"], segment: int) -> Reader:
    """Reads streams side by side, so many tokens of each at a time, with the base's memory."""

    def read(base: SavedBase) -> Iterator[Tensor]:
        assert isinstance(base, NetworkBase)
        memory, device = base.open(len(rows)), next(base.parameters()).device
        for piece in torch.split(rows, segment, 1):
            found, memory = base.read(memory, piece.to(device))
            yield found.flatten()

    return read


def sequence_reader(x: Sequences, rows: int) -> Reader:
    """Reads so many sequences at a time."""

    def read(base: SavedBase) -> Iterator[Tensor]:
        device = next(base.parameters()).device
        for first in range(0, len(x), rows):
            some = x.rows(slice(first, first + rows)).to(device)
            yield base.log_probs(some)[some.counted]

    return read


class Learner:
    """A copy of a base whose weights learn; the base itself is never changed."""

    def __init__(self, base: SavedBase, config: DynamicConfig, statistics: GradientStatistics | None = None):
        self.base = copy.deepcopy(base).eval()
        named = {name: weight for name, weight in self.base.named_parameters() if weight.requires_grad}
        self.weights = list(named.values())
        self.start = [weight.detach().clone() for weight in self.weights]
        self.pull, self.step = _scales(named, config, statistics)

    def learn(self, loss: Float[Tensor, ""]) -> None:
        """One update."""
        slopes = torch.autograd.grad(loss, self.weights, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            for weight, start, pull, step, slope in zip(self.weights, self.start, self.pull, self.step, slopes, strict=True):
                weight.lerp_(start, pull)
                weight.addcmul_(slope, step, value=-1)


def read_at_rest(base: SavedBase, reader: Reader) -> list[Float[Tensor, "_"]]:
    """Log-probabilities of each piece by weights that do not learn, in float64; the same bits as if they learnt nothing."""
    still = copy.deepcopy(base).eval()
    with differentiable():  # some kernels round otherwise where there are no gradients
        return [score.detach().double().cpu() for score in reader(still)]


def read_learning(
    base: SavedBase, reader: Reader, config: DynamicConfig, statistics: GradientStatistics | None = None
) -> list[Float[Tensor, "_"]]:
    """Log-probabilities of each piece by weights that learnt from all pieces before it, in float64."""
    learner, found, count = Learner(base, config, statistics), [], 0
    with differentiable():
        for score in reader(learner.base):
            found.append(score.detach().double().cpu())
            if not bool(found[-1].isfinite().all()):
                raise ValueError(
                    f"After {count:,} tokens the weights give log-probabilities that are no numbers: learning from the text "
                    f"diverged. Nothing was measured; lower the learning rate from {config.rates.learning_rate:g}."
                )
            count += len(score)
            if len(score):
                learner.learn(-score.mean())
    return found


def said(reader: Reader, what: str, tokens: int, say: Callable[[str], None]) -> Reader:
    """The same reader, which tells now and then how far it is."""

    def read(base: SavedBase) -> Iterator[Tensor]:
        started = spoken = time.monotonic()
        done, nats = 0, 0.0
        for score in reader(base):
            done, nats, now = done + len(score), nats - float(score.detach().sum()), time.monotonic()
            if now - spoken > PAUSE:
                spoken, rate = now, done / (now - started)
                left = max(0, tokens - done) / rate
                say(f"{what}: {done:,} of {tokens:,} tokens  {nats / done:.4f} nats  {rate:,.0f} tokens/s  {left:,.0f} s left")
            yield score

    return read


@contextmanager
def differentiable() -> Iterator[None]:
    """Within it gradients are made; cuDNN, which makes none of recurrent networks at rest, stands aside."""
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        yield


def _scales(
    named: dict[str, nn.Parameter], config: DynamicConfig, statistics: GradientStatistics | None
) -> tuple[list[Tensor], list[Tensor]]:
    """For each weight its share of the way back, and the factor of its gradient."""
    rates = config.rates
    if config.rule == "sgd":
        ones = [weight.new_ones(()) for weight in named.values()]
        return [rates.decay * one for one in ones], [rates.learning_rate * one for one in ones]
    if statistics is None:
        raise ValueError(f"The rule {config.rule!r} needs statistics of gradients. Nothing was read; collect them, or use sgd.")
    size = statistics.sizes(config.rule)
    if size.keys() != named.keys() or any(size[name].shape != weight.shape for name, weight in named.items()):
        raise ValueError("The statistics are of a model with other weights. Nothing was read; collect them anew on this one.")
    whole = sum(float(one.double().mean()) for one in size.values())
    unit = whole / len(size) if config.rule == "original" else whole
    if not unit > 0:
        raise ValueError("Every gradient of the statistics is 0, so no weight can learn. Nothing was read.")
    placed = [size[name].to(weight) for name, weight in named.items()]
    pull = [(rates.decay / unit * one).clamp(max=1) for one in placed]
    return pull, [rates.learning_rate / (one + rates.epsilon) for one in placed]
