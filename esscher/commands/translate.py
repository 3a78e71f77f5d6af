"""esscher translate: sentences or a file, by a base that reads a source, line by line and in order."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from esscher.commands.flags import EnergyFolder, Json, Quiet, Seed
from esscher.commands.output import Answer, show
from esscher.launch import started
from esscher.settings.translate import DecodingConfig

if TYPE_CHECKING:
    from esscher.verbs.translate import Translated

app = App(
    name="translate",
    help_epilogue="Example: esscher translate runs/fr-en --file my.fr --out my.en; esscher translate runs/fr-en 'Il pleut.'",
)


@app.default
def translate(
    model: Annotated[Path, Parameter(help="Folder of a base that translates.")],
    sentence: Annotated[tuple[str, ...], Parameter(help="What to translate; or give --file.")] = (),
    *,
    file: Annotated[Path | None, Parameter(help="A text file, translated line by line; - is standard input.")] = None,
    out: Annotated[Path | None, Parameter(help="File for the translations; standard output if not given.")] = None,
    resume: Annotated[bool, Parameter(negative="", help="Go on where --out ends.")] = False,
    references: Annotated[Path | None, Parameter(help="The right translation of each line; adds BLEU and chrF.")] = None,
    energy: EnergyFolder = None,
    decoding: Annotated[DecodingConfig, Parameter(name="*")] = DecodingConfig(),  # noqa: B008 (frozen)
    seed: Seed = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Every line has its translation at the same place. An empty line stays empty, and a source longer than those that the
    model learnt from is cut; both are told on standard error. Of a tilted model a beam, or draws, are judged by the energy
    too."""
    from esscher.randomness import Seeded
    from esscher.training.progress import choose_progress
    from esscher.verbs.translate import WINDOW, build_decoder, load_translator
    from esscher.verbs.translate import translate as translated

    if started() > 1:
        raise ValueError(
            f"{started()} processes were started, and one translates: the lines of a file are written in order. Nothing was "
            f"translated; start one process, or cut the file and give each a part."
        )
    lines = _lines(sentence, file)
    right = None if references is None else _references(references, len(lines))
    done = _done(out, resume, WINDOW)
    loaded = load_translator(model, energy)
    say = choose_progress(quiet).say
    found = translated(
        loaded, lines[len(done) :], build_decoder(decoding, loaded), rng=Seeded(seed), first=len(done),
        say=lambda count: say(f"{count:,} of {len(lines):,} lines"),
    )  # fmt: skip
    texts, rows = list(done), []
    for one in _written(found, out, done, shown=not json and file is not None and out is None):
        texts.append(one.text)
        rows.append({"line": one.line, "source": one.source, "translation": one.text, "note": one.note or None})
        if one.note:
            say(f"line {one.line}: {_told(one.note)}")
    facts: dict[str, Any] = {"model": model, "energy": energy, "decode": decoding.decode, "lines": len(texts), "out": out}
    facts |= {"seed": seed} if decoding.decode not in ("beam", "greedy") else {}
    scores = [] if right is None or len(texts) < 2 else _scores(texts, right, seed)
    if json or out is not None or scores or file is None:
        shown = {"translations": rows} if json or file is None else {}
        show(Answer("esscher translate", facts, {**shown, **({"scores": scores} if scores else {})}), as_json=json)


def _told(note: str) -> str:
    return "it is empty, and stays so" if note == "empty" else f"its source has {note}"


def _lines(sentence: tuple[str, ...], file: Path | None) -> list[str]:
    """What to translate."""
    if (file is None) == (not sentence):
        raise ValueError("Give sentences to translate, or a file with --file. Nothing was translated.")
    if file is None:
        return list(sentence)
    from esscher.data.sources import read_lines

    lines = sys.stdin.read().removesuffix("\n").split("\n") if str(file) == "-" else read_lines(file)
    if not any(lines):
        raise ValueError(f"{file} holds no text. Nothing was translated.")
    return lines


def _references(file: Path, lines: int) -> list[str]:
    from esscher.data.sources import read_lines

    found = read_lines(file)
    if len(found) != lines:
        raise ValueError(f"{file} has {len(found):,} lines for {lines:,} to translate. Nothing was translated.")
    return found


def _done(out: Path | None, resume: bool, window: int) -> list[str]:
    """The lines that are translated already, in whole windows, so that going on changes none."""
    if out is None or not out.exists():
        return []
    if not resume:
        raise ValueError(f"The file {out} is there already. Nothing was translated; choose another, or go on with --resume.")
    lines = out.read_text(encoding="utf8").split("\n")[:-1]
    return lines[: len(lines) // window * window]


def _written(found: "Iterator[Translated]", out: Path | None, done: list[str], *, shown: bool) -> "Iterator[Translated]":
    """The same, each line written or shown as soon as it is there."""
    if out is None:
        for one in found:
            if shown:
                print(one.text, flush=True)
            yield one
        return
    from esscher.storage import write_file

    write_file(out, "".join(f"{line}\n" for line in done).encode())  # whole or not at all: what is done is never lost
    with out.open("a", encoding="utf8") as place:
        for one in found:
            place.write(f"{one.text}\n")
            place.flush()
            yield one


def _scores(texts: list[str], right: list[str], seed: int) -> list[dict[str, Any]]:
    """BLEU and chrF, and how long the translations are."""
    from esscher.metrics.lengths import word_ratio
    from esscher.metrics.metric import metric_of
    from esscher.randomness import Seeded

    found = [
        {"metric": name, "value": metric_of(name).score(texts, [[one] for one in right], rng=Seeded(seed))}
        for name in ("bleu", "chrf")
    ]
    return [*found, {"metric": "words, of those of the references", "value": word_ratio(texts, right)}]
