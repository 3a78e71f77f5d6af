"""Features made from declarations (`esscher.energies.feature_spec`), with a cache and Hugging Face classifiers.

Features on text share one decoding of each batch. Only the kinds in `EXACT`, on tokens, are also exact tallies of an automaton
(`esscher.exact.exponential_family`). Never cache a function that is random or that changes (a network in training). Classifiers
are local folders with safetensors; nothing is fetched. They cut a text that is too long at its end, and run on torch's default
device, in float32.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.core.device import place
from esscher.core.space import Sequences, Space
from esscher.energies import features
from esscher.energies.feature_spec import FEATURE_KINDS, FeatureSpec
from esscher.energies.features import (
    Column,
    Decode,
    DecodedBatch,
    Feature,
    TextFunction,
    TokenFunction,
    evaluate_feature,
    text_batch_feature,
)
from esscher.energies.pretrained import max_tokens_of, read_tokenizer, read_weights
from esscher.energies.text_scorers import check_content, text_scorer, token_scorer
from esscher.exact import acceptors
from esscher.exact.acceptors import Acceptor
from esscher.exact.features import AutomatonFeature, count_accepted_prefixes, indicator, length

MAX_CACHED = 2**17  # about 25 MB, whatever the length of the sequences


class CachedFeature:
    """A least-recently-used cache of `of`, which is called once for each batch, on its new and distinct sequences. With
    `reads_prompt=False` the value depends on the point alone, and different prompts share it."""

    def __init__(
        self, name: str, of: Callable[[Sequences], Tensor], *, reads_prompt: bool = True, max_cached: int = MAX_CACHED
    ):
        if max_cached < 1:
            raise ValueError(f"A cache holds at least one sequence, not {max_cached}.")
        self.name, self.of, self.reads_prompt, self.max_cached = name, of, reads_prompt, max_cached
        self._cache: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._cache)

    def __call__(self, x: Sequences) -> Float[Tensor, "B"]:
        return self.evaluate(DecodedBatch(x), range(len(x)))

    def evaluate(self, batch: DecodedBatch, rows: Sequence[int]) -> Float[Tensor, "R"]:
        """The values of the chosen rows; only sequences that are not cached are evaluated."""
        keys = self._keys(batch.x, rows)
        values = {key: self._cache[key] for key in keys if key in self._cache}
        fresh: dict[bytes, int] = {}
        for key, row in zip(keys, rows, strict=True):
            if key not in values:
                fresh.setdefault(key, row)
        if fresh:
            column = evaluate_feature(self.name, self.of, batch, list(fresh.values()))
            values.update(zip(fresh, column.tolist(), strict=True))
        for key, value in values.items():
            self._cache[key] = value
            self._cache.move_to_end(key)
        while len(self._cache) > self.max_cached:
            self._cache.popitem(last=False)
        return place(torch.tensor([values[key] for key in keys], dtype=torch.float64), batch.x.tokens.device)

    def _keys(self, x: Sequences, rows: Sequence[int]) -> list[bytes]:
        """A digest of each chosen row: of its point, and of its prompt and where the point starts if the prompt is read."""
        tokens, start, stop = x.tokens.cpu().long().numpy(), x.start.tolist(), x.stop.tolist()
        keys = []
        for row in rows:
            first = 0 if self.reads_prompt else start[row]
            boundary = start[row].to_bytes(8, "little") if self.reads_prompt else b""
            keys.append(hashlib.blake2b(boundary + tokens[row, first : stop[row]].tobytes(), digest_size=16).digest())
        return keys


def cached(feature: Feature, *, max_cached: int = MAX_CACHED) -> Feature:
    """The same feature with a cache; functions other than those of text and tokens are assumed to read the prompt."""
    reads_prompt = feature.of.with_prompt if isinstance(feature.of, TextFunction) else not isinstance(feature.of, TokenFunction)
    of = CachedFeature(feature.name, feature.of, reads_prompt=reads_prompt, max_cached=max_cached)
    return replace(feature, of=of)


MEASURES = FEATURE_KINDS["classifier"].measures
Input = TypeVar("Input")


@dataclass(frozen=True)
class Classifier:
    """The score of one label, made by `load_classifier`; call it on texts, or `score` on lists of its own tokens."""

    model: nn.Module
    tokenizer: Any | None
    label: int
    measure: str
    max_length: int | None
    batch_size: int

    def __call__(self, texts: list[str]) -> Float[Tensor, "B"]:
        if not texts:
            return torch.zeros(0, dtype=torch.float64)
        assert self.tokenizer is not None
        tokens = self.tokenizer(texts, truncation=self.max_length is not None, max_length=self.max_length)["input_ids"]
        return self.score(tokens)

    @torch.inference_mode()
    def score(self, points: list[list[int]]) -> Float[Tensor, "B"]:
        """The score of each list of tokens, in batches of similar length."""
        vocab_size = self._setting("vocab_size")
        largest = max((token for point in points for token in point), default=0)
        if vocab_size is not None and largest >= vocab_size:
            raise ValueError(
                f"The classifier has {vocab_size} tokens and was given token {largest}: it was trained with another tokenizer. "
                f"Nothing was computed; let the feature read text."
            )
        scores = torch.zeros(len(points), dtype=torch.float64)
        order = sorted(range(len(points)), key=lambda row: len(points[row]))
        size = self.batch_size if self._setting("pad_token_id") is not None else 1
        for first in range(0, len(order), size):
            chosen = order[first : first + size]
            scores[chosen] = self._score_batch([points[row][: self.max_length] for row in chosen])
        return scores

    def _score_batch(self, points: list[list[int]]) -> Float[Tensor, "B"]:
        shape, pad = (len(points), max(1, *map(len, points))), self._setting("pad_token_id")
        tokens = torch.full(shape, 0 if pad is None else pad, dtype=torch.long, device="cpu")
        mask = torch.zeros(shape, dtype=torch.long, device="cpu")
        for row, point in enumerate(points):
            tokens[row, : len(point)] = torch.tensor(point, dtype=torch.long, device="cpu")
            mask[row, : len(point)] = 1
        device = next(self.model.parameters()).device
        logits = self.model(input_ids=tokens.to(device), attention_mask=mask.to(device)).logits.cpu().double()
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
    """The classifier of a folder (`AutoModelForSequenceClassification`); `label` is one of its labels, by name or number. With
    `texts=False` it scores tokens only, and needs no tokenizer."""
    if measure not in MEASURES:
        raise ValueError(f"A classifier has no measure {measure!r}. Choose from: {', '.join(MEASURES)}.")
    if batch_size < 1:
        raise ValueError(f"A batch holds at least one text, not {batch_size}.")
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"There is no classifier folder {folder}. Nothing was loaded or fetched; check the path.")
    model, missing = read_weights(Path(folder), "AutoModelForSequenceClassification", "classifier")
    if missing:
        raise ValueError(
            f"The model in {folder} was never trained to classify: it has no weights {missing}. "
            f"Nothing was loaded; train it on labelled texts first."
        )
    model = model.eval().to(torch.get_default_device())
    if measure == "probability" and getattr(model.config, "problem_type", None) == "regression":
        raise ValueError(f"The model in {folder} is a regression, which has no probability; use measure 'logit'.")
    number = _label_number(model, label, folder)
    tokenizer = read_tokenizer(Path(folder), "classifier") if texts else None
    return Classifier(model, tokenizer, number, measure, max_tokens_of(model, tokenizer), batch_size)


def _label_number(model: Any, label: str, folder: str | Path) -> int:
    labels: dict[int, str] = model.config.id2label
    numbers = {name: number for number, name in labels.items()}
    if label in numbers:
        return numbers[label]
    if label.isdecimal() and int(label) in labels:
        return int(label)
    if not label and len(labels) == 1:
        return next(iter(labels))
    problem = f"has no label {label!r}" if label else "has several labels, and none was named"
    known = ", ".join(f"{number} ({name})" for number, name in labels.items())
    raise ValueError(f"The classifier in {folder} {problem}. Choose from: {known}.")


def feature_from_spec(spec: FeatureSpec, decode: Decode | None = None) -> Feature:
    """The feature of a declaration; one that reads text needs `decode`, which turns tokens into text."""
    bounds = features.YES_OR_NO if spec.is_share else None
    return replace(_feature_from_spec(spec, decode), bounds=bounds, progress=_progress(spec, decode))


def _progress(spec: FeatureSpec, decode: Decode | None) -> Callable[[Sequences], Tensor] | None:
    """The share of the string that its longest prefix in a point is; None for features of other kinds."""
    if spec.kind not in ("contains", "starts-with") or spec.negated or spec.at_least is not None:
        return None
    if spec.reads == "tokens":
        return MOTIF_FEATURES[spec.kind](spec.motif).progress
    assert decode is not None
    value = spec.value

    def share(text: str) -> float:
        lengths = range(len(value), 0, -1)
        if spec.kind == "starts-with":
            return next((length for length in lengths if text.startswith(value[:length])), 0) / len(value)
        return next((length for length in lengths if value[:length] in text), 0) / len(value)

    return TextFunction(decode, lambda texts: [share(text) for text in texts])


def _feature_from_spec(spec: FeatureSpec, decode: Decode | None) -> Feature:
    if spec.reads == "tokens":
        if spec.kind in ("tokens", *MOTIF_FEATURES):
            feature = features.length() if spec.kind == "tokens" else MOTIF_FEATURES[spec.kind](spec.motif)
            return Feature(spec.title, _finished(spec, feature.of))
        if spec.kind == "classifier":
            return cached(Feature(spec.title, TokenFunction(_finished(spec, _classifier(spec).score))))
        of_tokens = token_scorer(spec)
        return Feature(spec.title, TokenFunction(_finished(spec, lambda points: [of_tokens(point) for point in points])))
    if decode is None:
        raise ValueError(f"Feature {spec.title!r} reads text. Nothing was computed; give `decode`, or declare it on tokens.")
    if spec.kind == "classifier":
        return cached(text_batch_feature(spec.title, decode, _finished(spec, _classifier(spec))))
    of_text = text_scorer(spec)
    return text_batch_feature(spec.title, decode, _finished(spec, lambda texts: [of_text(text) for text in texts]))


def features_from_specs(specs: Sequence[FeatureSpec], decode: Decode | None = None) -> list[Feature]:
    """The features of declarations, in order."""
    return [feature_from_spec(spec, decode) for spec in specs]


MOTIF_FEATURES: Mapping[str, Callable[[Sequence[int]], Feature]] = {
    "contains": features.contains,
    "lacks": features.lacks,
    "starts-with": features.starts_with,
    "ends-with": features.ends_with,
    "count": partial(features.count, overlapping=False),
}


def _classifier(spec: FeatureSpec) -> Classifier:
    check_content(spec)
    return load_classifier(spec.value, spec.label, spec.measures, texts=spec.reads == "text")


def _finished(spec: FeatureSpec, score: Callable[[Input], Column]) -> Callable[[Input], Tensor]:
    """The score with the declared threshold and negation applied."""

    def finished(inputs: Input) -> Tensor:
        values = torch.as_tensor(score(inputs), dtype=torch.float64)
        if spec.at_least is not None:
            values = (values >= spec.at_least).double()
        return 1 - values if spec.negated else values

    return finished


ACCEPTORS = {
    "contains": acceptors.contains,
    "lacks": lambda motif, vocab_size: ~acceptors.contains(motif, vocab_size),
    "starts-with": acceptors.starts_with,
    "ends-with": acceptors.ends_with,
}
EXACT = (*ACCEPTORS, "count", "tokens")


def tally_from_spec(spec: FeatureSpec, space: Space) -> AutomatonFeature:
    """The exact tally that equals the declared feature on every point of the space."""
    if spec.reads != "tokens" or spec.kind not in EXACT or spec.at_least is not None:
        raise ValueError(
            f"Feature {spec.title!r} ({spec.kind} on {spec.reads}) has no exact tally. Declare it on tokens, "
            f"without a threshold, as one of: {', '.join(EXACT)}; or build an acceptor (`esscher.exact.acceptors`)."
        )
    if spec.kind == "tokens":
        return length(space, name=spec.title)
    if spec.kind == "count":
        ends = acceptors.ends_with(spec.motif, space.vocab_size)
        next_state = ends.next_state.clone()
        next_state[-1] = next_state[0]  # start again after each match, so that occurrences do not overlap
        return count_accepted_prefixes(spec.title, Acceptor(next_state, ends.accepting), space)
    acceptor = ACCEPTORS[spec.kind](spec.motif, space.vocab_size)
    return indicator(spec.title, ~acceptor if spec.negated else acceptor, space)
