"""esscher measure --dynamic: a model that learns from the text it is measured on, beside itself at rest."""

from dataclasses import replace
from pathlib import Path

from esscher.commands.output import Answer
from esscher.cut import Cut
from esscher.data.sources import Unit
from esscher.settings.dynamic import DynamicConfig


def dynamic_answer(
    folder: Path,
    data: str,
    adapt: DynamicConfig,
    *,
    column: str,
    unit: Unit | None,
    cut: Cut,
    sight: tuple[int | None, int | None],
    fixed: bool,
    level: float,
    quiet: bool,
) -> Answer:
    """What is found; `sight` is how far back a Transformer-XL sees, and the largest distance that it tells apart."""
    from esscher.bases.network import with_sight
    from esscher.training.progress import choose_progress
    from esscher.verbs.measure_dynamic import has_memory, measure_dynamic
    from esscher.verbs.models import load_model

    model = load_model(folder, cut=cut)
    if has_memory(model.base) and cut != Cut():
        raise ValueError(
            "A base with a memory learns from one stream, which nothing cuts. Nothing was measured; leave --given, "
            "--max-length and --eos out."
        )
    if sight != (None, None):
        model = replace(model, base=with_sight(model.streaming, reach=sight[0], clamp=sight[1]))
    found = measure_dynamic(
        model, data, adapt, column=column, unit=unit, test="fixed" if fixed else "sample", level=level,
        say=choose_progress(quiet).say,
    )  # fmt: skip
    facts = {
        "model": folder,
        "data": data,
        "measured_on": found.measured_on,
        "read_as": found.read_as,
        "rule": str(adapt),
        "statistics": found.statistics,
    }
    notes = [
        "perplexity and bits: each piece is scored before the weights learn from it; at rest, and bits saved: the same reading "
        "without learning.",
        f"bits saved: {found.bits_saved['token'].method}",
        *found.warnings,
    ]
    return Answer("esscher measure --dynamic", facts, {"perplexities": found.rows()}, notes)


def refuse_beside_dynamic(energy: Path | None, others: list[str]) -> None:
    """Settings that have no meaning where a model learns from the text."""
    asked = [*(["--energy"] if energy is not None else []), *others]
    if asked:
        raise ValueError(
            f"{', '.join(asked)} has no meaning with --dynamic, which reads a text once with the base. Nothing was measured; "
            f"leave it out (tokens between two updates: --adapt.segment)."
        )
