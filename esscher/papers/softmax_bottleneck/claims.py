"""What the thesis claims of mixtures of softmaxes (appendix A), as comparisons and trends of the rows of the recipe."""

from collections.abc import Mapping

from esscher.papers.softmax_bottleneck.studies import (
    ALONE,
    AWD,
    CHARACTERS,
    COMPONENTS,
    EQUAL_SIZE,
    FIXED_SWEEP,
    LEARNING,
    MOC,
    MOS,
    SMOKE,
    SOFTMAX,
    SWEEP,
    TUNED,
    WORDS,
)
from esscher.papers.stream_effects import BITS, Comparison, Side, Trend

LARGE = "singular values above 1e-4 of the largest"
RANK, DIVERGENCE = "rank", "divergence"
LEARNT = LEARNING.name
Claims = list[Comparison | Trend]


def claims_of(scale: str) -> Claims:
    """The claims on the studies of a scale; none at the published sizes, whose rows stand beside the published ones."""
    if scale == "smoke":
        components = {1: Side(SMOKE, "MoS of 1"), 3: Side(SMOKE, MOS)}
        return [*head_claims(SMOKE), *tuned_claims(SMOKE), *character_claims(SMOKE), *component_claims("alone", components)]
    if scale == "paper":
        return []
    alone = {k: Side(ALONE, f"MoS of {k}") for k in FIXED_SWEEP} | {COMPONENTS: Side(WORDS, MOS)}
    equal = {k: Side(EQUAL_SIZE, f"MoS of {k}") for k in SWEEP} | {COMPONENTS: Side(WORDS, MOS)}
    sweeps = [*component_claims("alone", alone), *component_claims("at equal size", equal)]
    return [*head_claims(WORDS), *sweeps, *tuned_claims(AWD), *character_claims(CHARACTERS)]


def head_claims(study: str) -> Claims:
    """Heads of one size: perplexity, what learning from the text adds, ranks, and how far next-token distributions differ."""
    softmax, moc, mos = (Side(study, model) for model in (SOFTMAX, MOC, MOS))
    learning = {model: Side(study, model, LEARNT) for model in (SOFTMAX, MOS)}
    return [
        Comparison("MoS beats a softmax", mos, softmax, thesis="58.95 → 55.97"),
        Comparison("MoC beats a softmax", moc, softmax, thesis="58.95 → 57.55; WikiText-2 65.40 → 65.98"),
        Comparison("MoS beats MoC", mos, moc, thesis="57.55 → 55.97"),
        Comparison("learning from the text helps a softmax", learning[SOFTMAX], softmax, thesis="57.3 → 51.1, fine-tuned"),
        Comparison("learning from the text helps MoS", learning[MOS], mos, thesis="54.44 → 47.69, fine-tuned"),
        Comparison("MoS beats a softmax, both learning from the text", learning[MOS], learning[SOFTMAX], thesis="51.1 → 47.69"),
        Comparison("MoS has a higher rank than a softmax", mos, softmax, thesis="400 → 9,981", column=RANK),
        Comparison("MoS has a higher rank than MoC", mos, moc, thesis="280 → 9,981", column=RANK),
        Comparison("MoS has more large singular values than a softmax", mos, softmax, thesis="figure A.1", column=LARGE),
        Comparison(
            "next tokens differ more under MoS than under a softmax", mos, softmax, thesis="4.763 → 5.284", column=DIVERGENCE
        ),
        Comparison("next tokens differ more under MoS than under MoC", mos, moc, thesis="4.864 → 5.284", column=DIVERGENCE),
    ]


def component_claims(how: str, sides: Mapping[int, Side]) -> Claims:
    """More components, by their number: each against the fewest, and the trend for each doubling."""
    sides = dict(sorted(sides.items()))
    (fewest, first), *more = sides.items()
    theirs = "58.62 (3), 55.97 (15), 56.17 (20)"
    against: Claims = [Comparison(f"{k} components beat {fewest}, {how}", side, first, thesis=theirs) for k, side in more]
    columns = {BITS: "58.62 (3) → 55.97 (15)", LARGE: "-", DIVERGENCE: "-", RANK: "6,467 (3) → 9,981 (15)"}
    return [
        *against,
        *(Trend(f"each doubling, {how}", sides, thesis=thesis, column=column) for column, thesis in columns.items()),
    ]


def tuned_claims(study: str) -> Claims:
    """AWD-LSTM with either head: a second stage, and learning from the text after it."""
    softmax, mos = Side(study, SOFTMAX), Side(study, MOS)
    tuned = {model: Side(study, f"{model}, {TUNED}") for model in (SOFTMAX, MOS)}
    learning = {model: Side(study, f"{model}, {TUNED}", LEARNT) for model in (SOFTMAX, MOS)}
    return [
        Comparison("AWD-LSTM: MoS beats a softmax", mos, softmax, thesis="58.8 → 55.97"),
        Comparison("AWD-LSTM: a second stage helps a softmax", tuned[SOFTMAX], softmax, thesis="58.8 → 57.3"),
        Comparison("AWD-LSTM: a second stage helps MoS", tuned[MOS], mos, thesis="55.97 → 54.44"),
        Comparison("AWD-LSTM: MoS beats a softmax, both fine-tuned", tuned[MOS], tuned[SOFTMAX], thesis="57.3 → 54.44"),
        Comparison("AWD-LSTM: learning from the text helps a softmax", learning[SOFTMAX], tuned[SOFTMAX], thesis="57.3 → 51.1"),
        Comparison("AWD-LSTM: learning from the text helps MoS", learning[MOS], tuned[MOS], thesis="54.44 → 47.69"),
        Comparison("AWD-LSTM: MoS beats a softmax, learning", learning[MOS], learning[SOFTMAX], thesis="51.1 → 47.69"),
    ]


def character_claims(study: str) -> Claims:
    """Characters, where no rank is lacking."""
    softmax, moc, mos = (Side(study, model) for model in (SOFTMAX, MOC, MOS))
    return [
        Comparison("characters: MoS is no better than a softmax", softmax, mos, thesis="1.49, 1.49: neither"),
        Comparison("characters: MoS is no better than MoC", moc, mos, thesis="-"),
    ]
