"""Blocks of docs/papers/transformer_xl.md, from `transformer_xl.json` of its recipe (`figures.py`)."""

from pathlib import Path

from figures_cells import plain
from figures_gam import table
from figures_streams import NOT_RUN, Figures, bits, effect_table, kept, level_of, spread, status

from esscher.estimators.long_context import HARDEST_SHARES
from esscher.papers.stream_effects import AS_IN_TRAINING, Comparison
from esscher.papers.transformer_xl.claims import LSTM, NO_MEMORY, XL, memory_claims
from esscher.papers.transformer_xl.studies import LONGER_MODES, MEMORY_MODES, TEXTS, longer_name

LONG = longer_name("text8")


def memory_figures(folder: Path) -> dict[str, object]:
    """Levels, effects, context lengths and samples of `transformer_xl.json`."""
    return kept(folder / "transformer_xl.json", "levels", "effects", "context lengths", "samples")


def levels(figures: Figures) -> str:
    """A line for each model and mode of evaluation, a column for each text."""
    modes = [
        (model, mode) for model in (NO_MEMORY, XL) for mode in (AS_IN_TRAINING, *(mode.name for mode in MEMORY_MODES[model]))
    ]
    lines = [[model, mode, *(bits(level_of(figures, text, model, mode)) for text in TEXTS)] for model, mode in modes]
    return table(("model", "evaluated", *(f"{text}, bits" for text in TEXTS)), lines)


def effects(figures: Figures) -> str:
    """A line for each claim on every text."""
    return _claims(figures, [claim for text in TEXTS for claim in memory_claims(text, MEMORY_MODES)])


def longer_levels(figures: Figures) -> str:
    """A line for each model and mode of evaluation of the longer study."""
    modes = [
        (model, mode) for model in (NO_MEMORY, XL) for mode in (AS_IN_TRAINING, *(mode.name for mode in LONGER_MODES[model]))
    ]
    lines = [[model, mode, bits(level_of(figures, LONG, model, mode))] for model, mode in (*modes, (LSTM, AS_IN_TRAINING))]
    return table(("model", "evaluated", "text8, bits"), lines)


def longer_effects(figures: Figures) -> str:
    """A line for each claim on the longer study."""
    return _claims(figures, memory_claims(LONG, LONGER_MODES, recurrent=True))


def context_lengths(figures: Figures) -> str:
    """Relative effective context lengths in tokens, with intervals for other positions of the text; a line for each model."""
    found = {row["model"]: row for row in figures["context lengths"]}
    shares = [f"hardest {share:g}" for share in HARDEST_SHARES]
    lines = [
        [model, *(spread(found[model][share], 0) if model in found else NOT_RUN for share in shares)]
        for model in (NO_MEMORY, XL, LSTM)
    ]
    return table(("model (one seed)", *(f"{share} of the tokens" for share in shares)), lines)


def sample(figures: Figures) -> str:
    """The long sample, after its prompt."""
    if not figures["samples"]:
        return "\n*The long sample: not run.*\n"
    row = figures["samples"][0]
    about = f"{row['text']}, seed {row['seed']}, {spread(row['own bits'], 2)} bits a character under the model itself"
    prompt, drawn = (plain(row[part].strip()) for part in ("prompt", "sample"))
    return f"\n> **Prompt, held-out text**: {prompt}\n>\n> **Sample** ({about}): {drawn}\n"


def _claims(figures: Figures, claims: list[Comparison]) -> str:
    return effect_table(figures, [(claim.claim, claim.column, claim.thesis) for claim in claims], {"bits": ("bits saved", 4)})


BLOCKS = {
    "status": status,
    "levels": levels,
    "effects": effects,
    "longer_levels": longer_levels,
    "longer_effects": longer_effects,
    "context_lengths": context_lengths,
    "sample": sample,
}
