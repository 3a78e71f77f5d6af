"""Translating lines with a base that reads a source: in order, a few at a time.

Lines are taken in windows, and those of a window are decoded together with others of about their length. An empty line stays
empty; a source with more tokens than the base was trained on is cut to as many. Both are noted beside the line.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from esscher.bases.network import NetworkBase
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
from esscher.metrics.comparison import word_ratio
from esscher.metrics.metric import get_metric
from esscher.networks.registry import NETWORKS, kinds_of
from esscher.reports.report import Report
from esscher.workflow.config.translate import TranslateConfig
from esscher.workflow.model import Model

LINES_PER_BATCH, WINDOW = 64, 512  # lines that are decoded at once, and that are sorted by length
STANDARD = "-"  # standard input or output, in place of a file


@dataclass(frozen=True)
class Translation:
    """The translation of a line, counted from 1, a note on it, and its log-probability under the base."""

    line: int
    source: str
    text: str
    note: str = ""
    log_base: float | None = None


@dataclass(frozen=True)
class TranslateResult:
    """All translations in order, those that were translated now in detail, and the report."""

    texts: list[str]
    translations: list[Translation]
    report: Report


def translate_model(model: Model, settings: TranslateConfig) -> TranslateResult:
    """Translate sentences or the lines of a file.

    Args:
        model: A model whose prompts are sources, tilted or not.
        settings: What to translate, the decoder, and where to write.

    Returns:
        The translations, and the report.
    """
    if world_size() > 1:
        raise ValueError(
            f"{world_size()} processes were started, and one translates: the lines of a file are written in order. Nothing was "
            f"translated; start one process, or cut the file and give each a part."
        )
    require_translator(model)
    lines = _read_sources(settings)
    references = None if settings.references is None else _read_references(settings.references, len(lines))
    done = _finished_lines(settings)
    say, count = current_progress().say, len(lines)
    decoder = decoder_for(model, settings.decoder)
    stream = translate(
        model, lines[len(done) :], decoder, rng=SeededRng(settings.seed), first=len(done),
        say=lambda lines_done: say(f"{lines_done:,} of {count:,} lines"),
    )  # fmt: skip
    translations = []
    for translation in _written(stream, settings.out, done):
        translations.append(translation)
        if translation.note == "empty":
            say(f"line {translation.line}: it is empty, and stays so")
        elif translation.note:
            say(f"line {translation.line}: its source has {translation.note}")
    texts = [*done, *(translation.text for translation in translations)]
    scores = [] if references is None or len(texts) < 2 else translation_scores(texts, references, settings.seed)
    return TranslateResult(texts, translations, _report(model, settings, texts, translations, scores))


def require_translator(model: Model) -> Model:
    """The model, whose prompts must be sources."""
    if not model.is_translator:
        kind = NETWORKS.kind_of(model.base.config) if isinstance(model.base, NetworkBase) else type(model.base).__name__
        raise ValueError(
            f"{model.name} holds a base of kind {kind}, which continues a text and translates none. Nothing was translated; "
            f"train a base on pairs (best one of {', '.join(kinds_of('translation'))}), or bring an encoder-decoder model."
        )
    return model


def decoder_for(model: Model, decoder: Decoder) -> Decoder:
    """The decoder, with the tokenizer of the model where it compares texts."""
    if isinstance(decoder, MinimumBayesRisk) and decoder.gain is None:
        return replace(decoder, gain=texts_utility(decoder.utility, lambda x: decode_targets(x, model.tokenizer)))
    return decoder


def translate(
    model: Model,
    texts: Iterable[str],
    decoder: Decoder,
    *,
    rng: Rng,
    first: int = 0,
    say: Callable[[int], None] = lambda lines: None,
) -> Iterator[Translation]:
    """Translate lines in order.

    Args:
        model: A model whose prompts are sources.
        texts: The lines.
        decoder: How a translation is chosen, see `decoder_for`.
        rng: Where everything random comes from.
        first: Lines that were translated before, a whole number of windows.
        say: Called with the number of lines that are done.

    Returns:
        The translation of every line.
    """
    rest = iter(texts)
    while window := list(islice(rest, WINDOW)):
        yield from _translate_window(model, window, decoder, first, rng.stream("lines", first), say)
        first += len(window)


def translation_scores(texts: Sequence[str], references: Sequence[str], seed: int) -> list[dict[str, Any]]:
    """BLEU and chrF, and how long the translations are."""
    scores = [
        {"metric": name, "value": get_metric(name).score(texts, [[text] for text in references], rng=SeededRng(seed))}
        for name in ("bleu", "chrf")
    ]
    return [*scores, {"metric": "words, of those of the references", "value": word_ratio(texts, references)}]


def _translate_window(
    model: Model, texts: Sequence[str], decoder: Decoder, first: int, rng: Rng, say: Callable[[int], None]
) -> list[Translation]:
    base, tokenizer = model.base, model.tokenizer
    most = base.space.max_length
    sources = encode_sources([text.strip() for text in texts], tokenizer)
    notes = ["" if text.strip() else "empty" for text in texts]
    for number, source in enumerate(sources):
        if len(source) > most:
            notes[number] = f"{len(source)} tokens, cut to {most}"
            sources[number] = [*source[: most - 1], tokenizer.eos]
    order = sorted((number for number, note in enumerate(notes) if note != "empty"), key=lambda number: len(sources[number]))
    decoded: dict[int, tuple[str, float]] = {}
    device = next(base.parameters()).device
    for begin in range(0, len(order), LINES_PER_BATCH):
        batch = order[begin : begin + LINES_PER_BATCH]
        output = decoder(model.target, prompts_of([sources[number] for number in batch]).to(device), rng=rng.stream(begin))
        pairs = zip(decode_targets(output.x, tokenizer), output.log_base.tolist(), strict=True)
        decoded.update(zip(batch, pairs, strict=True))
        say(first + len(decoded))
    return [
        Translation(first + number + 1, text, decoded[number][0], notes[number], decoded[number][1])
        if number in decoded
        else Translation(first + number + 1, text, "", notes[number])
        for number, text in enumerate(texts)
    ]


def _read_sources(settings: TranslateConfig) -> list[str]:
    if settings.file is None:
        return list(settings.sentences)
    standard = settings.file == STANDARD
    lines = sys.stdin.read().removesuffix("\n").split("\n") if standard else read_lines(Path(settings.file))
    if not any(lines):
        raise ValueError(f"{settings.file} holds no text. Nothing was translated.")
    return lines


def _read_references(file: str, lines: int) -> list[str]:
    references = read_lines(Path(file))
    if len(references) != lines:
        raise ValueError(f"{file} has {len(references):,} lines for {lines:,} to translate. Nothing was translated.")
    return references


def _finished_lines(settings: TranslateConfig) -> list[str]:
    """The lines that are translated already, in whole windows, so that the rest is the same as without a stop."""
    out = settings.out
    if out in (None, STANDARD) or not Path(out).exists():
        return []
    if not settings.resume:
        raise ValueError(f"The file {out} exists already. Nothing was translated; choose another, or go on with --resume.")
    lines = Path(out).read_text(encoding="utf8").split("\n")[:-1]
    return lines[: len(lines) // WINDOW * WINDOW]


def _written(translations: Iterator[Translation], out: str | None, done: Sequence[str]) -> Iterator[Translation]:
    """The translations, each written as soon as it is there."""
    if out is None:
        yield from translations
    elif out == STANDARD:
        for translation in translations:
            print(translation.text, flush=True)
            yield translation
    else:
        write_file(Path(out), "".join(f"{line}\n" for line in done).encode())  # complete or not at all: nothing done is lost
        with Path(out).open("a", encoding="utf8") as file:
            for translation in translations:
                file.write(f"{translation.text}\n")
                file.flush()
                yield translation


def _report(
    model: Model,
    settings: TranslateConfig,
    texts: Sequence[str],
    translations: Sequence[Translation],
    scores: Sequence[dict[str, Any]],
) -> Report:
    """Translations that are written somewhere are not shown to people again; JSON has all, also where lines are printed."""
    facts: dict[str, Any] = {
        "model": model.name, "energy": model.energy_name, "decoder": DECODERS.kind_of(settings.decoder), "lines": len(texts),
        "out": settings.out,
    }  # fmt: skip
    facts |= {} if isinstance(settings.decoder, BeamSearch | Greedy) else {"seed": settings.seed}
    rows = [
        {"line": each.line, "source": each.source, "translation": each.text, "note": each.note or None} for each in translations
    ]
    tables: dict[str, Any] = {"scores": scores} if scores else {}
    shown = {"translations": rows, **tables} if settings.out is None else tables
    if settings.out == STANDARD:
        return Report("esscher translate", {}, shown, json_tables={**facts, "translations": rows, **tables})
    return Report("esscher translate", facts, shown, json_tables={"translations": rows, **tables})
