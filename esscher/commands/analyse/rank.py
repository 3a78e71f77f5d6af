"""esscher analyse rank: whether the head of a model is a bottleneck of its next-token distributions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.flags import Json, Level, Quiet
from esscher.commands.output import Answer, show
from esscher.settings.rank import RankSettings

if TYPE_CHECKING:
    from esscher.verbs.rank import RankOf

app = App(name="rank", help_epilogue="Example: esscher analyse rank runs/softmax runs/mixture --data my.txt --plot rank.png")


@app.default
def rank(
    *models: Annotated[Path, Parameter(help="Folders of bases.")],
    data: Annotated[str, Parameter(help="A text: a file, a folder, a pattern, or a Hugging Face name.")],
    settings: Annotated[RankSettings, Parameter(name="*")] = RankSettings(),  # noqa: B008 (frozen)
    plot: Annotated[Path | None, Parameter(help="Also draw the singular values into this file.")] = None,
    level: Level = 0.95,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Numerical rank of the next-token log-probabilities, and the mean divergence of the distributions of two contexts."""
    from esscher.training.progress import choose_progress
    from esscher.verbs.rank import compare_ranks

    if not models:
        raise ValueError("Name at least one model. Nothing was computed.")
    found = compare_ranks(models, data, settings, level=level, say=choose_progress(quiet).say)
    rows = [
        {
            "model": name,
            "rank": one.spread.rank,
            "softmax_at_most": one.softmax_bound,
            "contexts": one.spread.contexts,
            "tokens": one.spread.vocab_size,
            "mean_divergence": one.spread.divergence,
        }
        for name, one in found.items()
    ]
    facts: dict[str, Any] = {"models": len(found), "data": data}
    if plot is not None:
        facts["plot"] = _draw(found, plot)
    if json:
        facts["singular_values"] = {name: one.spread.singular.tolist() for name, one in found.items()}
    show(Answer("esscher analyse rank", facts, {"ranks": rows}, _notes(found)), as_json=json)


def _notes(found: dict[str, "RankOf"]) -> list[str]:
    notes = [
        "softmax_at_most: the highest rank of one softmax over vectors as wide as the model's, whatever it learnt; mean "
        "divergence: KL of the distributions after two different contexts, in nats."
    ]
    for name, one in found.items():
        if one.spread.full:
            most = min(one.spread.contexts, one.spread.vocab_size)
            what = "give more --contexts" if most < one.spread.vocab_size else "it is that of all tokens"
            notes.append(f"{name}: a rank of {most:,} is as high as {one.spread.contexts:,} contexts allow; {what}.")
    return notes


def _draw(found: dict[str, "RankOf"], file: Path) -> Path:
    from esscher.reports.plots import cumulative, save_picture

    lines = {name: one.spread.curve() for name, one in found.items()}
    return save_picture(cumulative(lines, x="singular value over the largest", y="share not above it"), file)
