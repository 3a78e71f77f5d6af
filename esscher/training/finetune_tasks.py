"""The tasks of fine-tuning: frozen dataclasses of classification, regression, choice, extraction and ranking.

    from_examples   the task, from the training examples
    kind, outputs   the kind of head, and the number of scores per row
    objective       the training objective
    labelled        rows and labels; an unknown label is arbitrary
    predictions     the prediction for each example, from the scores of its rows
    measured        estimates of how good predictions are

Fields, such as the names of the classes, come from the training examples and are kept in the folder.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.core.estimate import Estimate
from esscher.core.objective import Objective
from esscher.data.examples import Example
from esscher.data.pair_encoding import PairEncoder
from esscher.energies.config import TaskHeadKind
from esscher.metrics import labels as metrics
from esscher.objectives import supervised
from esscher.objectives.supervised import LabelledExamples

Prediction = Mapping[str, Any]
NDCG_DOCUMENTS = 20  # documents that a ranking is judged by
NO_SPAN = (supervised.NO_ANSWER, supervised.NO_ANSWER)


@dataclass(frozen=True)
class Classify:
    """The class of a text, or of two."""

    labels: tuple[str, ...]
    kind: ClassVar[TaskHeadKind] = "sequence"
    objective: ClassVar[Objective] = supervised.LabelLikelihood()

    @classmethod
    def from_examples(cls, examples: Sequence[Example], layout: PairEncoder, max_answer: int | None) -> "Classify":
        labels = tuple(sorted({str(example.label) for example in examples}))
        if len(labels) < 2:
            raise ValueError(f"All examples to learn from have the label {labels[0]!r}. Nothing was trained; add others.")
        return cls(labels)

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def labelled(self, examples: Sequence[Example], layout: PairEncoder) -> LabelledExamples:
        return _labelled(examples, layout, torch.tensor([self._number(example.label) for example in examples]))

    def predictions(self, scores: Tensor, examples: Sequence[Example], layout: PairEncoder) -> list[Prediction]:
        probability, best = (column.tolist() for column in scores.softmax(-1).max(-1))
        return [{"label": self.labels[number], "probability": p} for number, p in zip(best, probability, strict=True)]

    def measured(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Estimate]:
        predicted = [self._number(prediction["label"]) for prediction in predictions]
        right, groups = [self._number(example.label) for example in examples], _groups(examples)
        hits = [label == other for label, other in zip(predicted, right, strict=True)]
        return {
            "accuracy": metrics.accuracy(hits, groups),
            "F1": metrics.macro_f1(predicted, right, groups),
            "Matthews' correlation": metrics.matthews(predicted, right, groups),
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
    objective: ClassVar[Objective] = supervised.SquaredError()

    @classmethod
    def from_examples(cls, examples: Sequence[Example], layout: PairEncoder, max_answer: int | None) -> "Regress":
        numbers = [float(example.label) for example in examples]
        return cls(statistics.fmean(numbers), statistics.pstdev(numbers) or 1.0)

    def labelled(self, examples: Sequence[Example], layout: PairEncoder) -> LabelledExamples:
        numbers = [0.0 if example.label is None else (example.label - self.centre) / self.scale for example in examples]
        return _labelled(examples, layout, torch.tensor(numbers))

    def predictions(self, scores: Tensor, examples: Sequence[Example], layout: PairEncoder) -> list[Prediction]:
        return [{"number": self.centre + self.scale * score} for score in scores[:, 0].tolist()]

    def measured(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Estimate]:
        predicted = [prediction["number"] for prediction in predictions]
        data = predicted, [example.label for example in examples], _groups(examples)
        return {"Pearson's correlation": metrics.pearson(*data), "Spearman's correlation": metrics.spearman(*data)}


@dataclass(frozen=True)
class Choose:
    """One of several choices, each read with the text."""

    kind: ClassVar[TaskHeadKind] = "sequence"
    outputs: ClassVar[int] = 1
    objective: ClassVar[Objective] = supervised.ChoiceLikelihood()

    @classmethod
    def from_examples(cls, examples: Sequence[Example], layout: PairEncoder, max_answer: int | None) -> "Choose":
        return cls()

    def labelled(self, examples: Sequence[Example], layout: PairEncoder) -> LabelledExamples:
        labels = [int(number == example.label) for example in examples for number in range(len(example.inputs))]
        return _labelled(examples, layout, torch.tensor(labels))

    def predictions(self, scores: Tensor, examples: Sequence[Example], layout: PairEncoder) -> list[Prediction]:
        by_example = supervised.pad_by_example(scores[:, 0], _example_of_row(examples), -torch.inf)
        probability, best = (column.tolist() for column in by_example.softmax(-1).max(-1))
        return [{"choice": number, "probability": p} for number, p in zip(best, probability, strict=True)]

    def measured(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Estimate]:
        hits = [prediction["choice"] == example.label for prediction, example in zip(predictions, examples, strict=True)]
        return {"accuracy": metrics.accuracy(hits, _groups(examples))}


@dataclass(frozen=True)
class Extract:
    """The answer to a question within a passage; unless `always`, there may be none. An answer of more than `longest` tokens,
    or one that a window cuts, is not trained on, but counts in the measurement."""

    longest: int
    always: bool
    kind: ClassVar[TaskHeadKind] = "span"
    outputs: ClassVar[int] = 1

    @classmethod
    def from_examples(cls, examples: Sequence[Example], layout: PairEncoder, max_answer: int | None) -> "Extract":
        always, longest = all(example.label for example in examples), max_answer
        whole = cls(layout.longest, always).labelled(examples, layout).label
        return cls(int((whole[:, 1] - whole[:, 0]).max()) + 1 if longest is None else longest, always)

    @property
    def objective(self) -> supervised.SpanLikelihood:
        return supervised.SpanLikelihood(self.longest)

    def labelled(self, examples: Sequence[Example], layout: PairEncoder) -> LabelledExamples:
        x, windows = layout.windows([example.inputs[0] for example in examples])
        labels = []
        for window, tokens in zip(windows, x.start.tolist(), strict=True):
            right = examples[window.row].label
            span = None if not right else window.span(right[0][0], len(right[0][1]), tokens)
            labels.append(NO_SPAN if span is None or span[1] - span[0] >= self.longest else span)
        return LabelledExamples(x, torch.tensor(labels), torch.tensor([window.row for window in windows]))

    def predictions(self, scores: Tensor, examples: Sequence[Example], layout: PairEncoder) -> list[Prediction]:
        """The best span of all windows, by how much likelier it is than none in its window."""
        _, windows = layout.windows([example.inputs[0] for example in examples])
        columns, spans = scores.shape[1], supervised.span_log_probs(scores, self.longest).flatten(1)
        odds, place = (spans[:, 1:] - spans[:, :1]).max(-1)
        best: list[Prediction] = [{"answer": "", "log_odds": -math.inf} for _ in examples]
        for window, value, cell in zip(windows, odds.tolist(), (place + 1).tolist(), strict=True):
            if value > best[window.row]["log_odds"]:
                passage = examples[window.row].inputs[0][0]
                text = window.text(passage, cell // columns - 1, cell % columns - 1)
                best[window.row] = {"answer": text if self.always or value > 0 else "", "log_odds": value}
        return best

    def measured(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Estimate]:
        groups = _groups(examples)
        pairs = [
            (prediction["answer"], [words for _, words in example.label])
            for prediction, example in zip(predictions, examples, strict=True)
        ]
        measured = {
            "exact match": metrics.share([metrics.exact_match(*pair) for pair in pairs], groups, method="exact match"),
            "F1": metrics.share([metrics.word_f1(*pair) for pair in pairs], groups, method="F1 of words", binary=False),
        }
        if not self.always:
            measured["answerability"] = metrics.accuracy([bool(answer) == bool(labels) for answer, labels in pairs], groups)
        return measured


@dataclass(frozen=True)
class Rank:
    """The order of a query's documents."""

    kind: ClassVar[TaskHeadKind] = "kernels"
    outputs: ClassVar[int] = 1
    objective: ClassVar[Objective] = supervised.RankingHinge()

    @classmethod
    def from_examples(cls, examples: Sequence[Example], layout: PairEncoder, max_answer: int | None) -> "Rank":
        return cls()

    def labelled(self, examples: Sequence[Example], layout: PairEncoder) -> LabelledExamples:
        grades = [grade for example in examples for grade in example.label or [0.0] * len(example.inputs)]
        return _labelled(examples, layout, torch.tensor(grades))

    def predictions(self, scores: Tensor, examples: Sequence[Example], layout: PairEncoder) -> list[Prediction]:
        parts: tuple[Tensor, ...] = torch.split(scores[:, 0], [len(example.inputs) for example in examples])
        return [{"order": part.argsort(descending=True, stable=True).tolist(), "scores": part.tolist()} for part in parts]

    def measured(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, Estimate]:
        pairs = [
            (torch.tensor(prediction["scores"]), torch.tensor(example.label))
            for prediction, example in zip(predictions, examples, strict=True)
        ]
        groups, first = _groups(examples), NDCG_DOCUMENTS
        ranks, gains = [metrics.reciprocal_rank(*pair) for pair in pairs], [metrics.ndcg(*pair, first) for pair in pairs]
        return {
            "MRR": metrics.share(ranks, groups, method="mean reciprocal rank", binary=False),
            f"nDCG@{first}": metrics.share(gains, groups, method=f"nDCG of the first {first}", binary=False),
        }


FinetuneTask = Classify | Regress | Choose | Extract | Rank
FINETUNE_TASKS: dict[str, type[FinetuneTask]] = {
    "classify": Classify, "regress": Regress, "choose": Choose, "extract": Extract, "rank": Rank
}  # fmt: skip


def _labelled(examples: Sequence[Example], layout: PairEncoder, label: Tensor) -> LabelledExamples:
    x = layout.rows([texts for example in examples for texts in example.inputs])
    return LabelledExamples(x, label, _example_of_row(examples))


def _example_of_row(examples: Sequence[Example]) -> Int[Tensor, "R"]:
    sizes = torch.tensor([len(example.inputs) for example in examples])
    return torch.arange(len(examples)).repeat_interleave(sizes)


def _groups(examples: Sequence[Example]) -> list[str]:
    return [example.group for example in examples]
