"""Events of texts as the command line and YAML files state them. Without torch.

contains:dragon                      a declared feature (`esscher.energies.feature_spec`) that a text has or has not
count:the>=12                        a number at least so large; <= is at most
classifier[label=toxic]:folder>=0.9
phrases:kill,burn the house          one of several phrases, whatever their case; phrases:@file has one a line
readability[index=smog]<=4           a readability index of textstat (pip install 'esscher[readability]')
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from esscher.core.reading import read_text
from esscher.energies.feature_spec import FEATURE_KINDS, FeatureSpec, parse_feature

INDICES: Mapping[str, str] = {  # by name, the function of textstat
    "flesch_kincaid": "flesch_kincaid_grade",
    "flesch": "flesch_reading_ease",
    "smog": "smog_index",
    "fog": "gunning_fog",
    "automated": "automated_readability_index",
    "coleman_liau": "coleman_liau_index",
}
_BOUND = re.compile(r"(.*?)\s*(>=|<=)\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)", re.DOTALL)
_READABILITY = re.compile(r"readability(?:\[index=(\w+)\])?")


@dataclass(frozen=True)
class EventSpec:
    """An event: what is looked at, and from which value on, or up to which, it happens; `bound` is None for what a text has or
    has not."""

    text: str
    feature: FeatureSpec | None = None
    phrases: tuple[str, ...] = ()
    index: str = ""
    bound: float | None = None
    at_most: bool = False


def parse_event(text: str) -> EventSpec:
    """The event that a text states; a mistake is an error that says what can be written."""
    kind = re.split(r"[\[:<>]", text, maxsplit=1)[0].strip()
    if kind == "phrases":
        return EventSpec(text, phrases=_phrases(text))
    bounded = _BOUND.fullmatch(text)
    match = bounded if kind not in FEATURE_KINDS or not FEATURE_KINDS[kind].boolean else None
    what, bound = (text, None) if match is None else (match[1], float(match[3]))
    at_most = match is not None and match[2] == "<="
    if kind == "readability":
        return EventSpec(text, index=_index(what, bound), bound=bound, at_most=at_most)
    if kind not in FEATURE_KINDS:
        known = ", ".join([*FEATURE_KINDS, "phrases", "readability"])
        raise ValueError(f"The event {text!r} is of no known kind: write kind:value, or kind:value>=number. Kinds: {known}.")
    spec = parse_feature(what)
    if spec.at_least is not None:
        if bound is not None or spec.negated:
            raise ValueError(f"The event {text!r} has two bounds, or is negated. Nothing was drawn; write one >= or <=.")
        spec, bound = replace(spec, at_least=None), spec.at_least
    if bound is None and not spec.boolean:
        raise ValueError(f"The event {text!r} is a number. Nothing was drawn; say from where on it happens: {text}>=1.")
    if bound is not None and spec.boolean:
        raise ValueError(f"The event {text!r} is yes or no. Nothing was drawn; leave the bound out.")
    return EventSpec(text, spec, bound=bound, at_most=at_most)


def _phrases(text: str) -> tuple[str, ...]:
    value = text.partition(":")[2]
    pieces = (
        read_text(Path(value[1:]), then="Nothing was drawn; check the path.").splitlines()
        if value.startswith("@")
        else value.split(",")
    )
    phrases = tuple(dict.fromkeys(piece.strip().casefold() for piece in pieces if piece.strip()))
    if not phrases:
        raise ValueError(f"The event {text!r} names no phrase. Nothing was drawn; write phrases:one,another or phrases:@file.")
    return phrases


def _index(what: str, bound: float | None) -> str:
    match = _READABILITY.fullmatch(what.strip())
    index = "flesch_kincaid" if match is None or match[1] is None else match[1]
    if match is None or bound is None or index not in INDICES:
        raise ValueError(
            f"The event {what!r} is no bound of a readability index. Nothing was drawn; write readability[index=smog]>=12. "
            f"Indices: {', '.join(INDICES)}."
        )
    return index
