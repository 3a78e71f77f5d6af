"""The tasks of fine-tuning: how examples become rows and labels, what is minimised, what scores say, and how good that is.

A task is a frozen dataclass whose fields come from the training examples, such as the names of the classes; the folder keeps
them. `FINETUNE_TASKS` lists all tasks.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.objective import Objective
from esscher.data.examples import Example
from esscher.data.pair_encoding import PairEncoder
from esscher.energies.config import TaskHeadKind
from esscher.metrics.labels import (
    accuracy,
    exact_match,
    macro_f1,
    matthews,
    ndcg,
    pearson,
    reciprocal_rank,
    share,
    spearman,
    word_f1,
)
from esscher.objectives.supervised import (
    NO_ANSWER,
    ChoiceLikelihood,
    LabelledExamples,
    LabelLikelihood,
    RankingHinge,
    SpanLikelihood,
    SquaredError,
    pad_by_example,
    span_log_probs,
)
from esscher.workflow.config.finetune import FinetuneRun

Prediction = Mapping[str, Any]
NDCG_DOCUMENTS = 20  # documents that a ranking is judged by


@runtime_checkable
class FinetuneTask(Protocol):
    """What a task must be able to do."""

    kind: ClassVar[TaskHeadKind]

    @classmethod
    def from_examples(cls, examples: Sequence[Example], run: FinetuneRun, layout: PairEncoder) -> "FinetuneTask":
        """The task as these examples have it."""
        ...

    @property
    def outputs(self) -> int:
        """Scores of a row."""
        ...

    @property
    def objective(self) -> Objective: ...

    def labelled(self, examples: Sequence[Example], layout: PairEncoder) -> LabelledExamples:
        """Rows and labels; an unknown label is arbitrary."""
        ...

    def predictions(
        self, scores: Tensor, data: LabelledExamples, examples: Sequence[Example], layout: PairEncoder
    ) -> list[Prediction]:
        """The prediction for each example, from the scores of these rows."""
        ...

    def measured(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Estimate]:
        """How good predictions are."""
        ...


@dataclass(frozen=True)
class Classify:
    """The class of a text, or of two."""

    labels: tuple[str, ...]
    kind: ClassVar[TaskHeadKind] = "sequence"
    objective: ClassVar[Objective] = LabelLikelihood()

    @classmethod
    def from_examples(cls, examples: Sequence[Example], run: FinetuneRun, layout: PairEncoder) -> "Classify":
        labels = tuple(sorted({str(example.label) for example in examples}))
        if len(labels) < 2:
            raise ValueError(f"All examples to learn from have the label {labels[0]!r}. Nothing was trained; add others.")
        return cls(labels)

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def labelled(self, examples: Sequence[Example], layout: PairEncoder) -> LabelledExamples:
        return _single(examples, layout, torch.tensor([self._number(example.label) for example in examples]))

    def predictions(
        self, scores: Tensor, data: LabelledExamples, examples: Sequence[Example], layout: PairEncoder
    ) -> list[Prediction]:
        share, best = scores.softmax(-1).max(-1)
        pairs = zip(best.tolist(), share.tolist(), strict=True)
        return [{"label": self.labels[number], "probability": value} for number, value in pairs]

    def measured(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Estimate]:
        predicted = [self._number(prediction["label"]) for prediction in predictions]
        right, keys = [self._number(example.label) for example in examples], _keys(examples)
        hits = [label == other for label, other in zip(predicted, right, strict=True)]
        return {
            "accuracy": accuracy(hits, keys),
            "F1": macro_f1(predicted, right, keys),
            "Matthews' correlation": matthews(predicted, right, keys),
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
    """A number for a text, or for two; scores are in standard deviations from the mean of the training examples."""

    centre: float
    scale: float
    kind: ClassVar[TaskHeadKind] = "sequence"
    outputs: ClassVar[int] = 1
    objective: ClassVar[Objective] = SquaredError()

    @classmethod
    def from_examples(cls, examples: Sequence[Example], run: FinetuneRun, layout: PairEncoder) -> "Regress":
        numbers = [float(example.label) for example in examples]
        return cls(statistics.fmean(numbers), statistics.pstdev(numbers) or 1.0)

    def labelled(self, examples: Sequence[Example], layout: PairEncoder) -> LabelledExamples:
        numbers = [0.0 if example.label is None else (example.label - self.centre) / self.scale for example in examples]
        return _single(examples, layout, torch.tensor(numbers))

    def predictions(
        self, scores: Tensor, data: LabelledExamples, examples: Sequence[Example], layout: PairEncoder
    ) -> list[Prediction]:
        return [{"number": self.centre + self.scale * score} for score in scores[:, 0].tolist()]

    def measured(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Estimate]:
        predicted = [prediction["number"] for prediction in predictions]
        right, keys = [example.label for example in examples], _keys(examples)
        return {
            "Pearson's correlation": pearson(predicted, right, keys),
            "Spearman's correlation": spearman(predicted, right, keys),
        }


@dataclass(frozen=True)
class Choose:
    """One of several choices, each read with the text."""

    kind: ClassVar[TaskHeadKind] = "sequence"
    outputs: ClassVar[int] = 1
    objective: ClassVar[Objective] = ChoiceLikelihood()

    @classmethod
    def from_examples(cls, examples: Sequence[Example], run: FinetuneRun, layout: PairEncoder) -> "Choose":
        return cls()

    def labelled(self, examples: Sequence[Example], layout: PairEncoder) -> LabelledExamples:
        labels = [int(number == example.label) for example in examples for number in range(len(example.inputs))]
        return _several(examples, layout, torch.tensor(labels))

    def predictions(
        self, scores: Tensor, data: LabelledExamples, examples: Sequence[Example], layout: PairEncoder
    ) -> list[Prediction]:
        share, best = pad_by_example(scores[:, 0], data.example, -torch.inf).softmax(-1).max(-1)
        pairs = zip(best.tolist(), share.tolist(), strict=True)
        return [{"choice": number, "probability": value} for number, value in pairs]

    def measured(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Estimate]:
        hits = [prediction["choice"] == example.label for prediction, example in zip(predictions, examples, strict=True)]
        return {"accuracy": accuracy(hits, _keys(examples))}


@dataclass(frozen=True)
class Extract:
    """The answer to a question within a passage; `always` there is one, or the answer may be that there is none.

    An answer of more than `longest` tokens, or one that a window cuts, is not trained on; it counts in the measurement.
    """

    longest: int
    always: bool
    kind: ClassVar[TaskHeadKind] = "span"
    outputs: ClassVar[int] = 1

    @classmethod
    def from_examples(cls, examples: Sequence[Example], run: FinetuneRun, layout: PairEncoder) -> "Extract":
        always, longest = all(example.label for example in examples), run.head.answer
        whole = cls(layout.longest, always).labelled(examples, layout).label
        return cls(int((whole[:, 1] - whole[:, 0]).max()) + 1 if longest is None else longest, always)

    @property
    def objective(self) -> SpanLikelihood:
        return SpanLikelihood(self.longest)

    def labelled(self, examples: Sequence[Example], layout: PairEncoder) -> LabelledExamples:
        x, windows = layout.windows([example.inputs[0] for example in examples])
        labels = []
        for window, tokens in zip(windows, x.start.tolist(), strict=True):
            right = examples[window.row].label
            span = None if not right else window.span(right[0][0], len(right[0][1]), tokens)
            labels.append((NO_ANSWER, NO_ANSWER) if span is None or span[1] - span[0] >= self.longest else span)
        return LabelledExamples(x, torch.tensor(labels), torch.tensor([window.row for window in windows]))

    def predictions(
        self, scores: Tensor, data: LabelledExamples, examples: Sequence[Example], layout: PairEncoder
    ) -> list[Prediction]:
        """The best span of all windows, by how much likelier it is than none in its window."""
        _, windows = layout.windows([example.inputs[0] for example in examples])
        log_p = span_log_probs(scores, self.longest)
        columns = log_p.shape[1]
        spans = log_p.flatten(1)
        odds, place = (spans[:, 1:] - spans[:, :1]).max(-1)
        best: list[Prediction] = [{"answer": "", "log_odds": -math.inf} for _ in examples]
        for window, value, cell in zip(windows, odds.tolist(), (place + 1).tolist(), strict=True):
            if value > best[window.row]["log_odds"]:
                passage = examples[window.row].inputs[0][0]
                text = window.text(passage, cell // columns - 1, cell % columns - 1)
                best[window.row] = {"answer": text if self.always or value > 0 else "", "log_odds": value}
        return best

    def measured(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Estimate]:
        keys = _keys(examples)
        right = [[words for _, words in example.label] for example in examples]
        pairs = list(zip([prediction["answer"] for prediction in predictions], right, strict=True))
        measured = {
            "exact match": share([exact_match(*pair) for pair in pairs], keys, method="exact match"),
            "F1": share([word_f1(*pair) for pair in pairs], keys, method="F1 of words", binary=False),
        }
        if not self.always:
            measured["answerability"] = accuracy([bool(answer) == bool(labels) for answer, labels in pairs], keys)
        return measured


@dataclass(frozen=True)
class Rank:
    """The order of a query's documents."""

    kind: ClassVar[TaskHeadKind] = "kernels"
    outputs: ClassVar[int] = 1
    objective: ClassVar[Objective] = RankingHinge()

    @classmethod
    def from_examples(cls, examples: Sequence[Example], run: FinetuneRun, layout: PairEncoder) -> "Rank":
        return cls()

    def labelled(self, examples: Sequence[Example], layout: PairEncoder) -> LabelledExamples:
        grades = [grade for example in examples for grade in example.label or [0.0] * len(example.inputs)]
        return _several(examples, layout, torch.tensor(grades))

    def predictions(
        self, scores: Tensor, data: LabelledExamples, examples: Sequence[Example], layout: PairEncoder
    ) -> list[Prediction]:
        parts: tuple[Tensor, ...] = torch.split(scores[:, 0], [len(example.inputs) for example in examples])
        return [{"order": part.argsort(descending=True, stable=True).tolist(), "scores": part.tolist()} for part in parts]

    def measured(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Estimate]:
        pairs = [
            (torch.tensor(prediction["scores"]), torch.tensor(example.label))
            for prediction, example in zip(predictions, examples, strict=True)
        ]
        keys, real = _keys(examples), {"binary": False}
        gains = [ndcg(*pair, NDCG_DOCUMENTS) for pair in pairs]
        return {
            "MRR": share([reciprocal_rank(*pair) for pair in pairs], keys, method="mean reciprocal rank", **real),
            f"nDCG@{NDCG_DOCUMENTS}": share(gains, keys, method=f"nDCG of the first {NDCG_DOCUMENTS}", **real),
        }


FINETUNE_TASKS: dict[str, type[Classify] | type[Regress] | type[Choose] | type[Extract] | type[Rank]] = {
    "classify": Classify,
    "regress": Regress,
    "choose": Choose,
    "extract": Extract,
    "rank": Rank,
}


def _single(examples: Sequence[Example], layout: PairEncoder, label: Tensor) -> LabelledExamples:
    x = layout.rows([example.inputs[0] for example in examples])
    return LabelledExamples(x, label, torch.arange(len(examples)))


def _several(examples: Sequence[Example], layout: PairEncoder, label: Tensor) -> LabelledExamples:
    x = layout.rows([texts for example in examples for texts in example.inputs])
    sizes = torch.tensor([len(example.inputs) for example in examples])
    return LabelledExamples(x, label, torch.arange(len(examples)).repeat_interleave(sizes))


def _keys(examples: Sequence[Example]) -> list[str]:
    return [example.group for example in examples]
