"""Supervised objectives on whole sequences, for fine-tuning.

    LabelLikelihood()     -log p(class | x)
    SquaredError()        (number - score)^2
    ChoiceLikelihood()    -log p(the right row among those of an example)
    SpanLikelihood(30)    -log p(first and last token of the answer, or no answer)
    RankingHinge()        max(0, margin - (score of a better row - score of a worse one)), over all pairs of an example

The target is any function from sequences to scores, such as `esscher.energies.task_heads.TaskModel`. An example has one row, or
several that are judged together: choices, documents of a query, windows of a long passage. Letters beside those of
`esscher.core.space`: R rows, C classes, K most rows of an example, U columns of a passage plus 1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, relu
from torch.nn.utils.rnn import pad_sequence

from esscher.core.device import widest
from esscher.core.objective import Loss
from esscher.core.randomness import Rng
from esscher.core.space import Sequences

Scores = Callable[[Sequences], Tensor]
"""`Sequences -> Float[Tensor, "R C"]`; of spans `Float[Tensor, "R U 2"]`."""
NO_ANSWER = -1


@dataclass(frozen=True, eq=False)
class LabelledExamples:
    """Rows, the label of each, and the example each belongs to: numbers from 0 that rise by at most 1 from row to row. A label
    is a class, a number, a grade (1 for the right choice), or the first and last token of an answer, -1 for none."""

    x: Sequences
    label: Int[Tensor, "R *S"] | Float[Tensor, "R"]
    example: Int[Tensor, "R"]

    def __len__(self) -> int:
        return int(self.example[-1]) + 1 if len(self.example) else 0

    def rows(self, chosen: Any) -> "LabelledExamples":
        """The chosen examples with all their rows."""
        size = self.example.bincount(minlength=len(self))
        which = torch.arange(len(self), device=size.device)[chosen]
        first, sizes = (size.cumsum(0) - size)[which], size[which]
        example = torch.arange(len(which), device=size.device).repeat_interleave(sizes)
        place = torch.arange(len(example), device=size.device) - (sizes.cumsum(0) - sizes)[example]
        index = first[example] + place
        return LabelledExamples(self.x.rows(index), self.label[index], example)

    def to(self, device: torch.device | str) -> "LabelledExamples":
        return LabelledExamples(self.x.to(device), self.label.to(device), self.example.to(device))

    def tensors(self) -> tuple[Tensor, ...]:
        """The whole content, for a fingerprint."""
        return self.x.tokens, self.x.start, self.x.stop, self.label, self.example


@dataclass(frozen=True)
class LabelLikelihood:
    """Mean negative log-likelihood of the classes."""

    def __call__(self, target: Scores, data: LabelledExamples, *, rng: Rng, step: int = 0) -> Loss:
        scores = target(data.x)
        right = widest(scores.detach().argmax(-1) == data.label).mean()
        return Loss(cross_entropy(scores, data.label), {"accuracy": float(right)}, len(data))


@dataclass(frozen=True)
class SquaredError:
    """Mean squared distance of scores and numbers."""

    def __call__(self, target: Scores, data: LabelledExamples, *, rng: Rng, step: int = 0) -> Loss:
        return Loss((target(data.x)[:, 0] - data.label).square().mean(), {}, len(data))


@dataclass(frozen=True)
class ChoiceLikelihood:
    """Mean negative log-likelihood of the right row among those of an example."""

    def __call__(self, target: Scores, data: LabelledExamples, *, rng: Rng, step: int = 0) -> Loss:
        scores = pad_by_example(target(data.x)[:, 0], data.example, -torch.inf)
        right = pad_by_example(widest(data.label), data.example, -1.0).argmax(-1)
        accuracy = widest(scores.detach().argmax(-1) == right).mean()
        return Loss(cross_entropy(scores, right), {"accuracy": float(accuracy)}, len(data))


@dataclass(frozen=True)
class SpanLikelihood:
    """Mean negative log-likelihood of answers of at most `longest` tokens."""

    longest: int

    def __call__(self, target: Scores, data: LabelledExamples, *, rng: Rng, step: int = 0) -> Loss:
        log_p = span_log_probs(target(data.x), self.longest)
        first, last = (data.label + 1).unbind(-1)  # column 0 stands for no answer
        log_prob = log_p[torch.arange(len(log_p), device=log_p.device), first, last]
        wrong = (data.label[:, 1] - data.label[:, 0]) >= self.longest
        if bool(wrong.any()):
            raise ValueError(
                f"{int(wrong.sum())} answers have more than {self.longest} tokens, so they cannot be found. Nothing was "
                f"learnt; raise longest, or leave them out."
            )
        return Loss(-log_prob.mean(), {}, len(log_prob))


@dataclass(frozen=True)
class RankingHinge:
    """Mean over examples of the mean over pairs of rows with different grades (Xiong et al. 2017); 0 without a pair."""

    margin: float = 1.0

    def __call__(self, target: Scores, data: LabelledExamples, *, rng: Rng, step: int = 0) -> Loss:
        scores = pad_by_example(target(data.x)[:, 0], data.example, 0.0)
        grade = pad_by_example(data.label.to(scores), data.example, torch.nan)
        better = (grade[:, :, None] > grade[:, None, :]).to(scores)
        apart = relu(self.margin - (scores[:, :, None] - scores[:, None, :]))
        mean = (better * apart).sum((1, 2)) / better.sum((1, 2)).clamp(min=1)
        return Loss(mean.mean(), {}, len(data))


def pad_by_example(values: Float[Tensor, "R"], example: Int[Tensor, "R"], missing: float) -> Float[Tensor, "N K"]:
    """A row for each example, padded with `missing`."""
    parts = torch.split(values, example.bincount().tolist())
    return pad_sequence(list(parts), batch_first=True, padding_value=missing)


def span_log_probs(scores: Float[Tensor, "R U 2"], longest: int) -> Float[Tensor, "R U U"]:
    """log p of every span from column i to column j: the sum of both scores, normalised over all valid spans of at most
    `longest` columns. Column 0 is no answer, a span only with itself; columns outside the passage have scores of -inf."""
    columns = scores.shape[1]
    first = torch.arange(columns, device=scores.device)[:, None]
    last = torch.arange(columns, device=scores.device)[None]
    valid = (last >= first) & (last < first + longest) & (first > 0) | ((first == 0) & (last == 0))
    together = scores[:, :, None, 0] + scores[:, None, :, 1]
    return together.masked_fill(~valid, -torch.inf).flatten(1).log_softmax(-1).view(-1, columns, columns)
