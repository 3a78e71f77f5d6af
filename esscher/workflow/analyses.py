"""What a tilted model does differently from its base, and whether the data do the same; how far the context of bases helps, and
whether their heads are a bottleneck. A classifier is in `discriminate`, exposure bias in `exposure`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from esscher.bases.network import NetworkBase
from esscher.core.chunking import Chunking
from esscher.core.estimate import Estimate
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, prompts_of, unique_prompts
from esscher.core.target import Tilted, flat
from esscher.data.config import SourceConfig
from esscher.estimators.continuations import NextTokens, next_tokens
from esscher.estimators.log_prob_rank import LogProbSpectrum, log_prob_spectrum, next_log_probs, singular_curve
from esscher.estimators.long_context import HARDEST_SHARES, THRESHOLD, ContextLosses, context_losses, spread_places
from esscher.estimators.perplexity import as_perplexity
from esscher.estimators.populations import (
    NAMES,
    EnergyComparison,
    Populations,
    UniqueNgrams,
    compare_energies,
    populations,
    unique_ngrams,
)
from esscher.estimators.reliability import TOO_FEW
from esscher.heads.mixture import MixtureHead
from esscher.hub import SavedBase
from esscher.reports import plots
from esscher.reports.report import Report
from esscher.reports.tables import token_name
from esscher.samplers.importance import Importance
from esscher.training.resumable import collect_draws
from esscher.workflow.config.analyse import ContextConfig, EnergiesConfig, NextTokenConfig, NgramsConfig, RankConfig
from esscher.workflow.measure_stream import read_model_stream
from esscher.workflow.model import Model, load, max_context
from esscher.workflow.subsets import random_rows
from esscher.workflow.tilt import energy_data

R = TypeVar("R")


@dataclass(frozen=True)
class Analysis(Generic[R]):
    """What was estimated, and its report."""

    result: R
    report: Report


def draw_populations(
    target: Tilted, x: Sequences, draws: int, *, rng: Rng, say: Callable[[str], None] = lambda text: None
) -> Populations:
    """The data `x` beside `draws` weighted draws of the base after each different prompt; after a single one, for each row."""
    if target.energy is flat:
        raise ValueError("There is no energy, so the tilted model is the base. Nothing was drawn; name one with --energy.")
    if len(x) == 0:
        raise ValueError("There is no sequence to compare with. Nothing was drawn; give more data.")
    if draws < 2:
        raise ValueError(
            f"A draw of the tilted model is chosen from at least 2 draws of the base, not {draws}. Nothing was drawn."
        )
    prompts, _ = unique_prompts(x)
    count = draws * len(x) if len(prompts) == 1 else draws
    return populations(x, collect_draws(Importance(), target, prompts, count, rng=rng, say=say))


def comparison_data(model: Model, source: SourceConfig | None) -> tuple[Sequences, str]:
    """The data to compare with as sequences of the model, by default held-out ones, and what to call them."""
    if source is None:
        trained = "energy" if model.is_tilted else "model"
        return model.training_splits(energy_data(model)).test, f"held out of the training data of the {trained}"
    data = model.data.read(source, model.trained)
    return data.x, data.description


def ess_notes(ess: Estimate) -> list[str]:
    """Advice where the draws after a prompt are worth too few."""
    if ess.value >= TOO_FEW:
        return []
    return [
        f"The effective sample size of the draws after a prompt is only {ess.value:.1f}: the numbers of the tilted model "
        f"are biased towards the base; raise --draws."
    ]


def _draw_comparison(model: Model, settings: EnergiesConfig) -> tuple[Populations, dict[str, Any], list[str]]:
    """Draws beside the data, facts on them, and advice where there are too few."""
    (data, description), rng = comparison_data(model, settings.source), SeededRng(settings.seed)
    x = random_rows(data, settings.sequences, rng=rng.stream("sequences"))
    pops = draw_populations(model.target, x, settings.draws, rng=rng.stream("draws"), say=current_progress().say)
    facts = {
        "model": model.name, "energy": model.energy_name, "data": description, "seed": settings.seed, "sequences": len(x),
        "drawn_from_the_base": pops.draws.cost, "ess": pops.ess(),
    }  # fmt: skip
    return pops, facts, ess_notes(pops.ess())


def analyse_energies(model: Model, settings: EnergiesConfig) -> Analysis[EnergyComparison]:
    """Compare the energies of data, base and tilted model.

    Args:
        model: A tilted model.
        settings: The data, and how much is compared.

    Returns:
        Means, distances and a histogram, and the report.
    """
    pops, facts, notes = _draw_comparison(model, settings)
    rng = SeededRng(settings.seed).stream("resamples")
    result = compare_energies(model.target, pops, confidence=settings.confidence, rng=rng)
    histogram = result.histogram
    if settings.plot is not None:
        figure = plots.step_histograms(histogram.edges, histogram.shares, label="energy (nats)")
        facts["plot"] = plots.save_figure(figure, Path(settings.plot))
    columns = {"mean": result.mean, "above data": result.above, "distance to data": result.distance}
    tables = {"energies": [{"of": name} | {column: values.get(name) for column, values in columns.items()} for name in NAMES]}
    shares = {"histogram": {"edges": histogram.edges, **histogram.shares}}
    return Analysis(result, Report("esscher analyse energies", facts, tables, notes, json_tables=tables | shares))


def analyse_ngrams(model: Model, settings: NgramsConfig) -> Analysis[list[UniqueNgrams]]:
    """Compare how much data, base and tilted model repeat themselves.

    Args:
        model: A tilted model.
        settings: The data, how much is compared, and the longest n-gram.

    Returns:
        The share of different n-grams for each n, and the report.
    """
    pops, facts, notes = _draw_comparison(model, settings)
    result = unique_ngrams(pops, range(1, settings.longest + 1), confidence=settings.confidence)
    if settings.plot is not None:
        lines: dict[str, list[Estimate]] = {name: [row.ratio[name] for row in result] for name in NAMES}
        figure = plots.estimate_lines([row.n for row in result], lines, x="n", y="ratio of unique n-grams")
        facts["plot"] = plots.save_figure(figure, Path(settings.plot))
    rows = [{"n": row.n, **row.ratio, **{f"{name} above data": value for name, value in row.above.items()}} for row in result]
    return Analysis(result, Report("esscher analyse n-grams", facts, {"unique_ngrams": rows}, notes))


def analyse_next_token(model: Model, settings: NextTokenConfig) -> Analysis[NextTokens]:
    """Compare what comes next under the base and under the tilted model.

    Args:
        model: A tilted model.
        settings: The prompt, and how many tokens are shown.

    Returns:
        Probabilities of the next tokens, and the report.
    """
    if not model.is_tilted:
        raise ValueError("There is no energy, so the tilted model is the base. Nothing was computed; name one with --energy.")
    prompt, notes = encode_prompt(model, settings.prompt)
    rng = SeededRng(settings.seed)
    result = next_tokens(model.target, prompt, top=settings.top, draws=settings.draws, confidence=settings.confidence, rng=rng)
    tokens = prompt.tokens[0].tolist()
    names = [token_name(row.token, tokens, model.tokenizer) for row in result.rows]
    rows = [
        {"text": name, "token": row.token, "base": row.base, "joint": row.joint, "joint over base": _over(row.joint, row.base)}
        for name, row in zip(names, result.rows, strict=True)
    ]
    facts: dict[str, Any] = {
        "model": model.name, "energy": model.energy_name, "prompt": settings.prompt, "prompt_tokens": int(prompt.start[0]),
        "seed": settings.seed,
    }  # fmt: skip
    if settings.plot is not None:
        series = {"base": [row.base for row in result.rows], "joint": [row.joint for row in result.rows]}
        figure = plots.estimate_bars(names, series, label="probability of the next token")
        facts["plot"] = plots.save_figure(figure, Path(settings.plot))
    return Analysis(result, Report("esscher analyse next-token", facts, {"next_tokens": rows}, [*notes, *result.warnings]))


def encode_prompt(model: Model, text: str) -> tuple[Sequences, list[str]]:
    """The prompt as tokens, and a note where the model was trained after prompts of another length."""
    prompt = prompts_of(model.encode_prompts([text]))
    length = int(prompt.start[0])
    if length == 0 and model.prompt_tokens > 0:
        raise ValueError(
            f"The prompt is empty, and this model continues prompts of {model.prompt_tokens} tokens. Nothing was computed; "
            f"give --prompt some text."
        )
    if model.chunking.prompt_tokens is None or length == model.prompt_tokens:
        return prompt, []
    return prompt, [f"The energy was trained after prompts of {model.prompt_tokens} tokens, and this one has {length}."]


def _over(joint: Estimate, base: Estimate) -> Estimate | None:
    return joint.map(lambda share: share / base.value) if base.value > 0 else None


def check_same_tokens(model: Model, other: Model) -> None:
    """Refuse to compare, token by token, models whose tokens differ."""
    if not model.data.same_tokens(other.data):
        raise ValueError(
            f"{model.name} and {other.name} have different tokens, so their numbers per token are not of the same things. "
            f"Nothing was measured; compare models with one tokenizer."
        )


def analyse_context(settings: ContextConfig) -> Analysis[ContextLosses]:
    """Compare how far back the context of models helps.

    Args:
        settings: Folders of the models, the text, and the lengths of context.

    Returns:
        The losses of all models by length of context, and the report.
    """
    models = {str(folder): load(folder) for folder in settings.models}
    first, confidence = next(iter(models.values())), settings.confidence
    for model in models.values():
        check_same_tokens(model, first)
    tokens = read_model_stream(first, settings.source).tokens
    places = spread_places(settings.positions, len(tokens), settings.longest)
    losses = {
        name: context_losses(model.base, tokens, places, settings.lengths, max_context=max_context(model.base))
        for name, model in models.items()
    }
    result = ContextLosses(settings.lengths, losses)
    nats = {name: result.by_length(name, confidence=confidence) for name in losses}
    rows = [
        {"context": length, **as_perplexity({name: line[place] for name, line in nats.items()})}
        for place, length in enumerate(result.lengths)
    ]

    def effective(name: str, share: float) -> Estimate:
        return result.effective_length(name, share, confidence=confidence, rng=SeededRng(settings.seed, "places"))

    lengths = [{"model": name} | {f"hardest {share:g}": effective(name, share) for share in HARDEST_SHARES} for name in nats]
    facts: dict[str, Any] = {
        "models": len(nats), "data": settings.source.source, "places": result.places, "seed": settings.seed
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
    """Compare the ranks of models' next-token distributions on one text; each model reads it as its own tokens.

    Args:
        settings: Folders of the models, the text, and the contexts.

    Returns:
        For each model its rank and singular values, and the report.
    """
    results: dict[str, LogProbSpectrum] = {}
    rows, say = [], current_progress().say
    notes = [
        "softmax_at_most: the highest rank of one softmax over vectors as wide as the model's, whatever its weights; mean "
        "divergence: KL of the distributions after two different contexts, in nats."
    ]
    for name in settings.models:
        model = load(name, chunking=Chunking(max_length=1))
        tokens = read_model_stream(model, settings.source).tokens
        say(f"{name}:")
        spectrum, bound = measure_rank(
            model.base, tokens, settings.contexts, settings.length, confidence=settings.confidence, say=say
        )
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
    facts: dict[str, Any] = {"models": len(results), "data": settings.source.source}
    if settings.plot is not None:
        lines = {name: singular_curve(spectrum.singular) for name, spectrum in results.items()}
        figure = plots.cumulative_distribution(lines, x="singular value over the largest", y="share not above it")
        facts["plot"] = plots.save_figure(figure, Path(settings.plot))
    singular = {"singular_values": {name: spectrum.singular.tolist() for name, spectrum in results.items()}}
    tables = {"ranks": rows}
    return Analysis(results, Report("esscher analyse rank", facts, tables, notes, json_tables=tables | singular))


def measure_rank(
    base: SavedBase,
    tokens: Int[Tensor, "N"],
    contexts: int = 1000,
    length: int = 64,
    *,
    confidence: float = 0.95,
    say: Callable[[str], None] = lambda text: None,
) -> tuple[LogProbSpectrum, int | None]:
    """The spectrum after `contexts` evenly spaced contexts of `length` tokens, in float64, and the bound of a softmax."""
    base = base.double()
    length = min(length, max_context(base), len(tokens) - 2)
    places = spread_places(contexts, len(tokens), max(0, length))
    say(f"{len(places):,} contexts of {length} tokens")
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
