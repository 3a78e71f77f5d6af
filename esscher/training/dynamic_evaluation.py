"""Dynamic evaluation: a copy of the model keeps learning from the text that it is measured on (Krause et al. 2018).

Each part of a text is scored before anything is learnt from it; then a gradient step on its mean loss g changes the weights:

    w <- w + min(1, decay rate(w)) (w_0 - w) - learning_rate g / (size(w) + epsilon)

w_0 are the weights of the given model; size(w) is the typical gradient of the weight on the training text, rate(w) the same
relative to all weights. Rates of one rule do not carry over to another:

    original   size(w) is the root mean square of the gradient, and rate(w) its ratio to the mean over all kinds of weights
    mos        size(w) is the root of the sum of squares, and rate(w) its ratio to the sum over all kinds (Yang et al. 2018)
    sgd        the same rates for every weight; it needs no statistics, and its rates were never published

Statistics are saved with the digest of the weights, the text and how it was read; those of another model are refused. There is
no dropout, unlike that of recurrent weights in the code published with mixtures of softmaxes.
"""

import copy
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from esscher.bases.network import NetworkBase
from esscher.core.progress import Throttle
from esscher.core.reading import parse_json
from esscher.core.space import Sequences
from esscher.core.storage import read_tensors, write_tensors
from esscher.hub import SavedBase
from esscher.training.config import DynamicConfig

PREFIX, BATCHES, METADATA = "squares/", "batches", "claim"


@dataclass(frozen=True)
class GradientStatistics:
    """Sums of squared gradients over batches, by the name of the weight."""

    squares: Mapping[str, Float[Tensor, "..."]]
    batches: int

    def sizes(self, rule: str) -> dict[str, Float[Tensor, "..."]]:
        """The typical gradient of each weight: the root of the mean square, or with rule "mos" of the sum of squares."""
        count = self.batches if rule == "original" else 1
        return {name: (total / count).sqrt() for name, total in self.squares.items()}


def collect_statistics(base: nn.Module, scores: Iterator[Tensor], *, batches: int | None = None) -> GradientStatistics:
    """Statistics of a base from its log-probabilities of one batch of tokens after another."""
    named = {name: weight for name, weight in base.named_parameters() if weight.requires_grad}
    squares = {name: torch.zeros_like(weight, dtype=torch.float64) for name, weight in named.items()}
    count = 0
    for score in scores:
        slopes = torch.autograd.grad(-score.mean(), list(named.values()), allow_unused=True, materialize_grads=True)
        for total, slope in zip(squares.values(), slopes, strict=True):
            total.add_(slope.double().square_())
        count += 1
        if count == batches:
            break
    if count == 0:
        raise ValueError("There is no text to collect gradients from. Nothing was measured; give some.")
    return GradientStatistics({name: total.float() for name, total in squares.items()}, count)


def save_statistics(file: Path, statistics: GradientStatistics, claim: Mapping[str, Any]) -> None:
    """Write statistics atomically, with a claim of what they belong to."""
    words = torch.frombuffer(bytearray(json.dumps(dict(claim)).encode()), dtype=torch.uint8)
    squares = {PREFIX + name: total for name, total in statistics.squares.items()}
    write_tensors(file, {**squares, BATCHES: torch.tensor(statistics.batches), METADATA: words})


def load_statistics(file: Path, claim: Mapping[str, Any]) -> tuple[GradientStatistics, dict[str, Any]]:
    """Read what `save_statistics` wrote, and its whole claim; refused where a value differs from `claim`."""
    tensors = read_tensors(file)
    if METADATA not in tensors or BATCHES not in tensors:
        raise ValueError(f"{file} holds no statistics of gradients. Nothing was measured; move it away.")
    stated = parse_json(bytes(tensors[METADATA].tolist()), f"The claim in {file}")
    for key, value in claim.items():
        if stated.get(key) != value:
            raise ValueError(
                f"The statistics in {file} were collected with {key} = {stated.get(key)!r}, and here {key} = {value!r}: they "
                f"do not belong together. Nothing was measured or changed; restore the old value, or delete the file to "
                f"collect them again."
            )
    squares = {name.removeprefix(PREFIX): total for name, total in tensors.items() if name.startswith(PREFIX)}
    return GradientStatistics(squares, int(tensors[BATCHES])), stated


SegmentScorer = Callable[[SavedBase], Iterator[Tensor]]
"""Yields the log-probabilities of one part of a text after another, computed lazily."""


def stream_scorer(rows: Int[Tensor, "B N"], segment: int) -> SegmentScorer:
    """Scores parallel streams, `segment` tokens of each at a time, with the memory of the base."""

    def read(base: SavedBase) -> Iterator[Tensor]:
        assert isinstance(base, NetworkBase)
        memory, device = base.init_memory(len(rows)), next(base.parameters()).device
        for part in torch.split(rows, segment, 1):
            log_probs, memory = base.read(memory, part.to(device))
            yield log_probs.flatten()

    return read


def sequence_scorer(x: Sequences, rows: int) -> SegmentScorer:
    """Scores `rows` sequences at a time."""

    def read(base: SavedBase) -> Iterator[Tensor]:
        device = next(base.parameters()).device
        for first in range(0, len(x), rows):
            some = x.rows(slice(first, first + rows)).to(device)
            yield base.log_probs(some)[some.counted]

    return read


class DynamicModel:
    """A copy of a base whose weights learn; the base itself is not changed."""

    def __init__(self, base: SavedBase, config: DynamicConfig, statistics: GradientStatistics | None = None):
        self.base = copy.deepcopy(base).eval()
        named = {name: weight for name, weight in self.base.named_parameters() if weight.requires_grad}
        self.weights = list(named.values())
        self.start = [weight.detach().clone() for weight in self.weights]
        self.pull, self.step = _update_scales(named, config, statistics)

    def learn(self, loss: Float[Tensor, ""]) -> None:
        slopes = torch.autograd.grad(loss, self.weights, allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            for weight, start, pull, step, slope in zip(self.weights, self.start, self.pull, self.step, slopes, strict=True):
                weight.lerp_(start, pull)
                weight.addcmul_(slope, step, value=-1)


def score_static(base: SavedBase, reader: SegmentScorer) -> list[Float[Tensor, "_"]]:
    """Log-probabilities of each part by fixed weights, in float64; bit-identical to learning with rate 0."""
    fixed = copy.deepcopy(base).eval()
    with grad_without_cudnn():  # some kernels round differently without gradients
        return [score.detach().cpu().double() for score in reader(fixed)]


def score_dynamic(
    base: SavedBase, reader: SegmentScorer, config: DynamicConfig, statistics: GradientStatistics | None = None
) -> list[Float[Tensor, "_"]]:
    """Log-probabilities of each part by weights that learnt from all parts before it, in float64."""
    learner, scores, count = DynamicModel(base, config, statistics), [], 0
    with grad_without_cudnn():
        for score in reader(learner.base):
            scores.append(score.detach().cpu().double())
            if not bool(scores[-1].isfinite().all()):
                raise ValueError(
                    f"After {count:,} tokens the log-probabilities are not finite: learning from the text "
                    f"diverged. Nothing was measured; lower the learning rate from {config.rates.learning_rate:g}."
                )
            count += len(score)
            if len(score):
                learner.learn(-score.mean())
    return scores


def with_progress(reader: SegmentScorer, what: str, tokens: int, say: Callable[[str], None]) -> SegmentScorer:
    """The same scorer with progress reports."""

    def read(base: SavedBase) -> Iterator[Tensor]:
        throttle, done, nats = Throttle(), 0, 0.0
        for score in reader(base):
            done, nats = done + len(score), nats - float(score.detach().sum())
            if throttle.due():
                rate, left = throttle.rate(done), throttle.seconds_left(done, tokens)
                say(f"{what}: {done:,} of {tokens:,} tokens  {nats / done:.4f} nats  {rate:,.0f} tokens/s  {left:,.0f} s left")
            yield score

    return read


@contextmanager
def grad_without_cudnn() -> Iterator[None]:
    """Enable gradients, without cuDNN, which has none for recurrent networks in evaluation mode."""
    with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
        yield


def _update_scales(
    named: dict[str, nn.Parameter], config: DynamicConfig, statistics: GradientStatistics | None
) -> tuple[list[Tensor], list[Tensor]]:
    """For each weight the decay towards its start, and the step size."""
    rates = config.rates
    if config.rule == "sgd":
        ones = [weight.new_ones(()) for weight in named.values()]
        return [rates.decay * unit for unit in ones], [rates.learning_rate * unit for unit in ones]
    if statistics is None:
        raise ValueError(f"The rule {config.rule!r} needs statistics of gradients. Nothing was read; collect them, or use sgd.")
    size = statistics.sizes(config.rule)
    if size.keys() != named.keys() or any(size[name].shape != weight.shape for name, weight in named.items()):
        raise ValueError("The statistics are of a model with other weights. Nothing was read; collect them on this one.")
    whole = sum(float(sizes.double().mean()) for sizes in size.values())
    unit = whole / len(size) if config.rule == "original" else whole
    if not unit > 0:
        raise ValueError("Every gradient of the statistics is 0, so no weight can learn. Nothing was read.")
    placed = [size[name].to(weight) for name, weight in named.items()]
    pull = [(rates.decay / unit * sizes).clamp(max=1) for sizes in placed]
    return pull, [rates.learning_rate / (sizes + rates.epsilon) for sizes in placed]
