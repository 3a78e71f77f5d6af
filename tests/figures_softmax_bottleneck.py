"""Blocks of docs/papers/softmax_bottleneck.md, from `bottleneck.json` of its recipe (`figures.py`)."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from figures_gam import table
from figures_streams import NOT_RUN, Figures, bits, effect_table, kept, level, level_of, perplexity, status

from esscher.papers.softmax_bottleneck.claims import (
    DIVERGENCE,
    LARGE,
    LEARNT,
    RANK,
    Claims,
    character_claims,
    claims_of,
    head_claims,
    tuned_claims,
)
from esscher.papers.softmax_bottleneck.studies import (
    ALONE,
    AWD,
    CHARACTERS,
    COMPONENTS,
    EQUAL_SIZE,
    FIXED_SWEEP,
    MOC,
    MOS,
    SOFTMAX,
    SWEEP,
    TUNED,
    WORDS,
)
from esscher.papers.stream_effects import AS_IN_TRAINING

UNITS = {"bits": ("bits saved", 4), RANK: ("rank", 0), LARGE: ("large singular values", 0), DIVERGENCE: ("divergence, nats", 3)}
RANKS = {  # Tables A.6 and A.11 (test)
    SOFTMAX: ("400", "4.763"), MOC: ("280", "4.864"), MOS: ("9,981", "5.284"),
}  # fmt: skip
THEIR_RANKS = {3: "6,467", 5: "8,930", 10: "9,973", 15: "9,981", 20: "9,981"}  # Table A.7, Penn Treebank, MoS alone
THEIR_PERPLEXITIES = {3: "58.62", 5: "57.36", 10: "56.33", 15: "55.97", 20: "56.17"}
AWD_PAPER = {  # Tables A.1 and A.2, test perplexity: Penn Treebank, WikiText-2
    (SOFTMAX, AS_IN_TRAINING): ("58.8", "66.0"), (MOS, AS_IN_TRAINING): ("55.97", "63.33"),
    (f"{SOFTMAX}, {TUNED}", AS_IN_TRAINING): ("57.3", "65.8"), (f"{MOS}, {TUNED}", AS_IN_TRAINING): ("54.44", "61.45"),
    (f"{SOFTMAX}, {TUNED}", LEARNT): ("51.1", "44.3"), (f"{MOS}, {TUNED}", LEARNT): ("47.69", "40.68"),
}  # fmt: skip
HEADS = [(model, mode) for model in (SOFTMAX, MOC, MOS) for mode in (AS_IN_TRAINING, LEARNT) if (model, mode) != (MOC, LEARNT)]


def bottleneck_figures(folder: Path) -> dict[str, object]:
    """Levels, ranks and effects of `bottleneck.json`."""
    return kept(folder / "bottleneck.json", "levels", "ranks", "effects")


def claims(figures: Figures, which: Claims) -> str:
    """A line for each claim."""
    return effect_table(figures, [(claim.claim, claim.column, claim.thesis) for claim in which], UNITS)


def levels(figures: Figures) -> str:
    """Words by head, as in training and learning from the text, and characters by head."""
    lines = [
        [f"{model}, learning from the text" if mode == LEARNT else model, perplexity(level_of(figures, WORDS, model, mode)),
         bits(level_of(figures, CHARACTERS, model)) if mode == AS_IN_TRAINING else ""]
        for model, mode in HEADS
    ]  # fmt: skip
    return table(("head", "words of books, perplexity", "characters of text8, bits"), lines)


def ranks(figures: Figures) -> str:
    """Rank, large singular values and mean divergence of next tokens by head, beside Tables A.6 and A.11."""
    head = (
        "head",
        "seeds",
        "rank, of 2,000",
        "large singular values",
        "mean divergence, nats",
        "thesis, rank",
        "thesis, divergence",
    )
    return table(head, [[model, *_rank_cells(figures, WORDS, model), *RANKS[model]] for model in (SOFTMAX, MOC, MOS)])


def _rank_cells(figures: Figures, study: str, model: str) -> Sequence[object]:
    row = level_of(figures, study, model, name="ranks")
    if row is None:
        return ["", *[NOT_RUN] * 3]
    return [
        row["seeds"],
        *(level(row[column], row["seeds"], digits) for column, digits in ((RANK, 0), (LARGE, 0), (DIVERGENCE, 3))),
    ]


def sweep(figures: Figures) -> str:
    """A line for each number of components, all else fixed and at equal size, and the thesis's."""
    lines = []
    for k in sorted({*FIXED_SWEEP, *SWEEP, COMPONENTS, *THEIR_RANKS}):
        alone, equal = ((WORDS, MOS) if k == COMPONENTS else (study, f"MoS of {k}") for study in (ALONE, EQUAL_SIZE))
        cells = (
            [perplexity(level_of(figures, *alone)), *_rank_cells(figures, *alone)[1:]]
            if k in (*FIXED_SWEEP, COMPONENTS)
            else [""] * 4
        )
        other = perplexity(level_of(figures, *equal)) if k in (*SWEEP, COMPONENTS) else ""
        lines.append([k, *cells, other, THEIR_PERPLEXITIES.get(k, ""), THEIR_RANKS.get(k, "")])
    head = (
        "components", "perplexity, all else fixed", "rank", "large singular values", "mean divergence, nats",
        "perplexity, equal size", "thesis, perplexity", "thesis, rank",
    )  # fmt: skip
    return table(head, lines)


def awd(figures: Figures) -> str:
    """AWD-LSTM with either head: first stage, second stage, learning from the text, beside Tables A.1 and A.2."""
    lines = [
        [model, "learning from the text" if mode == LEARNT else mode, perplexity(level_of(figures, AWD, model, mode)), *theirs]
        for (model, mode), theirs in AWD_PAPER.items()
    ]
    return table(("AWD-LSTM", "evaluated", "words of books, perplexity", "Penn Treebank", "WikiText-2"), lines)


COMPONENT_CLAIMS = [
    claim
    for claim in claims_of("small")
    if claim not in (*head_claims(WORDS), *tuned_claims(AWD), *character_claims(CHARACTERS))
]
BLOCKS = {
    "status": status,
    "effects": partial(claims, which=[*head_claims(WORDS), *character_claims(CHARACTERS)]),
    "levels": levels,
    "ranks": ranks,
    "sweep": sweep,
    "sweep_effects": partial(claims, which=COMPONENT_CLAIMS),
    "awd": awd,
    "awd_effects": partial(claims, which=tuned_claims(AWD)),
}
