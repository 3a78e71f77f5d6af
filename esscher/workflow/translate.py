"""Translating lines with a base that reads a source. Lines are decoded in windows, together with others of about their length.
An empty line stays empty, and a source longer than those in training is cut; both are noted beside the line."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from esscher.bases.network import NetworkBase
from esscher.core.console import write_data
from esscher.core.distributed import world_size
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import prompts_of
from esscher.core.storage import write_file
from esscher.data.sources import read_lines
from esscher.data.translation_pairs import decode_targets, encode_sources
from esscher.decoding.beam_search import BeamSearch, Greedy
from esscher.decoding.decoders import Decoder, MinimumBayesRisk, texts_utility
from esscher.decoding.registry import DECODERS
from esscher.metrics.metric import get_metric, word_ratio
from esscher.networks.registry import NETWORKS, kinds_of
from esscher.reports.report import Report
from esscher.workflow.config.translate import TranslateConfig
from esscher.workflow.model import Model

LINES_PER_BATCH, WINDOW = 64, 512  # lines that are decoded at once, and that are sorted by length
STANDARD = "-"  # standard input or output, in place of a file


class TranslatedLine(NamedTuple):
    """The translation of a line, counted from 1, and a note: it is empty, or its source was cut."""

    number: int
    source: str
    text: str
    note: str


class TranslateResult(NamedTuple):
    """The translations of all lines in order, and the report."""

    texts: list[str]
    report: Report


def translate_model(model: Model, settings: TranslateConfig) -> TranslateResult:
    """Translate sentences or the lines of a file. The report shows the translations unless they are written to a file; its JSON
    has all lines translated by this call."""
    if world_size() > 1:
        raise ValueError(
            f"{world_size()} processes were started, and one translates: the lines of a file are written in order. Nothing was "
            f"translated; start one process, or cut the file and give each a part."
        )
    require_translator(model)
    lines = _read_sources(settings)
    references = None if settings.references is None else read_lines(Path(settings.references))
    if references is not None and len(references) != len(lines):
        raise ValueError(
            f"{settings.references} has {len(references):,} lines for {len(lines):,} to translate. Nothing was translated."
        )
    texts, say = _finished_lines(settings), current_progress().say
    stream = translate(
        model, lines[len(texts) :], settings.decoder, rng=SeededRng(settings.seed), first=len(texts),
        say=lambda done: say(f"{done:,} of {len(lines):,} lines"),
    )  # fmt: skip
    rows = []
    with _output(settings.out, texts) as write:
        for line in stream:
            write(f"{line.text}\n")
            if line.note == "empty":
                say(f"line {line.number}: it is empty, and stays so")
            elif line.note:
                say(f"line {line.number}: its source has {line.note}")
            texts.append(line.text)
            rows.append({"line": line.number, "source": line.source, "translation": line.text, "note": line.note or None})
    facts: dict[str, Any] = {
        **model.facts, "decoder": DECODERS.kind_of(settings.decoder), "lines": len(texts),
        "out": settings.out,
    }  # fmt: skip
    facts |= {} if isinstance(settings.decoder, BeamSearch | Greedy) else {"seed": settings.seed}
    tables: dict[str, Any] = {}
    if references is not None and len(texts) >= 2:
        scores = {name: get_metric(name).score(texts, references, rng=SeededRng(settings.seed)) for name in ("bleu", "chrf")}
        scores["words, of those of the references"] = word_ratio(texts, references)
        tables["scores"] = [{"metric": name, "value": value} for name, value in scores.items()]
    shown = {"translations": rows, **tables} if settings.out is None else tables
    standard = settings.out == STANDARD  # people see the lines alone
    json_tables = {**(facts if standard else {}), "translations": rows, **tables}
    return TranslateResult(texts, Report("esscher translate", {} if standard else facts, shown, json_tables=json_tables))


def require_translator(model: Model) -> Model:
    """The model, whose prompts must be sources."""
    if not model.is_translator:
        kind = NETWORKS.kind_of(model.base.config) if isinstance(model.base, NetworkBase) else type(model.base).__name__
        raise ValueError(
            f"{model.name} holds a base of kind {kind}, which continues a text and translates none. Nothing was translated; "
            f"train a base on pairs (best one of {', '.join(kinds_of('translation'))}), or bring an encoder-decoder model."
        )
    return model


def translate(
    model: Model,
    texts: Iterable[str],
    decoder: Decoder,
    *,
    rng: Rng,
    first: int = 0,
    say: Callable[[int], None] = lambda lines: None,
) -> Iterator[TranslatedLine]:
    """Translations of the lines `texts` in order; `first` lines, in whole windows, were translated before. Minimum Bayes risk
    compares texts unless it has a `gain`. `say` is called with the number of lines that are done."""
    if isinstance(decoder, MinimumBayesRisk) and decoder.gain is None:
        decoder = replace(decoder, gain=texts_utility(decoder.utility, lambda x: decode_targets(x, model.tokenizer)))
    rest = iter(texts)
    while window := list(islice(rest, WINDOW)):
        yield from _translate_window(model, window, decoder, first, rng.stream("lines", first), say)
        first += len(window)


def _translate_window(
    model: Model, texts: Sequence[str], decoder: Decoder, first: int, rng: Rng, say: Callable[[int], None]
) -> list[TranslatedLine]:
    base, tokenizer = model.base, model.tokenizer
    most = base.space.max_length
    sources = encode_sources([text.strip() for text in texts], tokenizer)
    notes = ["" if text.strip() else "empty" for text in texts]
    for number, source in enumerate(sources):
        if len(source) > most:
            notes[number] = f"{len(source)} tokens, cut to {most}"
            sources[number] = [*source[: most - 1], tokenizer.eos]
    order = sorted((number for number, note in enumerate(notes) if note != "empty"), key=lambda number: len(sources[number]))
    decoded = [""] * len(texts)
    for begin in range(0, len(order), LINES_PER_BATCH):
        batch = order[begin : begin + LINES_PER_BATCH]
        output = decoder(model.target, prompts_of([sources[number] for number in batch]), rng=rng.stream(begin))
        for number, text in zip(batch, decode_targets(output.x, tokenizer), strict=True):
            decoded[number] = text
        say(first + begin + len(batch))
    return [TranslatedLine(first + number + 1, *line) for number, line in enumerate(zip(texts, decoded, notes, strict=True))]


def _read_sources(settings: TranslateConfig) -> list[str]:
    if settings.file is None:
        return list(settings.sentences)
    standard = settings.file == STANDARD
    lines = sys.stdin.read().removesuffix("\n").split("\n") if standard else read_lines(Path(settings.file))
    if not any(lines):
        raise ValueError(f"{settings.file} holds no text. Nothing was translated.")
    return lines


def _finished_lines(settings: TranslateConfig) -> list[str]:
    """The lines that are translated already, in whole windows, so that the rest is the same as without a stop."""
    out = settings.out
    if out in (None, STANDARD) or not Path(out).exists():
        return []
    if not settings.resume:
        raise ValueError(f"The file {out} exists already. Nothing was translated; choose another, or go on with --resume.")
    lines = Path(out).read_text(encoding="utf8").split("\n")[:-1]
    return lines[: len(lines) // WINDOW * WINDOW]


@contextmanager
def _output(out: str | None, done: Sequence[str]) -> Iterator[Callable[[str], object]]:
    """What writes a line as soon as it is translated, after the lines that are done."""
    if out is None:
        yield lambda line: None
    elif out == STANDARD:
        yield write_data
    else:
        write_file(Path(out), "".join(f"{line}\n" for line in done).encode())  # complete or not at all: nothing done is lost
        with Path(out).open("a", encoding="utf8", buffering=1) as file:
            yield file.write
