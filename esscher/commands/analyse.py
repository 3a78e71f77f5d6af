"""esscher analyse: what a tilted model does differently from its base, and whether that is what the data do."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from esscher.commands.output import ENERGY, Answer, Json, Seed, show
from esscher.cut import Cut
from esscher.settings.discriminate import DiscriminateConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from esscher.estimate import Estimate
    from esscher.estimators.populations import Populations
    from esscher.space import Sequences
    from esscher.verbs.models import Model

app = App(name="analyse", help_epilogue="Example: esscher analyse energies runs/first --energy runs/tilted --data my.txt")
app.command("esscher.commands.context:app", name="context", help="How far back the context of models helps.", sort_key=4)
app.command("esscher.commands.rank:app", name="rank", help="Whether the head of models is a bottleneck.", sort_key=5)
app.command("esscher.commands.exposure:app", name="exposure", help="How far a model's prefixes are from data.", sort_key=6)

Folder = Annotated[Path, Parameter(help="Folder of the base.")]
Energy = Annotated[Path, Parameter(help=f"{ENERGY} The two are the joint.")]
Plot = Annotated[Path | None, Parameter(help="Also draw a picture into this file, such as energies.png.")]
Level = Annotated[float, Parameter(help="How often the intervals cover the truth.")]
Quiet = Annotated[bool, Parameter(negative="", help="Show no progress.")]


@dataclass(frozen=True)
class Source:
    """The text to compare with; take some that neither the base nor the energy learnt from."""

    data: str | None = None
    """A file, a folder, a pattern, or a Hugging Face name; by default what was held out as the energy learnt."""
    column: str = "text"
    """Of jsonl, parquet and Hugging Face data."""
    unit: Literal["line", "paragraph", "document"] = "line"
    """What a text is in a text file."""
    separator: str | None = None
    """A string between the texts, in text files."""


@dataclass(frozen=True)
class Size:
    """How much is compared."""

    sequences: int = 200
    """Sequences of the data, chosen by chance; all, if there are fewer."""
    draws: int = 32
    """Draws of the base for each, which are also the pool of the joint's."""


@app.command(sort_key=0)
def energies(
    model: Folder,
    *,
    energy: Energy,
    source: Annotated[Source, Parameter(name="*")] = Source(),  # noqa: B008 (frozen)
    size: Annotated[Size, Parameter(name="*")] = Size(),  # noqa: B008 (frozen)
    cut: Annotated[Cut, Parameter(name="*")] = Cut(),  # noqa: B008 (frozen)
    plot: Plot = None,
    level: Level = 0.95,
    seed: Seed = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Energies of data, base draws and joint draws: their means, how far they lie from the data's, their histograms.

    Example: esscher analyse energies runs/first --energy runs/tilted --data my.txt --plot energies.png
    """
    from esscher.estimators.energy_histograms import compare_energies
    from esscher.estimators.populations import NAMES
    from esscher.randomness import Seeded
    from esscher.reports.plots import step_histograms

    loaded, found, facts = _populations(model, energy, source, size, cut, seed, quiet)
    result = compare_energies(loaded.target, found, level=level, rng=Seeded(seed).stream("resamples"))
    _draw(step_histograms(result.histogram.edges, result.histogram.shares, label="energy (nats)"), plot, facts)
    rows = [
        {
            "of": name,
            "mean": result.mean[name],
            "above data": result.above.get(name),
            "distance to data": result.distance.get(name),
        }
        for name in NAMES
    ]
    if json:
        facts["histogram"] = {"edges": result.histogram.edges, **result.histogram.shares}
    show(Answer("esscher analyse energies", facts, {"energies": rows}, _advice(found.effective())), as_json=json)


@app.command(sort_key=1)
def next_token(
    model: Folder,
    *,
    energy: Energy,
    prompt: Annotated[str, Parameter(help="Text to go on from; empty means the beginning of a text.")],
    top: Annotated[int, Parameter(help="Show so many of the base's likeliest tokens, and of the joint's.")] = 10,
    draws: Annotated[int, Parameter(help="Continuations for each row of the table.")] = 256,
    cut: Annotated[Cut, Parameter(name="*")] = Cut(),  # noqa: B008 (frozen)
    plot: Plot = None,
    level: Level = 0.95,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """The likeliest next tokens after a prompt under the base (exact) and under the joint; all rows sum to one.

    Example: esscher analyse next-token runs/first --energy runs/tilted --prompt "Return the"
    """
    from esscher.estimators.next_token import next_tokens
    from esscher.randomness import Seeded
    from esscher.reports.plots import estimate_bars
    from esscher.reports.token_names import token_name
    from esscher.verbs.models import load_model

    loaded = load_model(model, energy, cut)
    tokens, notes = _prompt(loaded, prompt)
    found = next_tokens(loaded.target, tokens, top=top, draws=draws, level=level, rng=Seeded(seed))
    given = tokens.tokens[0].tolist()
    names = [token_name(row.token, given, loaded.tokenizer) for row in found.rows]
    rows = [
        {"text": name, "token": row.token, "base": row.base, "joint": row.joint, "joint over base": _times(row.joint, row.base)}
        for name, row in zip(names, found.rows, strict=True)
    ]
    length = int(tokens.start[0])
    facts: dict[str, Any] = {"model": model, "energy": energy, "prompt": prompt, "prompt_tokens": length, "seed": seed}
    series = {"base": [row.base for row in found.rows], "joint": [row.joint for row in found.rows]}
    _draw(estimate_bars(names, series, label="probability of the next token"), plot, facts)
    show(Answer("esscher analyse next-token", facts, {"next_tokens": rows}, [*notes, *found.warnings]), as_json=json)


@app.command(name="n-grams", sort_key=2)
def n_grams(
    model: Folder,
    *,
    energy: Energy,
    source: Annotated[Source, Parameter(name="*")] = Source(),  # noqa: B008 (frozen)
    size: Annotated[Size, Parameter(name="*")] = Size(),  # noqa: B008 (frozen)
    longest: Annotated[int, Parameter(help="Tokens of the longest n-gram.")] = 4,
    cut: Annotated[Cut, Parameter(name="*")] = Cut(),  # noqa: B008 (frozen)
    plot: Plot = None,
    level: Level = 0.95,
    seed: Seed = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Ratio of unique n-grams within a continuation, in data, base draws and joint draws: how much a model repeats itself.

    Example: esscher analyse n-grams runs/first --energy runs/tilted --data my.txt --plot n-grams.png
    """
    from esscher.estimators.populations import NAMES
    from esscher.estimators.repetition import unique_ngrams
    from esscher.reports.plots import estimates_by

    _, found, facts = _populations(model, energy, source, size, cut, seed, quiet)
    result = unique_ngrams(found, range(1, longest + 1), level=level)
    lines: dict[str, list["Estimate"]] = {name: [row.ratio[name] for row in result] for name in NAMES}
    _draw(estimates_by([row.n for row in result], lines, x="n", y="ratio of unique n-grams"), plot, facts)
    rows = [{"n": row.n, **row.ratio, **{f"{name} above data": value for name, value in row.above.items()}} for row in result]
    show(Answer("esscher analyse n-grams", facts, {"unique_ngrams": rows}, _advice(found.effective())), as_json=json)


@app.command(sort_key=3)
def discriminate(
    model: Folder,
    *,
    energy: Energy,
    source: Annotated[Source, Parameter(name="*")] = Source(),  # noqa: B008 (frozen)
    settings: Annotated[DiscriminateConfig, Parameter(name="*")] = DiscriminateConfig(),  # noqa: B008 (frozen)
    encoder: Annotated[str, Parameter(help="Short for --classifier.encoder: folder of a pretrained encoder.")] = "",
    cut: Annotated[Cut, Parameter(name="*")] = Cut(),  # noqa: B008 (frozen)
    plot: Plot = None,
    level: Level = 0.95,
    seed: Seed = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """How well a fresh classifier tells draws from data, on prompts it never saw: the base's draws, and the joint's.

    Example: esscher analyse discriminate runs/first --energy runs/tilted --data my.txt --training.steps 300
    """
    from esscher.randomness import Seeded
    from esscher.reports.plots import intervals
    from esscher.verbs.discriminate import discriminate as tell_apart
    from esscher.verbs.models import load_model

    loaded = load_model(model, energy, cut)
    settings = replace(settings, training=replace(settings.training, seed=seed))
    if encoder:
        settings = replace(settings, classifier=replace(settings.classifier, encoder=encoder))
    (x, told), decode, rng = _read(loaded, energy, source), loaded.tokenizer.decode, Seeded(seed)
    found = tell_apart(loaded.target, x, settings, decode=decode, level=level, rng=rng, quiet=quiet)
    facts: dict[str, Any] = {
        **_named(model, energy, told, seed),
        "sequences": " ".join(f"{name} {count:,}" for name, count in found.sequences.items()),
        "base_is_told_more_often_by": found.gap,
        "effective_draws": found.effective,
    }
    named = {f"{name} draws": value for name, value in found.accuracy.items()}
    label = "accuracy of a fresh classifier against data"
    _draw(intervals(named, label=label, truth=0.5, truth_label="cannot be told"), plot, facts)
    rows = [
        {"draws of": name, "accuracy": found.accuracy[name], "false positive rate": found.false_positives[name]}
        for name in found.accuracy
    ]
    show(Answer("esscher analyse discriminate", facts, {"told_from_data": rows}, _advice(found.effective)), as_json=json)


def _populations(
    model: Path, energy: Path, source: Source, size: Size, cut: Cut, seed: int, quiet: bool
) -> tuple["Model", "Populations", dict[str, Any]]:
    """The model, its draws beside the data, and what to say of them."""
    from esscher.randomness import Seeded
    from esscher.training.progress import choose_progress
    from esscher.verbs.comparison import gather
    from esscher.verbs.models import load_model
    from esscher.verbs.subsets import some_of

    loaded = load_model(model, energy, cut)
    (every, told), rng = _read(loaded, energy, source), Seeded(seed)
    x = some_of(every, size.sequences, rng=rng.stream("sequences"))
    found = gather(loaded.target, x, size.draws, rng=rng.stream("draws"), say=choose_progress(quiet).say)
    facts = {
        **_named(model, energy, told, seed),
        "sequences": len(x),
        "drawn_from_the_base": found.draws.cost,
        "effective_draws": found.effective(),
    }
    return loaded, found, facts


def _read(loaded: "Model", energy: Path, source: Source) -> tuple["Sequences", str]:
    """The data as points of the model, and what to call them."""
    from esscher.data.sources import read_texts
    from esscher.verbs.tilt import read_sets, source_of

    if source.data is None:
        return read_sets(loaded, source_of(energy)).test, "held out of what the energy learnt from"
    texts = read_texts(source.data, column=source.column, unit=source.unit, separator=source.separator)
    return loaded.read(texts.texts).x, str(texts)


def _named(model: Path, energy: Path, data: str, seed: int) -> dict[str, Any]:
    return {"model": model, "energy": energy, "data": data, "seed": seed}


def _advice(effective: "Estimate") -> list[str]:
    from esscher.estimators.reliability import TOO_FEW

    if effective.value >= TOO_FEW:
        return []
    return [
        f"Of the draws after a prompt only {effective.value:.1f} are effective for the joint: its figures still lean towards "
        f"the base's; raise --draws."
    ]


def _prompt(loaded: "Model", prompt: str) -> tuple["Sequences", list[str]]:
    """The prompt as tokens, and a remark where the model learnt from prompts of another length."""
    from esscher.space import prompts_of

    tokens = prompts_of(loaded.prompts([prompt]))
    length = int(tokens.start[0])
    if length == 0 and loaded.given > 0:
        raise ValueError(
            f"The prompt is empty, and this model goes on from {loaded.given} tokens. Nothing was computed; "
            f"give --prompt some text."
        )
    if loaded.cut.given is None or length == loaded.given:
        return tokens, []
    return tokens, [f"The energy learnt from prompts of {loaded.given} tokens, and this one has {length}."]


def _times(joint: "Estimate", base: "Estimate") -> "Estimate | None":
    return joint.map(lambda share: share / base.value) if base.value > 0 else None


def _draw(figure: "Figure", plot: Path | None, facts: dict[str, Any]) -> None:
    """Save the picture where one is wanted, and say where it is."""
    from esscher.reports.plots import save_picture

    if plot is not None:
        facts["plot"] = save_picture(figure, plot)
