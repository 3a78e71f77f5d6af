"""The score of a Hugging Face classifier as a function of texts: local folders only, nothing is ever fetched.

A text longer than the classifier can read is cut at its end. The classifier runs on torch's default device
(`torch.set_default_device`), in float32. What it leaves out: training one, and weights in pickle files.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.energies.declaration import KINDS
from esscher.energies.pretrained import longest_text, read_tokenizer, read_weights

MEASURES = KINDS["classifier"].measures


@dataclass(frozen=True)
class Classifier:
    """The score of one label, made by `load_classifier`; calling it judges texts, `score` lists of its own tokens."""

    model: nn.Module
    tokenizer: Any | None
    label: int
    measure: str
    longest: int | None
    batch_size: int

    def __call__(self, texts: list[str]) -> Float[Tensor, "B"]:
        """The score of each text, as the classifier's own tokenizer cuts it."""
        if not texts:
            return torch.zeros(0, dtype=torch.float64)
        assert self.tokenizer is not None
        tokens = self.tokenizer(texts, truncation=self.longest is not None, max_length=self.longest)["input_ids"]
        return self.score(tokens)

    @torch.inference_mode()
    def score(self, points: list[list[int]]) -> Float[Tensor, "B"]:
        """The score of each list of tokens; batches hold lists of like length, to pad little."""
        vocab_size = self._setting("vocab_size")
        largest = max((token for point in points for token in point), default=0)
        if vocab_size is not None and largest >= vocab_size:
            raise ValueError(
                f"The classifier reads {vocab_size} tokens and was given number {largest}: it was trained with another "
                f"tokenizer. Nothing was computed; let the feature read text."
            )
        found = torch.zeros(len(points), dtype=torch.float64)
        order = sorted(range(len(points)), key=lambda row: len(points[row]))
        size = self.batch_size if self._setting("pad_token_id") is not None else 1
        for first in range(0, len(order), size):
            chosen = order[first : first + size]
            found[chosen] = self._score([points[row][: self.longest] for row in chosen])
        return found

    def _score(self, points: list[list[int]]) -> Float[Tensor, "B"]:
        shape, pad = (len(points), max(1, *map(len, points))), self._setting("pad_token_id")
        tokens = torch.full(shape, 0 if pad is None else pad, dtype=torch.long, device="cpu")
        seen = torch.zeros(shape, dtype=torch.long, device="cpu")
        for row, point in enumerate(points):
            tokens[row, : len(point)] = torch.tensor(point, dtype=torch.long, device="cpu")
            seen[row, : len(point)] = 1
        device = next(self.model.parameters()).device
        logits = self.model(input_ids=tokens.to(device), attention_mask=seen.to(device)).logits.double().cpu()
        if self.measure == "logit":
            return logits[:, self.label]
        if logits.shape[1] == 1 or self._setting("problem_type") == "multi_label_classification":
            return torch.sigmoid(logits[:, self.label])
        return torch.softmax(logits, -1)[:, self.label]

    def _setting(self, name: str) -> Any:
        return getattr(self.model.config, name, None)


def load_classifier(
    folder: str | Path, label: str = "", measure: str = "probability", *, texts: bool = True, batch_size: int = 32
) -> Classifier:
    """The classifier of a folder (`AutoModelForSequenceClassification`); `label` is one of its labels, by name or number.

    Without `texts` it is asked about tokens only, and needs no tokenizer.
    """
    if measure not in MEASURES:
        raise ValueError(f"A classifier has no measure {measure!r}. Choose from: {', '.join(MEASURES)}.")
    if batch_size < 1:
        raise ValueError(f"A batch holds at least one text, not {batch_size}.")
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"There is no classifier folder {folder}. Nothing was loaded or fetched; check the path.")
    model = _load_model(Path(folder))
    if measure == "probability" and getattr(model.config, "problem_type", None) == "regression":
        raise ValueError(f"The model in {folder} is a regression, which has no probability; use measure 'logit'.")
    number = _label_number(model, label, folder)
    tokenizer = read_tokenizer(Path(folder), "classifier") if texts else None
    return Classifier(model, tokenizer, number, measure, longest_text(model, tokenizer), batch_size)


def _load_model(folder: Path) -> Any:
    model, missing = read_weights(folder, "AutoModelForSequenceClassification", "classifier")
    if missing:
        raise ValueError(
            f"The model in {folder} was never trained to classify: it has no weights {missing}. "
            f"Nothing was loaded; train it on labelled texts first."
        )
    return model.eval().to(torch.get_default_device())


def _label_number(model: Any, label: str, folder: str | Path) -> int:
    labels: dict[int, str] = model.config.id2label
    numbers = {name: number for number, name in labels.items()}
    if label in numbers:
        return numbers[label]
    if label.isdecimal() and int(label) in labels:
        return int(label)
    if not label and len(labels) == 1:
        return next(iter(labels))
    said = f"has no label {label!r}" if label else "has several labels, and none was named"
    known = ", ".join(f"{number} ({name})" for number, name in labels.items())
    raise ValueError(f"The classifier in {folder} {said}. Choose from: {known}.")
