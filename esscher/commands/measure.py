"""esscher measure: how good a model is, with an interval."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.flags import BaseFolder, Column, Cutting, EnergyFolder, Json, Level, Quiet, Seed, Sharded, UnitAsLearnt
from esscher.commands.measure_dynamic import dynamic_answer, refuse_beside_dynamic
from esscher.commands.output import Answer, keep, show
from esscher.cut import Cut
from esscher.data.sources import Unit
from esscher.settings.dynamic import DynamicConfig

if TYPE_CHECKING:
    from collections.abc import Callable

    from esscher.data.text import TextSet
    from esscher.estimators.measured import Measured
    from esscher.verbs.measure import Measuring
    from esscher.verbs.models import Model

app = App(name="measure", help_epilogue="Example: esscher measure runs/first --data my.txt")


MEASURED = "measured"  # folder of the report, in that of the energy or the base, where no --out is given


@dataclass(frozen=True)
class Reading:
    """How a long text is read as one stream, with the memory of the model."""

    streams: int | None = None
    """Columns that are read at once; by default one for each 20,480 tokens, and at most 16."""
    segment: int | None = None
    """Tokens that are read at a time; by default as many as in training."""
    warm: int = 1024
    """Tokens that a column after the first reads before its place, to fill its memory."""
    reach: int | None = None
    """How far back a Transformer-XL sees; by default as far as it was trained to."""
    clamp: int | None = None
    """Largest distance that a Transformer-XL tells apart."""


@app.default
def measure(
    model: BaseFolder,
    *,
    data: Annotated[str, Parameter(help="A text, jsonl or parquet file, a folder, a pattern, or a Hugging Face name.")],
    energy: EnergyFolder = None,
    draws: Annotated[
        int | None, Parameter(help="Draws for log Z: by default 4000 where all texts have one prompt, else 64 after each.")
    ] = None,
    sequences: Annotated[
        int | None, Parameter(help="Test sequences at most, evenly spaced; by default all, of tilted chunks 500.")
    ] = None,
    steps: Annotated[int, Parameter(help="Add the perplexity at each position, on so many of the sequences.")] = 0,
    step_draws: Annotated[int, Parameter(help="Draws after each prefix of these.")] = 64,
    sample_last: Annotated[
        bool, Parameter(negative="", help="Draw at the last position too, instead of scoring every token of the vocabulary.")
    ] = False,
    plot: Annotated[Path | None, Parameter(help="Draw the perplexity by position into this file, such as steps.png.")] = None,
    column: Column = "text",
    target: Annotated[
        str | None, Parameter(help="Translations of the data: a file, its ending, or a column beside --column.")
    ] = None,
    unit: UnitAsLearnt = None,
    fixed: Annotated[
        bool, Parameter(negative="", help="The interval for just these texts, instead of for all text like them.")
    ] = False,
    level: Level = 0.95,
    cut: Cutting = Cut(),  # noqa: B008 (frozen)
    reading: Annotated[Reading, Parameter(name="*")] = Reading(),  # noqa: B008 (frozen)
    dynamic: Annotated[
        bool, Parameter(negative="", help="Learn from each piece of the text after it was scored, beside the model at rest.")
    ] = False,
    adapt: Annotated[DynamicConfig, Parameter(name="--adapt")] = DynamicConfig(),  # noqa: B008 (frozen)
    out: Annotated[Path | None, Parameter(help="Folder that keeps draws; a measuring that broke goes on.")] = None,
    sharded: Sharded = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Longer texts than the model's points are cut, and counted; end symbols count, prompts do not.

    A model that learnt from a stream reads all texts as one, with its memory; so does any base with a memory, with --streams.
    With --dynamic its weights learn from the text as it is read, as --adapt tells. With --target the data are sources, and
    what counts are their translations.
    """
    from esscher.data.images import load_codec
    from esscher.training.progress import choose_progress
    from esscher.verbs.measure import Measuring, measure_text
    from esscher.verbs.models import load_model

    if plot is not None and (steps == 0 or energy is None):
        raise ValueError("--plot shows the perplexity by position. Nothing was measured; give --steps and --energy, too.")
    asked_for = {
        "model": model, "energy": energy, "data": data, "target": target, "draws": draws, "sequences": sequences,
        "steps": steps, "fixed": fixed, "level": level, "dynamic": dynamic, "seed": seed,
    }  # fmt: skip
    place = out or (model if energy is None or not energy.is_dir() else energy) / MEASURED

    def end(answer: Answer) -> None:
        show(keep(answer, place, asked_for), as_json=json)

    given = {"--draws": draws, "--sequences": sequences, "--steps": steps, "--out": out}
    asked = [name for name, value in given.items() if value]
    if dynamic:
        columns = {
            "--sharded": sharded,
            "--streams": reading.streams,
            "--segment": reading.segment,
            "--warm": reading.warm != Reading().warm,
        }
        refuse_beside_dynamic(energy, [*asked, *(name for name, value in columns.items() if value)])
        answer = dynamic_answer(
            model, data, adapt, column=column, unit=unit, cut=cut, sight=(reading.reach, reading.clamp), fixed=fixed,
            level=level, quiet=quiet,
        )  # fmt: skip
        end(answer)
        return
    if adapt != DynamicConfig():
        raise ValueError("--adapt tells how to learn from the text. Nothing was measured; give --dynamic, too.")
    settings = Measuring(draws, sequences, steps, step_draws, not sample_last, "fixed" if fixed else "sample", level, seed, out)
    if load_codec(model) is not None:
        if steps or target is not None or cut != Cut() or reading != Reading():
            raise ValueError(
                "Images are measured as they are. Nothing was measured; leave steps, targets, cuts and streams out."
            )
        end(image_measure(load_model(model, energy, sharded=sharded), data, settings, say=choose_progress(quiet).say))
        return
    whole = energy is None and cut == Cut() and target is None
    if reading != Reading() and not whole:
        raise ValueError(
            "--streams, --segment and --warm read one stream with a memory. Nothing was measured; leave --energy and cuts out."
        )
    stream = _stream(model, data, column, unit, reading, fixed, level, asked, sharded) if whole else None
    if stream is not None:
        end(stream)
        return
    loaded = load_model(model, energy, cut, sharded=sharded)
    made, told = _points(loaded, data, column, unit, target)
    result = measure_text(loaded, made, settings, say=choose_progress(quiet).say)
    found = result.found
    facts: dict[str, Any] = {
        "model": model, "energy": energy, "data": told, "measured_on": result.measured_on, "seed": seed,
    }  # fmt: skip
    facts |= tilt_facts(found)
    tables: dict[str, Any] = {"perplexities": found.perplexities()}
    tables |= {"worst_prompts": result.worst} if len(found.reliability) > 1 and result.worst else {}
    tables |= {"steps": result.step_rows()} if result.steps else {}
    ways = {"base": found.base, "tilted": found.tilted, "bounds of the paper": found.bounds, "guarantee": found.guaranteed}
    methods = [f"{name}: {nats['token'].method}" for name, nats in ways.items() if nats is not None]
    if plot is not None:
        facts["plot"] = _draw(result.step_rows(), plot)
    end(Answer("esscher measure", facts, tables, [*methods, *found.warnings]))


def tilt_facts(found: "Measured") -> dict[str, Any]:
    """What concerns the tilt; nothing of a base."""
    if found.log_z is None:
        return {}
    verdicts = [one.verdict for one in found.reliability]
    words = {word: verdicts.count(word) for word in ("good", "doubtful", "unreliable") if word in verdicts}
    facts: dict[str, Any] = {"saved_by_tilting": next(iter((found.saved or {}).values())), "log_z": found.log_z}
    facts |= {} if found.spread is None else {"log_z_spread": found.spread}
    facts["reliability"] = verdicts[0] if len(verdicts) == 1 else ", ".join(f"{n} {word}" for word, n in words.items())
    return facts


def image_measure(model: "Model", data: str, settings: "Measuring", *, say: "Callable[[str], None]") -> Answer:
    """What is found of a model of images."""
    from esscher.verbs.measure_images import measure_images

    result = measure_images(model, data, settings, say=say)
    found = result.found
    facts = {"model": model.folder, "data": data, "measured_on": result.measured_on, "seed": settings.seed}
    notes = [f"base: {next(iter(found.base.values())).method}", *found.warnings]
    return Answer("esscher measure", facts | tilt_facts(found), {"bits": result.rows()}, notes)


def _points(model: "Model", data: str, column: str, unit: Unit | None, target: str | None) -> tuple["TextSet", str]:
    """The data as points of the model, and what they are called."""
    if target is None:
        from esscher.data.sources import read_texts

        texts = read_texts(data, column=column, unit=unit or "line")
        return model.read(texts.texts), str(texts)
    from esscher.data.parallel import read_pairs

    pairs = read_pairs(data, target, column=column)
    made = model.read_pairs(pairs)
    return made, f"{pairs}, {made.cut:,} of them too long and left out"


def _stream(
    model: Path,
    data: str,
    column: str,
    unit: Unit | None,
    reading: Reading,
    fixed: bool,
    level: float,
    asked: list[str],
    sharded: bool,
) -> Answer | None:
    """What is found where the text is read as one stream; None where it is not to be."""
    from esscher.bases.network import with_sight
    from esscher.verbs.measure_stream import StreamMeasuring, measure_stream
    from esscher.verbs.models import load_model
    from esscher.verbs.run_folder import manner_of, trained_on_streams
    from esscher.verbs.training_streams import read_stream_of

    if trained_on_streams(model) is None and reading == Reading():
        return None
    if asked:
        raise ValueError(
            f"{', '.join(asked)} has no meaning where a text is read as one stream. Nothing was measured; leave it out."
        )
    loaded = load_model(model, sharded=sharded)
    base = loaded.streaming
    if reading.reach is not None or reading.clamp is not None:
        base = with_sight(base, reach=reading.reach, clamp=reading.clamp)
    own, length = manner_of(model)
    text = read_stream_of(data, loaded.tokenizer, replace(own, column=column, unit=unit or own.unit), length)
    settings = StreamMeasuring(
        reading.streams, reading.segment or length.tokens, reading.warm, "fixed" if fixed else "sample", level
    )
    found = measure_stream(base, text, settings)
    facts = {"model": model, "data": data, "measured_on": str(text), "read_as": found.read_as}
    notes = [f"base: {found.nats['token'].method}", *found.warnings]
    return Answer("esscher measure", facts, {"perplexities": found.rows()}, notes)


def _draw(rows: list[dict[str, Any]], file: Path) -> Path:
    from esscher.reports.plots import BASE, TILTED, bands, save_picture

    places = [row["position"] for row in rows]
    lines = {name: (colour, places, [row[name] for row in rows]) for name, colour in (("base", BASE), ("tilted", TILTED))}
    return save_picture(bands(lines, x="position", y="perplexity of the token there"), file)
