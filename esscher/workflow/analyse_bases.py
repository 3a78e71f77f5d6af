"""Analyses of bases: effective context length, rank of the next-token distributions, exposure bias. For the last, a model of
texts or chunks continues the prompts of the data; a model that was trained on a stream continues positions of one long text,
with its memory, and each position is a replicate."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.bases.logits import log_probs_and_logsumexp
from esscher.bases.network import NetworkBase
from esscher.bases.wrappers import WithMemory
from esscher.core.chunking import Chunking
from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, empty_prompts, point_values, prompts_of, unique_prompts
from esscher.core.target import Tilted
from esscher.data.splits import random_rows
from esscher.estimators import exposure_bias
from esscher.estimators.exposure_bias import Exposure, ExposureRatio, LogSumExps, SelfConditionedScores
from esscher.estimators.log_prob_rank import LogProbSpectrum, log_prob_spectrum, next_log_probs, singular_curve
from esscher.estimators.long_context import HARDEST_SHARES, THRESHOLD, ContextLosses, context_losses, spread_places
from esscher.estimators.perplexity import as_perplexity
from esscher.heads.mixture import MixtureHead
from esscher.hub import SavedBase
from esscher.reports import plots
from esscher.reports.report import Report
from esscher.samplers.ancestral import Ancestral, draw, rows_at_once
from esscher.training.resumable import ResumableByDraws
from esscher.workflow.analyse import Analysis, comparison_data
from esscher.workflow.config.analyse import ContextConfig, ExposureConfig, RankConfig
from esscher.workflow.config.train import TrainRun
from esscher.workflow.model import Model, load, max_context
from esscher.workflow.processors import prepare_stream_data


def check_same_tokens(model: Model, other: Model) -> None:
    """Refuse to compare, token by token, models whose tokens differ."""
    if not model.data.same_tokens(other.data):
        raise ValueError(
            f"{model.name} and {other.name} have different tokens, so their numbers per token are not of the same things. "
            f"Nothing was measured; compare models with one tokenizer."
        )


def analyse_context(settings: ContextConfig) -> Analysis[ContextLosses]:
    """The losses of several models by length of context, on one text."""
    models = {str(folder): load(folder, **settings.placement) for folder in settings.models}
    first, confidence = next(iter(models.values())), settings.confidence
    for model in models.values():
        check_same_tokens(model, first)
    tokens = first.read_stream(settings.source).tokens
    places = spread_places(settings.positions, len(tokens), settings.longest)
    losses = {
        name: context_losses(model.base, tokens, places, settings.lengths, max_context=max_context(model.base))
        for name, model in models.items()
    }
    result = ContextLosses(settings.lengths, losses)
    nats = {name: result.by_length(name, confidence=confidence) for name in losses}
    rows: list[dict[str, Any]] = [
        {"context": length, **as_perplexity({name: line[place] for name, line in nats.items()})}
        for place, length in enumerate(result.lengths)
    ]

    def effective(name: str, share: float) -> Estimate:
        return result.effective_length(name, share, confidence=confidence, rng=SeededRng(settings.seed, "places"))

    lengths: list[dict[str, Any]] = [
        {"model": name, **{f"hardest {share:g}": effective(name, share) for share in HARDEST_SHARES}} for name in nats
    ]
    facts: dict[str, Any] = {
        "models": len(nats), "device": first.placement, "data": settings.source.source, "places": result.places,
        "seed": settings.seed,
    }  # fmt: skip
    if settings.plot is not None:
        colours = (plots.TILTED, plots.TRUTH, plots.BASE, plots.INK)
        lines = {name: (colours[place % 4], result.lengths, line) for place, (name, line) in enumerate(nats.items())}
        figure = plots.interval_bands(lines, x="tokens of context", y="nats per token")
        facts["plot"] = plots.save_figure(figure, Path(settings.plot))
    note = (
        f"A length is the first after which {settings.step} more tokens lower the perplexity, beyond the best of the group, "
        f"by less than {THRESHOLD:.0%}, on that share of tokens which are hardest for the group."
    )
    tables = {"perplexity_by_context": rows, "effective_length": lengths}
    return Analysis(result, Report("esscher analyse context", facts, tables, [note]))


def analyse_rank(settings: RankConfig) -> Analysis[dict[str, LogProbSpectrum]]:
    """Rank and singular values of models' next-token log-probabilities on one text; each model reads it as its own tokens."""
    results: dict[str, LogProbSpectrum] = {}
    rows = []
    notes = [
        "softmax_at_most: the highest rank of one softmax over vectors as wide as the model's, whatever its weights; mean "
        "divergence: KL of the distributions after two different contexts, in nats."
    ]
    for name in settings.models:
        model = load(name, max_length=1, **settings.placement)
        tokens = model.read_stream(settings.source).tokens
        current_progress().say(f"{name}:")
        spectrum, bound = measure_rank(model.base, tokens, settings.contexts, settings.length, confidence=settings.confidence)
        results[name] = spectrum
        contexts, vocab_size = spectrum.contexts, spectrum.vocab_size
        rows.append(
            {
                "model": name, "rank": spectrum.rank, "softmax_at_most": bound, "contexts": contexts, "tokens": vocab_size,
                "mean_divergence": spectrum.divergence,
            }
        )  # fmt: skip
        if spectrum.full:
            what = "give more --contexts" if contexts < vocab_size else "it is that of all tokens"
            most = min(contexts, vocab_size)
            notes.append(f"{name}: a rank of {most:,} is as high as {contexts:,} contexts allow; {what}.")
    facts: dict[str, Any] = {"models": len(results), "device": model.placement, "data": settings.source.source}
    if settings.plot is not None:
        lines = {name: singular_curve(spectrum.singular) for name, spectrum in results.items()}
        figure = plots.cumulative_distribution(lines, x="singular value over the largest", y="share not above it")
        facts["plot"] = plots.save_figure(figure, Path(settings.plot))
    singular = {"singular_values": {name: spectrum.singular.tolist() for name, spectrum in results.items()}}
    tables = {"ranks": rows}
    return Analysis(results, Report("esscher analyse rank", facts, tables, notes, json_tables=tables | singular))


def measure_rank(
    base: SavedBase, tokens: Int[Tensor, "N"], contexts: int = 1000, length: int = 64, *, confidence: float = 0.95
) -> tuple[LogProbSpectrum, int | None]:
    """The spectrum after `contexts` evenly spaced contexts of `length` tokens, in float64, and the bound of a softmax."""
    base = base.double()
    length = min(length, max_context(base), len(tokens) - 2)
    places = spread_places(contexts, len(tokens), max(0, length))
    current_progress().say(f"{len(places):,} contexts of {length} tokens")
    spectrum = log_prob_spectrum(next_log_probs(base, tokens, places, length), confidence=confidence)
    return spectrum, softmax_bound(base)


@torch.no_grad()
def softmax_bound(base: SavedBase) -> int | None:
    """The width of the vectors that meet the output weights, one for the normaliser, and one more where there are biases."""
    if isinstance(base, NetworkBase):
        head = getattr(base.network, "head", None)
        biases = getattr(head, "bias", None) is not None
        if isinstance(head, MixtureHead):
            return head.latent.out_features // head.components + 1 + biases
        vectors = base.network.hidden(prompts_of([[0]]).to(next(base.parameters()).device))
        return vectors.shape[-1] + 1 + biases
    output = base.model.get_output_embeddings()
    if not isinstance(output, torch.nn.Linear):
        return None
    return output.in_features + 1 + (output.bias is not None)


MAX_ROWS = 12  # positions in the table for people
NOTES = (
    "bound: the mean over data of the logsumexp of the logits, minus the log of the mean of its exponential over the "
    "model's draws; it is at most KL(data prefixes || model prefixes). 0 or less says nothing, as for logits whose "
    "logsumexp was never trained (E-Forcing trains it).",
    "ratio: share of positions where the true token is more probable after the model's own outputs; 0.5 is no better.",
)


@dataclass(frozen=True)
class ExposureResult:
    """The bound of the model; those of the baseline and their ratio, if there is one; and the report."""

    model: Exposure
    baseline: Exposure | None
    ratio: ExposureRatio | None
    report: Report


def analyse_exposure(model: Model, settings: ExposureConfig) -> ExposureResult:
    """Bounds on the exposure bias of a base by position, and their ratio to those of a baseline; the energy is not used."""
    models = {"model": model}
    if settings.against is not None:
        models["baseline"] = _load_baseline(model, settings.against)
    run = model.trained if model.chunking == Chunking() else None
    if run is not None and run.length.stream:
        bounds, ratio, measured_on = _exposure_of_stream(models, run, settings)
    else:
        bounds, ratio, measured_on = _exposure_of_sequences(models, settings)
    bound, baseline = bounds["model"], bounds.get("baseline")
    facts: dict[str, Any] = {
        "model": model.name,
        "device": model.placement,
        "measured_on": measured_on,
        "bound": bound.mean,
        "seed": settings.seed,
    }
    if baseline is not None and ratio is not None:
        facts |= {"against": settings.against, "bound_of_baseline": baseline.mean, "decode": settings.decode}
        facts["ratio"] = ratio.ratio
    if settings.plot is not None:
        colours = {"model": plots.TILTED, "baseline": plots.BASE}
        lines = {
            name: (colours[name], [at.position for at in side.at], [at.bound for at in side.at])
            for name, side in bounds.items()
        }
        figure = plots.interval_bands(lines, x="position", y="bound on exposure bias (nats)")
        facts["plot"] = plots.save_figure(figure, Path(settings.plot))
    rows = _rows(bound, baseline, ratio)
    count = min(len(rows), MAX_ROWS)
    shown = [rows[place * (len(rows) - 1) // max(1, count - 1)] for place in range(count)]
    notes = [*NOTES[: 1 if ratio is None else 2]]
    if count < len(rows):
        notes.append(f"{count} of {len(rows)} positions are shown; --json has all.")
    tables, json_tables = {"by_position": shown}, {"by_position": rows}
    report = Report("esscher analyse exposure", facts, tables, notes, json_tables=json_tables)
    return ExposureResult(bound, baseline, ratio, report)


def _load_baseline(model: Model, folder: str) -> Model:
    """The baseline, whose sequences must be those of the model."""
    other = load(folder, device=str(model.device), **vars(replace(model.chunking, max_length=model.base.space.max_length)))
    check_same_tokens(model, other)
    if model.base.space != other.base.space:
        raise ValueError(
            f"{model.name} has sequences of {model.base.space}, {other.name} of {other.base.space}. Nothing was measured; "
            f"compare models of the same sequences."
        )
    return other


def _exposure_of_sequences(
    models: Mapping[str, Model], settings: ExposureConfig
) -> tuple[dict[str, Exposure], ExposureRatio | None, str]:
    """The bound of each model, the ratio of two, and the data that they were measured on."""
    rng, confidence = SeededRng(settings.seed), settings.confidence
    data, description = comparison_data(models["model"].untilted(), settings.source)
    x = random_rows(data, settings.sequences, rng=rng.stream("sequences"))
    x = Sequences(x.tokens, x.start, torch.minimum(x.stop, x.start + settings.longest))
    prompts, _ = unique_prompts(x)
    count = settings.draws * len(x) if len(prompts) == 1 else settings.draws
    sampler, say = Ancestral(max_new_tokens=settings.longest), current_progress().say
    bounds = {}
    for name, model in models.items():
        draws = ResumableByDraws(sampler, say=say)(Tilted(model.base), prompts, count, rng=rng.stream(name))
        bounds[name] = exposure_bias.exposure(model.base, x, draws, confidence=confidence)
    ratio = None
    if "baseline" in models:
        (base, baseline), greedy = (model.base for model in models.values()), settings.decode == "greedy"
        ratio = exposure_bias.exposure_ratio(base, baseline, x, greedy=greedy, confidence=confidence, rng=rng.stream("outputs"))
    return bounds, ratio, f"{description}: {len(x):,} sequences, up to {settings.longest} tokens of each"


def _exposure_of_stream(
    models: Mapping[str, Model], run: TrainRun, settings: ExposureConfig
) -> tuple[dict[str, Exposure], ExposureRatio | None, str]:
    """The same at places within one text."""
    model, rng = models["model"], SeededRng(settings.seed)
    if settings.source is None:
        tokens, description = prepare_stream_data(run).test.tokens, "held out of the training data of the model"
    else:
        tokens, description = model.read_stream(settings.source).tokens, settings.source.source
    length = min(settings.longest, model.base.space.max_length)
    windows, warmup = stream_windows(tokens, length, settings)
    sources, confidence = ((1, len(windows)),), settings.confidence
    bounds, outputs = {}, []
    for name, side in models.items():
        data, drawn, scores = score_stream_positions(side.streaming_base(), windows, warmup, settings, rng=rng.stream(name))
        bounds[name] = exposure_bias.exposure_of(data, drawn, sources=sources, confidence=confidence)
        outputs.append(scores)
    ratio = None
    if "baseline" in models:
        replicate, greedy = torch.arange(len(windows)), settings.decode == "greedy"
        ratio = exposure_bias.ratio_of(outputs[0], outputs[1], replicate, greedy=greedy, confidence=confidence)
    places = f"{len(windows):,} places of {length} tokens, each after {warmup:,} that the memory read"
    return bounds, ratio, f"{description}: {places}"


def _rows(bound: Exposure, baseline: Exposure | None, ratio: ExposureRatio | None) -> list[dict[str, Any]]:
    """A row for each position that has an estimate."""
    bounds = {at.position: at for at in bound.at}
    others = {at.position: at.bound for at in (() if baseline is None else baseline.at)}
    ratios = {at.position: at.ratio for at in (() if ratio is None else ratio.at)}
    rows = []
    for position in sorted({*bounds, *others, *ratios}):
        columns = {name: getattr(bounds.get(position), name, None) for name in ("sequences", "draws", "bound")}
        against = {} if ratio is None else {"of baseline": others.get(position), "ratio": ratios.get(position)}
        rows.append({"position": position, **columns, **against})
    return rows


def stream_windows(tokens: Int[Tensor, "N"], length: int, settings: ExposureConfig) -> tuple[Int[Tensor, "R W"], int]:
    """Segments of so many tokens, evenly spaced and disjoint, each after the tokens before it; and the number of these."""
    warmup = min(settings.warmup, (len(tokens) - length) // 2)
    count = min(settings.sequences, max(0, len(tokens) - warmup) // length)
    if count < 2:
        raise ValueError(
            f"A text of {len(tokens):,} tokens has fewer than two places of {length}. Nothing was measured; give more text."
        )
    places = spread_places(count, len(tokens) - length + 1, warmup)
    return tokens[places[:, None] + torch.arange(-warmup, length)], warmup


@torch.no_grad()
def score_stream_positions(
    base: NetworkBase, windows: Int[Tensor, "R W"], warmup: int, settings: ExposureConfig, *, rng: Rng
) -> tuple[LogSumExps, LogSumExps, SelfConditionedScores]:
    """Scores of a base with a memory at the places of a stream: of the data, of its draws, and after its own outputs."""
    length, count, device = windows.shape[1] - warmup, settings.draws, next(base.parameters()).device
    data: list[Tensor] = []
    drawn: list[Tensor] = []
    outputs = []
    for number, some in enumerate(torch.split(windows.to(device), max(1, rows_at_once(base.space) // count))):
        memory = base.init_memory(len(some))
        for first in range(0, warmup, base.space.max_length):
            _, memory = base.read(memory, some[:, first : min(first + base.space.max_length, warmup)])
        stop = torch.full((len(some),), length, device=device)
        with_memory, segment = WithMemory(base, memory), Sequences(some[:, warmup:], torch.zeros_like(stop), stop)
        segment_rng = rng.stream(number)
        draws, _ = draw(with_memory, empty_prompts(len(some)).to(device), count, rng=segment_rng, max_new_tokens=length)
        for x, parts in ((segment, data), (draws, drawn)):
            parts.append(point_values(x, log_probs_and_logsumexp(with_memory, x)[1].double(), length).cpu())
        greedy = settings.decode == "greedy"
        outputs.append(
            exposure_bias.self_conditioned_scores(with_memory, segment, greedy=greedy, rng=segment_rng.stream("outputs"))
        )
        current_progress().say(f"{sum(map(len, data)):,} of {len(windows):,} places")
    of_data, of_draws = (  # all rows have one length and count alike: nothing ends in a stream
        LogSumExps(x, torch.ones_like(x, dtype=torch.bool), torch.ones(len(x)).double(), torch.arange(len(x)) // rows)
        for x, rows in ((torch.cat(data), 1), (torch.cat(drawn), count))
    )
    scores = SelfConditionedScores(torch.cat([part.log_prob for part in outputs]), torch.cat([part.valid for part in outputs]))
    return of_data, of_draws, scores
