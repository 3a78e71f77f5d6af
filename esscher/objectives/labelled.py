"""What is known of whole sequences, and what it costs not to know it: fine-tuning as objectives.

    LabelLikelihood()     -log p(class | x)
    SquaredError()        (number - score)^2
    ChoiceLikelihood()    -log p(the right row among those of an example)
    SpanLikelihood(30)    -log p(first and last token of the answer, or that there is none)
    RankingHinge()        max(0, margin - (score of a better row - score of a worse one)), over all pairs of an example

The target is any function from sequences to scores, such as a `esscher.energies.labeller.Labeller`: a column for each class, or
one column; of spans see `span_log_probs`. An example has one row, or several that are judged together: choices, documents of a
query, windows of a long passage.

Letters beside those of `esscher.space`: R rows, C classes, K rows of an example at most, U columns of a passage and one before.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, relu
from torch.nn.utils.rnn import pad_sequence

from esscher.objective import Loss
from esscher.randomness import Rng
from esscher.space import Sequences

Scores = Callable[[Sequences], Tensor]
"""`Sequences -> Float[Tensor, "R C"]`; of spans `Float[Tensor, "R U 2"]`."""
NONE = -1


@dataclass(frozen=True, eq=False)
class Labelled:
    """Rows, the label of each, and the example each belongs to: numbers from 0 that rise by at most 1 from row to row.

    A label is a class, a number, a grade (of choices: 1 for the right one), or the first and last token of an answer within
    the prompt, -1 where there is none.
    """

    x: Sequences
    label: Int[Tensor, "R *S"] | Float[Tensor, "R"]
    example: Int[Tensor, "R"]

    def __len__(self) -> int:
        return int(self.example[-1]) + 1 if len(self.example) else 0

    def rows(self, chosen: Any) -> "Labelled":
        """The chosen examples with all their rows."""
        size = self.example.bincount(minlength=len(self))
        which = torch.arange(len(self), device=size.device)[chosen]
        first, own = (size.cumsum(0) - size)[which], size[which]
        example = torch.arange(len(which), device=size.device).repeat_interleave(own)
        place = torch.arange(len(example), device=size.device) - (own.cumsum(0) - own)[example]
        index = first[example] + place
        return Labelled(self.x.rows(index), self.label[index], example)

    def to(self, device: torch.device | str) -> "Labelled":
        return Labelled(self.x.to(device), self.label.to(device), self.example.to(device))

    def tensors(self) -> tuple[Tensor, ...]:
        """All that tells these examples from others."""
        return self.x.tokens, self.x.start, self.x.stop, self.label, self.example


@dataclass(frozen=True)
class LabelLikelihood:
    """Mean negative log-likelihood of the classes."""

    def __call__(self, target: Scores, data: Labelled, *, rng: Rng, step: int = 0) -> Loss:
        scores = target(data.x)
        right = (scores.detach().argmax(-1) == data.label).double().mean()
        return Loss(cross_entropy(scores, data.label), {"accuracy": float(right)}, len(data))


@dataclass(frozen=True)
class SquaredError:
    """Mean squared distance of scores and numbers."""

    def __call__(self, target: Scores, data: Labelled, *, rng: Rng, step: int = 0) -> Loss:
        return Loss((target(data.x)[:, 0] - data.label).square().mean(), {}, len(data))


@dataclass(frozen=True)
class ChoiceLikelihood:
    """Mean negative log-likelihood of the right row among those of an example."""

    def __call__(self, target: Scores, data: Labelled, *, rng: Rng, step: int = 0) -> Loss:
        scores = by_example(target(data.x)[:, 0], data.example, -torch.inf)
        right = by_example(data.label.double(), data.example, -1.0).argmax(-1)
        found = (scores.detach().argmax(-1) == right).double().mean()
        return Loss(cross_entropy(scores, right), {"accuracy": float(found)}, len(data))


@dataclass(frozen=True)
class SpanLikelihood:
    """Mean negative log-likelihood of answers; none has more than `longest` tokens."""

    longest: int

    def __call__(self, target: Scores, data: Labelled, *, rng: Rng, step: int = 0) -> Loss:
        log_p = span_log_probs(target(data.x), self.longest)
        first, last = (data.label + 1).unbind(-1)  # column 0 stands for no answer
        found = log_p[torch.arange(len(log_p), device=log_p.device), first, last]
        wrong = (data.label[:, 1] - data.label[:, 0]) >= self.longest
        if bool(wrong.any()):
            raise ValueError(
                f"{int(wrong.sum())} answers have more than {self.longest} tokens, so they cannot be found. Nothing was "
                f"learnt; raise longest, or leave them out."
            )
        return Loss(-found.mean(), {}, len(found))


@dataclass(frozen=True)
class RankingHinge:
    """Mean over examples of the mean over their pairs of rows with different grades (Xiong et al. 2017); 0 without a pair."""

    margin: float = 1.0

    def __call__(self, target: Scores, data: Labelled, *, rng: Rng, step: int = 0) -> Loss:
        scores = by_example(target(data.x)[:, 0], data.example, 0.0)
        grade = by_example(data.label.to(scores), data.example, torch.nan)
        better = (grade[:, :, None] > grade[:, None, :]).to(scores)
        apart = relu(self.margin - (scores[:, :, None] - scores[:, None, :]))
        mean = (better * apart).sum((1, 2)) / better.sum((1, 2)).clamp(min=1)
        return Loss(mean.mean(), {}, len(data))


def by_example(values: Float[Tensor, "R"], example: Int[Tensor, "R"], missing: float) -> Float[Tensor, "N K"]:
    """A row for each example, filled up with `missing`."""
    parts = torch.split(values, example.bincount().tolist())
    return pad_sequence(list(parts), batch_first=True, padding_value=missing)


def span_log_probs(scores: Float[Tensor, "R U 2"], longest: int) -> Float[Tensor, "R U U"]:
    """log p of every span from column i to column j: the scores of both, normalised over all that are lawful.

    Column 0 stands for no answer, and is a span with itself alone. A span has at most `longest` columns; columns that are no
    part of the passage have scores of -inf.
    """
    columns = scores.shape[1]
    first = torch.arange(columns, device=scores.device)[:, None]
    last = torch.arange(columns, device=scores.device)[None]
    lawful = (last >= first) & (last < first + longest) & (first > 0) | ((first == 0) & (last == 0))
    together = scores[:, :, None, 0] + scores[:, None, :, 1]
    return together.masked_fill(~lawful, -torch.inf).flatten(1).log_softmax(-1).view(-1, columns, columns)
