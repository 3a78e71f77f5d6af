"""esscher rescore: choose among the candidates of n-best lists with a base, and perhaps an energy."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from esscher.commands.flags import EnergyFolder, Json, Level, Quiet, Seed
from esscher.commands.output import Answer, show, write_lines

if TYPE_CHECKING:
    from esscher.data.nbest import NBest
    from esscher.verbs.rescore import Rescored

app = App(
    name="rescore",
    help_epilogue="Example: esscher rescore lists.jsonl --base runs/first --energy runs/energy --out scored.jsonl; the format "
    "of lists is described in docs/guide/rescoring.md",
)


@dataclass(frozen=True)
class Lists:
    """Which candidates there are, and which lists the weights come from."""

    tune: Path | None = None
    """A file of lists to tune on; without, a share of the lists themselves."""
    tune_share: float = 0.5
    """Of the lists, chosen by a hash of their ids; the others are the test."""
    top: int | None = None
    """Use only the first candidates of each list."""
    lowercase: Annotated[bool, Parameter(negative="")] = False
    """Read candidates and references in lower case."""


@dataclass(frozen=True)
class Files:
    """What is kept, and read again."""

    out: Path | None = None
    """The lists with their scores, a line as soon as it is done; a run that was stopped goes on there."""
    weights: Path | None = None
    """Weights to choose by, as JSON, instead of tuning; all lists are then the test."""
    weights_out: Path | None = None
    """Where to write the tuned weights."""
    chosen: Path | None = None
    """Where to write the chosen text of each test list, as jsonl."""


@app.default
def rescore(
    lists: Annotated[Path, Parameter(help="File of n-best lists, jsonl or jsonl.gz; or one that --out wrote.")],
    *,
    base: Annotated[Path | None, Parameter(help="Folder of the base; none, to use just the scores in the lists.")] = None,
    energy: EnergyFolder = None,
    reading: Annotated[Lists, Parameter(name="*")] = Lists(),  # noqa: B008 (frozen)
    files: Annotated[Files, Parameter(name="*")] = Files(),  # noqa: B008 (frozen)
    metric: Annotated[Literal["wer", "bleu"], Parameter(help="What weights are tuned for, and systems judged by.")] = "wer",
    eos: Annotated[str | None, Parameter(help="The token that ends a text, if not what a Hugging Face folder says.")] = None,
    level: Level = 0.95,
    quiet: Quiet = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """The best candidate by weighted scores: the given ones, log-probability of the base, minus energy, number of words."""
    from esscher.metrics.metric import METRICS
    from esscher.randomness import Seeded
    from esscher.verbs.rescore import choose_texts, judge
    from esscher.verbs.rescore import rescore as rescore_lists

    tuning, test = _read(lists, reading, files.weights is not None)
    tuning, test = _score(tuning, test, base, energy, eos=eos, out=files.out, quiet=quiet)
    how, rng = METRICS[metric].measure, Seeded(seed).stream("rescore")
    found: Rescored | None = None
    facts: dict[str, Any] = {"lists": lists, "tuned_on": len(tuning), "tested_on": len(test), "base": base, "energy": energy}
    if files.weights is None:
        found = rescore_lists(tuning, test, how, level=level, rng=rng)
        weights = dict(found.best.weights)
    else:
        weights = _read_weights(files.weights)
        if all(one.references for one in test):
            found = judge(test, weights, how, level=level, rng=rng)
    _write(files, weights, choose_texts(test, weights) if files.chosen is not None else {})
    show(_answer(found, how.name, facts | {"seed": seed}), as_json=json)


def _read(lists: Path, reading: Lists, weighed: bool) -> tuple[tuple["NBest", ...], tuple["NBest", ...]]:
    """The lists to tune on, none when there are weights, and those to test."""
    from esscher.data.nbest import read_nbest, split_by_id

    if reading.top is not None and reading.top < 1:
        raise ValueError(f"At least the first candidate is used, so --top is 1 or more, not {reading.top}. Nothing was done.")
    if reading.tune is not None and weighed:
        raise ValueError("Weights are given, so there is nothing to tune. Nothing was done; leave out --tune or --weights.")

    def prepared(file: Path) -> tuple["NBest", ...]:
        found = (one.top(reading.top) for one in read_nbest(file))
        return tuple(one.lowered() if reading.lowercase else one for one in found)

    test = prepared(lists)
    if weighed:
        return (), test
    if reading.tune is None:
        return split_by_id(test, reading.tune_share)
    tuning = prepared(reading.tune)
    both = {one.id for one in tuning} & {one.id for one in test}
    if both:
        raise ValueError(
            f"{len(both)} lists are in {reading.tune} and in {lists}, {min(both)!r} among them: what is tuned on is no test. "
            f"Nothing was done; take them out of one file."
        )
    return tuning, test


def _score(
    tuning: tuple["NBest", ...],
    test: tuple["NBest", ...],
    base: Path | None,
    energy: Path | None,
    *,
    eos: str | None,
    out: Path | None,
    quiet: bool,
) -> tuple[tuple["NBest", ...], tuple["NBest", ...]]:
    from esscher.training.progress import choose_progress
    from esscher.verbs.candidate_scores import score_candidates

    if base is None:
        if energy is not None or out is not None:
            raise ValueError(
                "Nothing can be scored without a base. Nothing was done; give --base, or leave --energy and --out."
            )
        return tuning, test
    scored = score_candidates([*tuning, *test], base, energy, eos=eos, out=out, say=choose_progress(quiet).say)
    return scored[: len(tuning)], scored[len(tuning) :]


def _read_weights(file: Path) -> dict[str, float]:
    import json

    try:
        found = json.loads(file.read_text(encoding="utf8"))
        return {str(name): float(value) for name, value in found.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(
            f'{file} holds no weights, such as {{"score": 1, "log_base": 0.3}}: {error}. Nothing was done.'
        ) from error


def _write(files: Files, weights: dict[str, float], chosen: dict[str, str]) -> None:
    from esscher.storage import write_json

    if files.weights_out is not None:
        write_json(files.weights_out, weights)
    if files.chosen is not None:
        write_lines(files.chosen, [{"id": name, "text": text} for name, text in chosen.items()])


def _answer(found: "Rescored | None", metric: str, facts: dict[str, Any]) -> Answer:
    if found is None:
        return Answer("esscher rescore", facts, {}, ["The lists have no references, so nothing was judged."])
    systems = [
        {
            "system": one.name,
            metric: one.value,
            "tuned": one.tuned,
            **{f"weight of {name}": w for name, w in one.weights.items()},
        }
        for one in found.systems
    ]
    differences = [{"system": one.system, "minus": one.against, "difference": one.value} for one in found.differences]
    note = f"{found.systems[0].value.method}; a difference whose interval leaves out 0 is not chance alone."
    return Answer("esscher rescore", facts, {"systems": systems, "differences": differences}, [note])
