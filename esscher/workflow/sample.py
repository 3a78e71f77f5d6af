"""Drawing from a model, and scoring texts to their end symbol, if any; tokens of the prompt do not count.

Samplers that choose among candidates say in a line for each prompt whether these were enough, and show them on request, equal
ones in one row: `share` is their share of the weight and estimates p(x), `times` how often they were drawn, `chosen` how many
draws they became. Processes share the draws of each prompt.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esscher.bases.fsdp import gather_in_lockstep
from esscher.bases.network import NetworkBase, with_prompt_tokens
from esscher.bases.truncated import truncated
from esscher.core.distributed import is_main_process, rank, world_size
from esscher.core.draws import Draws, Sampler
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, sequences
from esscher.core.target import Energy, Tilted, flat
from esscher.data.sources import read_lines
from esscher.data.tokenizers import Tokenizer
from esscher.estimators.expectations import per_prompt
from esscher.estimators.log_z import log_z, weight_bounds
from esscher.estimators.reliability import StoredEstimates, missing_of, reliability
from esscher.reports.report import Report
from esscher.samplers.accept_reject import Metropolis, QuasiRejection, Rejection
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.ladder import Ladder
from esscher.samplers.progress import CountingBase, ProgressCounter, with_progress
from esscher.samplers.registry import SAMPLERS
from esscher.samplers.scoring import log_prob, log_weight
from esscher.samplers.sir import SIR, AdaptiveSIR, CandidateSelection, selected_draws
from esscher.samplers.twists import ParticleSIR
from esscher.training.collectives import all_gather_objects, init_process_group
from esscher.training.resumable import ROWS_BY_DRAWS
from esscher.workflow.calibration import drawing, draws_on_disk, peak_memory
from esscher.workflow.config.sample import SampleConfig, ScoreConfig
from esscher.workflow.cost import Cost, before_start, duration
from esscher.workflow.model import Model
from esscher.workflow.processors import PromptSet
from esscher.workflow.proposal import NamedProposal, named_proposal, with_proposal

Stored = Callable[[Sequence[int]], StoredEstimates | None]  # what is known of what follows a prompt
DRAWN = {False: "drawn_from_the_base", True: "drawn_from_the_proposal"}  # how reports call it, by whether there is a proposal
CANDIDATES_PER_DRAW = 16  # of a shared pool, at most
REMEDY = (
    "Raise --sampler.max-candidates, or draw from a model that shows it (--proposal), such as a student that was distilled in "
    "stages (esscher distil --distil.method cyclical)."
)


@dataclass(frozen=True)
class SampleResult:
    """The draws as rows, prompt by prompt, and for samplers that choose among candidates what they chose from."""

    samples: list[dict[str, Any]]
    tokens: list[list[int]]  # of each sample, its prompt included
    facts: dict[str, Any]
    notes: list[str]
    pools: list[dict[str, Any]] = field(default_factory=list)
    candidates: list[list[dict[str, Any]]] = field(default_factory=list)  # for each prompt, the largest share first
    report: Report = field(default_factory=lambda: Report("esscher sample", {}, {}))

    @property
    def texts(self) -> list[str]:
        """The texts of the draws; an error for images."""
        if any("text" not in row for row in self.samples):
            raise ValueError("The draws are images, not texts. They are in the file that the report names, and in `tokens`.")
        return [row["text"] for row in self.samples]


def sample_model(model: Model, settings: SampleConfig) -> SampleResult:
    """Draw from a model, tilted or not, as `Model.sample` describes."""
    default = model.data.samples_file
    home = Path() if model.folder is None or model.packaged_name is not None else model.folder
    file = None if default is None else home / default
    if settings.out is not None:
        file = Path(settings.out)
        if file.exists():
            raise ValueError(f"The file {file} exists already. Nothing was drawn; choose another name, or remove it.")
    proposal = named_proposal(model, settings)
    sampler = settings.sampler or (pool_for(settings.draws) if model.is_tilted else Ancestral())
    if proposal is not None:
        with_proposal(sampler, proposal.model.base)  # refuses a sampler that takes none
    named = bool(settings.prompts)
    if model.stored_prompt is not None and not named:
        settings = replace(settings, prompts=(model.stored_prompt,))
    prompts = model.data.sample_prompts(settings, model.trained)
    before_start(partial(_cost, model, sampler, prompts, settings, file))
    result = _draw_together(model, sampler, prompts, settings, proposal)
    result = replace(result, notes=[*_prompt_notes(model, settings, named), *result.notes])
    if file is not None and is_main_process():
        model.data.save_samples(file, result.samples, result.tokens, prompts)
    facts = {
        "out": file, **model.facts, "sampler": SAMPLERS.kind_of(sampler), **({} if proposal is None else proposal.facts),
        "seed": settings.seed, **result.facts,
    }  # fmt: skip
    tables, json_tables = _tables(result, prompts.labels, settings.show_candidates)
    notes, details = (
        [*_pool_lines(result.pools), *result.notes],
        ("sampler", *DRAWN.values(), "independent_draws", "pools"),
    )
    report = Report("esscher sample", facts, tables, notes, json_tables=json_tables, details=details, tables_first=True)
    return replace(result, report=report)


def pool_for(draws: int) -> AdaptiveSIR:
    """A shared pool of candidates that grows with the draws: no candidate holds more than one draw's share of the
    weight, so that a thousand draws have the rates of a thousand texts, not of a few."""
    default = AdaptiveSIR()
    most = max(default.max_candidates, CANDIDATES_PER_DRAW * draws)
    return replace(default, min_ess=max(default.min_ess, float(draws)), max_candidates=most)


def _cost(model: Model, sampler: Any, prompts: PromptSet, settings: SampleConfig, file: Path | None) -> Cost:
    """The fewest sequences that the sampler draws from the base; how many more it takes may depend on the energy."""
    least, most = settings.draws, settings.draws
    if isinstance(sampler, SIR | ParticleSIR):
        least = most = sampler.num_candidates * (1 if getattr(sampler, "shared", True) else settings.draws)
    elif isinstance(sampler, AdaptiveSIR):
        sets = 1 if sampler.shared else settings.draws
        least, most = (
            (1 + sets) * count for count in (sampler.min_candidates, sampler.max_candidates)
        )  # a pilot, and the draws
    elif isinstance(sampler, Metropolis):
        least = most = (1 + sampler.steps) * settings.draws
    elif isinstance(sampler, Ladder):
        least, most = (
            (1 + rungs * sampler.moves) * (sampler.pilot + settings.draws * sampler.num_particles)
            for rungs in (1, sampler.max_rungs)
        )
    unbounded = isinstance(sampler, Rejection | QuasiRejection)
    phase = drawing("drawing", sampling_target(model, settings, prompts), prompts.x, least, at_once=ROWS_BY_DRAWS)
    notes, times = [], len(prompts.labels)
    if unbounded:
        notes.append(
            f"{SAMPLERS.kind_of(sampler)} draws until {settings.draws:,} are accepted after each prompt: it takes longer."
        )
    elif most > least:
        longest = duration(phase.seconds * most / least)
        notes.append(f"Up to {times * most:,} draws, {longest}, if the weights are so uneven that all candidates are needed.")
    disk = draws_on_disk(times * settings.draws, model.base.space.max_length)
    out, facts = None if file is None else str(file), {"device": model.placement, "sampler": SAMPLERS.kind_of(sampler)}
    return Cost("esscher sample", (phase,), out, disk, peak_memory(model.base), tuple(notes), facts)


def sampling_target(model: Model, settings: SampleConfig, prompts: PromptSet) -> Tilted:
    """The model with its base truncated as the settings say; where images are completed, on what is left of them."""
    base = truncated(model.target.base, **vars(settings.truncation))
    if prompts.prompt_tokens is not None:
        if not isinstance(base, NetworkBase):
            raise ValueError("Images are completed by a network without truncation. Nothing was drawn; leave truncations out.")
        base = with_prompt_tokens(base, prompts.prompt_tokens)
    return Tilted(base, model.target.energy)


def _draw_together(
    model: Model, sampler: Sampler, prompts: PromptSet, settings: SampleConfig, proposal: NamedProposal | None
) -> SampleResult:
    """All draws, of which each process makes its share."""
    draw = partial(_draw, model, sampler, prompts, settings, proposal)
    if world_size() == 1:
        return draw(settings.draws, SeededRng(settings.seed))
    init_process_group()
    share = len(range(rank(), settings.draws, world_size()))
    with gather_in_lockstep():
        rng = SeededRng(settings.seed).stream("rank", rank())
        result = draw(share, rng) if share else SampleResult([], [], {}, [])
    parts = all_gather_objects({name: value for name, value in vars(result).items() if name != "report"})
    merged = [SampleResult(**part) for part in parts if part["samples"]]
    return _merge_processes(merged, len(prompts.labels), DRAWN[proposal is not None])


def _draw(
    model: Model, sampler: Sampler, prompts: PromptSet, settings: SampleConfig, proposal: NamedProposal | None, count: int,
    rng: Rng,
) -> SampleResult:  # fmt: skip
    tally, plain = ProgressCounter(current_progress().say), sampling_target(model, settings, prompts)
    target, stored = with_progress(plain, tally), None if settings.truncates else model.stored_estimates
    sampler = with_proposal(sampler, None if proposal is None else CountingBase(proposal.base_for(plain), tally))
    if isinstance(sampler, AdaptiveSIR) and sampler.evidence is None:
        sampler = replace(sampler, evidence=partial(evidence_agrees, energy=target.energy, stored=stored))
    if isinstance(sampler, ParticleSIR) and sampler.twist is None and sampler.proposal is None and model.twist is not None:
        sampler = replace(sampler, twist=model.twist.twist)
    selections: list[CandidateSelection] = []
    if isinstance(sampler, SIR | AdaptiveSIR | ParticleSIR):
        selections = sampler.choose(target, prompts.x, count, rng=rng)
    draws = selected_draws(selections) if selections else sampler(target, prompts.x, count, rng=rng)
    samples = sample_rows(model, prompts.labels, draws, target)
    tokens = [row[:stop] for row, stop in zip(draws.x.tokens.tolist(), draws.x.stop.tolist(), strict=True)]
    facts = {DRAWN[proposal is not None]: draws.cost, "independent_draws": draws.independent}
    pools = pool_rows(prompts.labels, selections, model.target.energy, stored)
    if isinstance(sampler, Ladder):
        pools = ladder_rows(prompts, draws, model.target.energy, stored)
    groups = weighted_candidates(selections, target, model.tokenizer) if selections and "text" in samples[0] else []
    candidates = [[{key: value for key, value in vars(row).items() if key != "point"} for row in group] for group in groups]
    notes = [*_notes(model, prompts, pools), *([] if pools else evidence_notes(draws, target, stored))]
    return SampleResult(samples, tokens, facts, notes, pools, candidates)


def evidence_agrees(draws: Draws, *, energy: Energy, stored: Stored | None) -> Tensor:
    """For each prompt whether its weighted draws show what is known of the tilted model: see `Reliability.missing`."""
    rows = [reliability(row, energy=energy, stored=_stored_after(row, stored))[0] for row in per_prompt(draws)]
    return torch.tensor([not row.missing for row in rows])


def _stored_after(draws: Draws, stored: Stored | None) -> StoredEstimates | None:
    """What is known of what follows the prompt of these draws."""
    return None if stored is None else stored(draws.x.tokens[0, : int(draws.x.start[0])].tolist())


def evidence_notes(draws: Draws, target: Tilted, stored: Stored | None) -> list[str]:
    """Where draws that were not chosen among candidates lack what is known of the tilted model: after how many prompts, with
    the reason for the first."""
    if target.energy is flat:
        return []
    rows = [missing_of(row, energy=target.energy, stored=_stored_after(row, stored)) for row in per_prompt(draws)]
    lacking = [missing for missing in rows if missing]
    if not lacking:
        return []
    where = "" if len(rows) == 1 else f" after {len(lacking)} of {len(rows)} prompts"
    return [f"The draws{where} are unreliable: {'; '.join(lacking[0])}. {REMEDY}"]


def _merge_processes(parts: Sequence[SampleResult], prompts: int, drawn: str) -> SampleResult:
    """What several processes drew, prompt by prompt."""
    counts = [len(part.samples) // prompts for part in parts]
    places = [
        (part, row)
        for prompt in range(prompts)
        for part, count in zip(parts, counts, strict=True)
        for row in range(prompt * count, (prompt + 1) * count)
    ]
    return SampleResult(
        [part.samples[row] for part, row in places],
        [part.tokens[row] for part, row in places],
        {drawn: sum(part.facts[drawn] for part in parts),
         "independent_draws": all(part.facts["independent_draws"] for part in parts), "processes": world_size()},
        list(dict.fromkeys(note for part in parts for note in part.notes)),
        [part.pools[prompt] for prompt in range(prompts) for part in parts if part.pools],
        [[row for part in parts for row in part.candidates[prompt]] for prompt in range(prompts) if parts[0].candidates],
    )  # fmt: skip


def sample_rows(model: Model, labels: Sequence[Any], draws: Draws, target: Tilted) -> list[dict[str, Any]]:
    """A row for each draw."""
    count, texts = draws.log_weight.shape[1], model.data.decode(draws.x.points())
    columns = draws.log_base.view(-1), -log_weight(target, draws.x), draws.log_weight.view(-1)
    numbers = zip(*(column.tolist() for column in columns), strict=True)
    return [
        {
            "prompt": labels[row // count],
            **({"draw": row % count} if texts is None else {"text": texts[row]}),
            "log_base": log_base,
            "energy": energy,
            "log_weight": weight,
        }
        for row, (log_base, energy, weight) in enumerate(numbers)
    ]


@dataclass(frozen=True)
class WeightedCandidate:
    """A point that was drawn `times` times; its share of the weight, and how many draws it became."""

    point: tuple[int, ...]
    text: str
    log_base: float
    energy: float
    share: float
    times: int
    chosen: int


def weighted_candidates(
    selections: Sequence[CandidateSelection], target: Tilted, tokenizer: Tokenizer
) -> list[list[WeightedCandidate]]:
    """For each prompt its different candidates, the largest share first."""
    return [_candidates_of_prompt(draws, selected, target, tokenizer) for _, draws, selected, _ in _by_prompt(selections)]


def _by_prompt(selections: Sequence[CandidateSelection]) -> list[tuple[int, Draws, Tensor, bool]]:
    """Each prompt, its candidates, which of them were selected, and whether they were enough."""
    parts = [
        zip(group.prompt.tolist(), per_prompt(group.candidates), group.selected, group.large_enough.tolist(), strict=True)
        for group in selections
    ]
    return sorted(chain.from_iterable(parts), key=lambda part: part[0])


def _candidates_of_prompt(draws: Draws, selected: Tensor, target: Tilted, tokenizer: Tokenizer) -> list[WeightedCandidate]:
    share = torch.softmax(draws.log_weight[0], -1).tolist()
    chosen = torch.bincount(selected, minlength=len(share)).tolist()
    # the weight of an independent candidate, drawn from the base, is -E; that of a particle depends on its history
    plain = draws.independent and draws.max_log_ratio == 0
    weight = draws.log_weight[0] if plain else log_weight(target, draws.x)
    rows: dict[tuple[int, ...], list[int]] = {}
    for row, point in enumerate(draws.x.points()):
        rows.setdefault(tuple(point), []).append(row)
    texts = tokenizer.decode([list(point) for point in rows])
    candidates = [
        WeightedCandidate(
            point,
            text,
            float(draws.log_base[0, same[0]]),
            -float(weight[same[0]]),
            sum(share[row] for row in same),
            len(same),
            sum(chosen[row] for row in same),
        )
        for (point, same), text in zip(rows.items(), texts, strict=True)
    ]
    return sorted(candidates, key=lambda candidate: -candidate.share)


def pool_rows(
    labels: Sequence[Any], selections: Sequence[CandidateSelection], energy: Energy, stored: Stored | None = None
) -> list[dict[str, Any]]:
    """For each prompt: the number of candidates, their effective sample size, log Z and its reliability, and what is known of
    the tilted model that they lack. log Z is None where it has no interval: particles depend on each other, and one candidate
    has no spread. `stored` gives what is known by prompt."""
    rows = []
    for prompt, draws, _, large_enough in _by_prompt(selections):
        known = _stored_after(draws, stored)
        (entry,), count = reliability(draws, energy=energy, stored=known), draws.log_weight.shape[1]
        rows.append({
            "prompt": labels[prompt], "candidates": count, "ess": entry.ess,
            "largest_share": float(torch.softmax(draws.log_weight[0], -1).max()), "large_enough": large_enough,
            "log_z": log_z(draws, bounds=weight_bounds(draws, energy)) if draws.independent and count > 1 else None,
            "verdict": entry.verdict, "advice": entry.advice, "missing": list(entry.missing),
        })  # fmt: skip
    return rows


def _count(number: float) -> str:
    """An effective number of draws, to a draw where there are many."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def ladder_rows(prompts: PromptSet, draws: Draws, energy: Energy, stored: Stored | None = None) -> list[dict[str, Any]]:
    """For each prompt: how many runs of a ladder were made, one for each draw, their log Z and its reliability."""
    judged, rows = reliability(draws, energy=energy), []
    for number, (label, alone) in enumerate(zip(prompts.labels, per_prompt(draws), strict=True)):
        count, entry = draws.log_weight.shape[1], judged[number]
        known = _stored_after(alone, stored)
        value = log_z(alone) if count > 1 else None
        verdict, advice = entry.verdict, entry.advice
        if value is not None and known is not None and (value.high < known.log_z.low or value.low > known.log_z.high):
            advice += f" log Z is {value.value:.4g} by these runs and {known.log_z.value:.4g} as stored."
            verdict = "unreliable"
        rows.append({
            "prompt": label, "candidates": count, "ess": entry.ess, "largest_share": entry.max_share, "large_enough": True,
            "log_z": value, "verdict": verdict, "advice": advice, "missing": (),
            **{name: float(values[number]) for name, values in draws.info.items()},
        })  # fmt: skip
    return rows


def _tables(result: SampleResult, labels: Sequence[Any], show: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tables for people, who see the draws and on request some candidates and what the pools were like, and all rows for
    JSON."""
    rows: dict[str, Any] = {"samples": result.samples} | ({"prompts": result.pools} if result.pools else {})
    pools = [{key: row[key] for key in row if key not in ("advice", "large_enough", "missing")} for row in result.pools]
    equal = all(row["log_weight"] == 0 for row in result.samples)  # the draws of most samplers have the same weight
    flat = equal and all(row["energy"] == 0 for row in result.samples)
    hidden = ("energy", "log_weight") if flat else ("log_weight",) if equal else ()
    draws = [{key: value for key, value in row.items() if key not in hidden} for row in result.samples]
    tables: dict[str, Any] = {"draws": draws, "pools": pools}
    if not result.candidates:
        return tables, rows
    groups = list(zip(labels, result.candidates, strict=True))
    rows["candidates"] = [{"prompt": label, **row} for label, group in groups for row in group]
    for label, group in groups if show else ():
        shown = [row for place, row in enumerate(group) if place < show or row["chosen"]]
        after = f"candidates after {label!r}" if label else "candidates"
        tables[f"{after}, {len(shown)} of {len(group)}"] = shown
    return tables, rows


def _pool_lines(pools: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each prompt what the draws were chosen from, whether that is enough, and what to do if not."""
    lines = []
    for row in pools:
        after = f" after {row['prompt']!r}" if isinstance(row["prompt"], str) and row["prompt"] else ""
        seen = f"{row['candidates']:,} candidates{after}: effective sample size {_count(row['ess'])}, {row['verdict']}"
        advice = row["advice"].partition(": ")[2].rstrip(".").replace("draw more", "take more candidates")
        if "rungs" in row:
            runs = f"{row['candidates']:,} {'runs' if row['candidates'] > 1 else 'run'} of a ladder of {row['rungs']:.0f} rungs"
            seen = f"{runs}{after}: the least overlap is {row['overlap']:.0%}, {row['verdict']}"
            advice = row["advice"].partition(": ")[2].rstrip(".")
        lines.append(f"{seen}." if row["verdict"] == "good" else f"{seen}: {advice}.")
    return lines


def _prompt_notes(model: Model, settings: SampleConfig, named: bool) -> list[str]:
    """Which prompt was taken where none was named, and where it is not the one that the weights were fitted after."""
    fitted = model.stored_prompt
    if fitted is not None and not named:
        return [f"No prompt was named, so this is what follows {fitted!r}, the prompt that the energy was fitted after."]
    other = [prompt for prompt in settings.prompts if prompt != fitted]
    if fitted is None or not other:
        return []
    return [f"The weights were fitted after {fitted!r}: after {other[0]!r}, rates may differ from those wanted."]


def _notes(model: Model, prompts: PromptSet, pools: Sequence[Mapping[str, Any]]) -> list[str]:
    """Which prompts have another length than in training, and where even the most candidates were too few."""
    notes, size = [], model.prompt_tokens
    other = [length for length in prompts.x.start.tolist() if length != size]
    if size and other:
        notes.append(f"The model was made for prompts of {size} tokens; {len(other)} of these have others, such as {other[0]}.")
    lacking = [row for row in pools if row["missing"]]
    if lacking:
        size = max(row["candidates"] for row in lacking)
        notes.append(
            f"{len(lacking)} of {len(pools)} pools of up to {size:,} candidates lack what is known of the tilted model, so the "
            f"draws are unreliable. {REMEDY}"
        )
    few = [row for row in pools if not row["large_enough"] and not row["missing"]]
    if few:
        notes.append(
            f"Even {few[0]['candidates']:,} candidates are too few after {len(few)} of {len(pools)} prompts, so the draws are "
            f"biased towards the base: raise --sampler.max-candidates, lower --sampler.min-ess, or tilt less."
        )
    return notes


@dataclass(frozen=True)
class ScoreResult:
    """For each text: its tokens (prompt not counted), log a(x) under the base, and the energy E(x), 0 for a base."""

    texts: list[str]
    prompts: list[str]
    tokens: list[int]
    log_base: list[float]
    energy: list[float]
    report: Report

    @property
    def log_unnormalized(self) -> list[float]:
        """log a(x) - E(x): the log-probability under the tilted model plus log Z of the prompt."""
        return [log_base - energy for log_base, energy in zip(self.log_base, self.energy, strict=True)]


def score_model(model: Model, settings: ScoreConfig) -> ScoreResult:
    """Score texts under a model, tilted or not, as `Model.score` describes."""
    texts = list(settings.texts) if settings.file is None else read_lines(Path(settings.file))
    prompts = list(settings.prompts) * (len(texts) if len(settings.prompts) == 1 else 1) or [""] * len(texts)
    if len(prompts) != len(texts):
        raise ValueError(
            f"There are {len(prompts)} prompts for {len(texts)} texts. Nothing was scored; give a prompt for each text, one "
            f"for all, or none."
        )
    if not texts:
        raise ValueError(f"{settings.file} holds no line. Nothing was scored; write a text a line.")
    x = _encode(model, texts, prompts)
    log_base, energy = log_prob(model.target.base, x).tolist(), (-log_weight(model.target, x)).tolist()
    rows: list[dict[str, Any]] = []
    for prompt, text, length, log_a, e in zip(prompts, texts, x.lengths.tolist(), log_base, energy, strict=True):
        row = {**({"prompt": prompt} if settings.prompts else {}), "text": text, "tokens": length, "log_base": log_a}
        rows.append({**row, "energy": e, "log_unnormalized": log_a - e} if model.is_tilted else row)
    facts = model.facts
    return ScoreResult(texts, prompts, x.lengths.tolist(), log_base, energy, Report("esscher score", facts, {"scores": rows}))


def _encode(model: Model, texts: list[str], prompts: list[str]) -> Sequences:
    """Each text after its prompt, to its end symbol; a sequence of the largest length ends without one."""
    space, points = model.base.space, model.tokenizer.encode(texts)
    longest = max(range(len(points)), key=lambda row: len(points[row]))
    if len(points[longest]) > space.max_length:
        raise ValueError(
            f"The text {texts[longest][:40]!r} has {len(points[longest]):,} tokens, and sequences of {model.name} at most "
            f"{space.max_length:,}. Nothing was scored; load the model with a larger max_length, or leave longer texts out."
        )
    end = [] if space.eos is None else [space.eos]
    ended = [[*tokens, *end][: space.max_length] for tokens in points]
    return sequences(ended, model.data.encode_prompts(prompts))
