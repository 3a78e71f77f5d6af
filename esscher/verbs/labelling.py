"""The tasks of fine-tuning: how examples become rows and labels, what is minimised, what scores say, and how good that is.

A task is a frozen dataclass whose fields are what it found in the examples to learn from, such as the names of the classes: a
folder remembers them. `LABELLINGS` lists all tasks.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from esscher.data.examples import Example
from esscher.data.layout import Layout
from esscher.energies.labeller_config import Kind
from esscher.estimate import Estimate
from esscher.metrics.labels import (
    accuracy,
    discounted_gain,
    exact_match,
    macro_f1,
    matthews,
    pearson,
    reciprocal_rank,
    share,
    spearman,
    word_f1,
)
from esscher.objective import Objective
from esscher.objectives.labelled import (
    NONE,
    ChoiceLikelihood,
    Labelled,
    LabelLikelihood,
    RankingHinge,
    SpanLikelihood,
    SquaredError,
    by_example,
    span_log_probs,
)
from esscher.settings.finetune import FinetuneRun

Answer = Mapping[str, Any]
FIRST = 20  # documents that a ranking is judged by


@runtime_checkable
class Labelling(Protocol):
    """What a task asks of the rest."""

    kind: ClassVar[Kind]

    @classmethod
    def learn(cls, examples: Sequence[Example], run: FinetuneRun, layout: Layout) -> "Labelling":
        """The task as these examples have it."""
        ...

    @property
    def outputs(self) -> int:
        """Scores of a row."""
        ...

    @property
    def objective(self) -> Objective[Any, Any, Any]: ...

    def labelled(self, examples: Sequence[Example], layout: Layout) -> Labelled:
        """Rows and labels; a label that is not known is any."""
        ...

    def answers(self, scores: Tensor, data: Labelled, examples: Sequence[Example], layout: Layout) -> list[Answer]:
        """What the scores of these rows say of each example."""
        ...

    def measured(self, answers: Sequence[Answer], examples: Sequence[Example]) -> dict[str, Estimate]:
        """How good answers are."""
        ...


@dataclass(frozen=True)
class Classify:
    """The class of a text, or of two."""

    labels: tuple[str, ...]
    kind: ClassVar[Kind] = "sequence"
    objective: ClassVar[Objective[Any, Any, Any]] = LabelLikelihood()

    @classmethod
    def learn(cls, examples: Sequence[Example], run: FinetuneRun, layout: Layout) -> "Classify":
        labels = tuple(sorted({str(one.right) for one in examples}))
        if len(labels) < 2:
            raise ValueError(f"All examples to learn from have the label {labels[0]!r}. Nothing was learnt; give others too.")
        return cls(labels)

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def labelled(self, examples: Sequence[Example], layout: Layout) -> Labelled:
        return _single(examples, layout, torch.tensor([self._number(one.right) for one in examples]))

    def answers(self, scores: Tensor, data: Labelled, examples: Sequence[Example], layout: Layout) -> list[Answer]:
        share, best = scores.softmax(-1).max(-1)
        pairs = zip(best.tolist(), share.tolist(), strict=True)
        return [{"label": self.labels[number], "probability": value} for number, value in pairs]

    def measured(self, answers: Sequence[Answer], examples: Sequence[Example]) -> dict[str, Estimate]:
        said, right = [self._number(one["label"]) for one in answers], [self._number(one.right) for one in examples]
        keys = _keys(examples)
        hits = [one == other for one, other in zip(said, right, strict=True)]
        return {
            "accuracy": accuracy(hits, keys),
            "F1": macro_f1(said, right, keys),
            "Matthews' correlation": matthews(said, right, keys),
        }

    def _number(self, label: str | None) -> int:
        if label is None:
            return 0
        if label not in self.labels:
            known = ", ".join(self.labels[:10])
            raise ValueError(f"The label {label!r} was not among those to learn from: {known}. Nothing was computed.")
        return self.labels.index(label)


@dataclass(frozen=True)
class Regress:
    """A number told of a text, or of two; scores are in standard deviations from the mean to learn from."""

    centre: float
    scale: float
    kind: ClassVar[Kind] = "sequence"
    outputs: ClassVar[int] = 1
    objective: ClassVar[Objective[Any, Any, Any]] = SquaredError()

    @classmethod
    def learn(cls, examples: Sequence[Example], run: FinetuneRun, layout: Layout) -> "Regress":
        numbers = [float(one.right) for one in examples]
        return cls(statistics.fmean(numbers), statistics.pstdev(numbers) or 1.0)

    def labelled(self, examples: Sequence[Example], layout: Layout) -> Labelled:
        numbers = [0.0 if one.right is None else (one.right - self.centre) / self.scale for one in examples]
        return _single(examples, layout, torch.tensor(numbers))

    def answers(self, scores: Tensor, data: Labelled, examples: Sequence[Example], layout: Layout) -> list[Answer]:
        return [{"number": self.centre + self.scale * score} for score in scores[:, 0].tolist()]

    def measured(self, answers: Sequence[Answer], examples: Sequence[Example]) -> dict[str, Estimate]:
        said, right, keys = [one["number"] for one in answers], [one.right for one in examples], _keys(examples)
        return {"Pearson's correlation": pearson(said, right, keys), "Spearman's correlation": spearman(said, right, keys)}


@dataclass(frozen=True)
class Choose:
    """One of several choices, each read with the text."""

    kind: ClassVar[Kind] = "sequence"
    outputs: ClassVar[int] = 1
    objective: ClassVar[Objective[Any, Any, Any]] = ChoiceLikelihood()

    @classmethod
    def learn(cls, examples: Sequence[Example], run: FinetuneRun, layout: Layout) -> "Choose":
        return cls()

    def labelled(self, examples: Sequence[Example], layout: Layout) -> Labelled:
        labels = [int(number == one.right) for one in examples for number in range(len(one.readings))]
        return _several(examples, layout, torch.tensor(labels))

    def answers(self, scores: Tensor, data: Labelled, examples: Sequence[Example], layout: Layout) -> list[Answer]:
        share, best = by_example(scores[:, 0], data.example, -torch.inf).softmax(-1).max(-1)
        pairs = zip(best.tolist(), share.tolist(), strict=True)
        return [{"choice": number, "probability": value} for number, value in pairs]

    def measured(self, answers: Sequence[Answer], examples: Sequence[Example]) -> dict[str, Estimate]:
        hits = [one["choice"] == other.right for one, other in zip(answers, examples, strict=True)]
        return {"accuracy": accuracy(hits, _keys(examples))}


@dataclass(frozen=True)
class Extract:
    """The answer to a question within a passage; `always` there is one, or the answer may be that there is none.

    An answer of more than `longest` tokens, or one that a window cuts, is none to learn from; it is one to judge by.
    """

    longest: int
    always: bool
    kind: ClassVar[Kind] = "span"
    outputs: ClassVar[int] = 1

    @classmethod
    def learn(cls, examples: Sequence[Example], run: FinetuneRun, layout: Layout) -> "Extract":
        always, told = all(one.right for one in examples), run.head.answer
        whole = cls(layout.longest, always).labelled(examples, layout).label
        return cls(int((whole[:, 1] - whole[:, 0]).max()) + 1 if told is None else told, always)

    @property
    def objective(self) -> SpanLikelihood:
        return SpanLikelihood(self.longest)

    def labelled(self, examples: Sequence[Example], layout: Layout) -> Labelled:
        x, windows = layout.windows([one.readings[0] for one in examples])
        labels = []
        for window, tokens in zip(windows, x.start.tolist(), strict=True):
            right = examples[window.row].right
            found = None if not right else window.span(right[0][0], len(right[0][1]), tokens)
            labels.append((NONE, NONE) if found is None or found[1] - found[0] >= self.longest else found)
        return Labelled(x, torch.tensor(labels), torch.tensor([window.row for window in windows]))

    def answers(self, scores: Tensor, data: Labelled, examples: Sequence[Example], layout: Layout) -> list[Answer]:
        """The best span of all windows, by how much likelier it is than none in its window."""
        _, windows = layout.windows([one.readings[0] for one in examples])
        log_p = span_log_probs(scores, self.longest)
        columns = log_p.shape[1]
        spans = log_p.flatten(1)
        odds, place = (spans[:, 1:] - spans[:, :1]).max(-1)
        best: list[Answer] = [{"answer": "", "log_odds": -math.inf} for _ in examples]
        for window, value, cell in zip(windows, odds.tolist(), (place + 1).tolist(), strict=True):
            if value > best[window.row]["log_odds"]:
                passage = examples[window.row].readings[0][0]
                text = window.text(passage, cell // columns - 1, cell % columns - 1)
                best[window.row] = {"answer": text if self.always or value > 0 else "", "log_odds": value}
        return best

    def measured(self, answers: Sequence[Answer], examples: Sequence[Example]) -> dict[str, Estimate]:
        keys = _keys(examples)
        right = [[words for _, words in one.right] for one in examples]
        said = [one["answer"] for one in answers]
        pairs = list(zip(said, right, strict=True))
        found = {
            "exact match": share([exact_match(*pair) for pair in pairs], keys, method="exact match"),
            "F1": share([word_f1(*pair) for pair in pairs], keys, method="F1 of words", verdicts=False),
        }
        if not self.always:
            found["answerability"] = accuracy([bool(one) == bool(other) for one, other in pairs], keys)
        return found


@dataclass(frozen=True)
class Rank:
    """The order of a query's documents."""

    kind: ClassVar[Kind] = "kernels"
    outputs: ClassVar[int] = 1
    objective: ClassVar[Objective[Any, Any, Any]] = RankingHinge()

    @classmethod
    def learn(cls, examples: Sequence[Example], run: FinetuneRun, layout: Layout) -> "Rank":
        return cls()

    def labelled(self, examples: Sequence[Example], layout: Layout) -> Labelled:
        grades = [grade for one in examples for grade in one.right or [0.0] * len(one.readings)]
        return _several(examples, layout, torch.tensor(grades))

    def answers(self, scores: Tensor, data: Labelled, examples: Sequence[Example], layout: Layout) -> list[Answer]:
        parts: tuple[Tensor, ...] = torch.split(scores[:, 0], [len(one.readings) for one in examples])
        return [{"order": part.argsort(descending=True, stable=True).tolist(), "scores": part.tolist()} for part in parts]

    def measured(self, answers: Sequence[Answer], examples: Sequence[Example]) -> dict[str, Estimate]:
        pairs = [(torch.tensor(one["scores"]), torch.tensor(other.right)) for one, other in zip(answers, examples, strict=True)]
        keys, told = _keys(examples), {"verdicts": False}
        gains = [discounted_gain(*pair, FIRST) for pair in pairs]
        return {
            "MRR": share([reciprocal_rank(*pair) for pair in pairs], keys, method="mean reciprocal rank", **told),
            f"nDCG@{FIRST}": share(gains, keys, method=f"nDCG of the first {FIRST}", **told),
        }


LABELLINGS: dict[str, type[Classify] | type[Regress] | type[Choose] | type[Extract] | type[Rank]] = {
    "classify": Classify,
    "regress": Regress,
    "choose": Choose,
    "extract": Extract,
    "rank": Rank,
}


def _single(examples: Sequence[Example], layout: Layout, label: Tensor) -> Labelled:
    x = layout.rows([one.readings[0] for one in examples])
    return Labelled(x, label, torch.arange(len(examples)))


def _several(examples: Sequence[Example], layout: Layout, label: Tensor) -> Labelled:
    x = layout.rows([reading for one in examples for reading in one.readings])
    sizes = torch.tensor([len(one.readings) for one in examples])
    return Labelled(x, label, torch.arange(len(examples)).repeat_interleave(sizes))


def _keys(examples: Sequence[Example]) -> list[str]:
    return [one.key for one in examples]
