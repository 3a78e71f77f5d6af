"""Features made of declarations (`esscher.energies.declaration`).

Those on tokens need no decoder and mostly no loop over points; those on text share one decoding of each batch; a
classifier remembers the points it judged (`esscher.energies.cached`).
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from esscher.energies import features
from esscher.energies.cached import cached
from esscher.energies.classifier import Classifier, load_classifier
from esscher.energies.content import check_content
from esscher.energies.declaration import Declared
from esscher.energies.features import Feature, of_texts
from esscher.energies.judges import text_judge, token_judge
from esscher.energies.reading import Column, Decode, OfTokens
from esscher.space import Sequences

Read = TypeVar("Read")
__all__ = ["Declared", "Decode", "declared_feature", "declared_features"]


def declared_feature(declared: Declared, decode: Decode | None = None) -> Feature:
    """The feature of a declaration; one that reads text needs `decode`, which makes text of tokens."""
    if declared.reads == "tokens":
        return _on_tokens(declared)
    if decode is None:
        raise ValueError(
            f"Feature {declared.title!r} reads text, and there is no tokenizer to decode with. Nothing was computed; give "
            f"`decode`, or declare the feature on tokens."
        )
    if declared.kind == "classifier":
        return cached(of_texts(declared.title, decode, _finished(declared, _classifier(declared))))
    judge = text_judge(declared)
    return of_texts(declared.title, decode, _finished(declared, lambda texts: [judge(text) for text in texts]))


def declared_features(declared: Sequence[Declared], decode: Decode | None = None) -> list[Feature]:
    """The features of declarations, in order."""
    return [declared_feature(one, decode) for one in declared]


def _on_tokens(declared: Declared) -> Feature:
    builders = {
        "contains": features.contains,
        "lacks": features.lacks,
        "starts-with": features.starts_with,
        "ends-with": features.ends_with,
    }
    title = declared.title
    if declared.kind in builders:
        return _finished_feature(declared, builders[declared.kind](declared.motif, name=title))
    if declared.kind == "count":
        return _finished_feature(declared, features.count(declared.motif, name=title, overlapping=False))
    if declared.kind == "tokens":
        return _finished_feature(declared, features.length(name=title))
    if declared.kind == "classifier":
        return cached(Feature(title, OfTokens(_finished(declared, _classifier(declared).score))))
    judge = token_judge(declared)
    return Feature(title, OfTokens(_finished(declared, lambda points: [judge(point) for point in points])))


def _classifier(declared: Declared) -> Classifier:
    check_content(declared)
    return load_classifier(declared.value, declared.label, declared.measures, texts=declared.reads == "text")


def _finished(declared: Declared, judge: Callable[[Read], Column]) -> Callable[[Read], Tensor]:
    return lambda read: _finish(declared, torch.as_tensor(judge(read), dtype=torch.float64))


def _finished_feature(declared: Declared, feature: Feature) -> Feature:
    def of(x: Sequences) -> Tensor:
        return _finish(declared, feature.of(x))

    return Feature(feature.name, of)


def _finish(declared: Declared, number: Tensor) -> Tensor:
    """The number as it was declared: above a threshold or not, the other way round."""
    if declared.at_least is not None:
        number = (number >= declared.at_least).double()
    return 1 - number if declared.negated else number
