"""How likely a model produces a text with an event: direct draws first, then draws that are led to it.

    direct draws     `FIRST_SHARE` of the budget; with `ENOUGH_HITS` hits the answer is their share, and with
                     `FREQUENT_HITS` the share among as many more as the budget allows
    twisted draws    where a finite automaton recognises the event: a twist on its states is fitted in rounds, whose draws are
                     dropped; then independent weighted draws, or runs of particles where their weights are uneven
                     (`esscher.samplers.acceptor_twist`)
    splitting        else: a pilot finds levels of a score, from the direct draws to the event, and is dropped; then
                     independent runs with these levels, from whose spread the interval comes (`esscher.samplers.splitting`)

Where the pilot finds no way to the event, the rest of the budget is spent on direct draws, and the answer may be an upper
bound. The budget counts tokens that the base draws or reads, in sequences' worth: the mean length of the first draws. Every
part is a work item of its own (`esscher.training.resumable`): it resumes to the same numbers, and processes of torchrun share
the runs.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esscher.bases.truncated import truncated
from esscher.core.config import to_dict
from esscher.core.distributed import is_main_process
from esscher.core.estimate import Estimate
from esscher.core.folder_lock import locked_folder
from esscher.core.progress import current_progress
from esscher.core.randomness import Rng, SeededRng
from esscher.core.reading import read_json_object
from esscher.core.space import Sequences, concatenate, prompts_of
from esscher.core.storage import read_tensors, write_json, write_tensors
from esscher.core.target import Base, Tilted
from esscher.data.sources import read_lines
from esscher.energies.events import make_event
from esscher.estimators.intervals import interval, ratio
from esscher.estimators.rare_events import (
    RareEvent,
    contradicted,
    direct_probability,
    splitting_probability,
    twisted_runs_probability,
    weighted_probability,
)
from esscher.estimators.reliability import Verdict, upper_spread
from esscher.exact.acceptors import Acceptor
from esscher.reports.report import Report
from esscher.samplers.acceptor_twist import (
    AcceptorTwist,
    EventStates,
    Shares,
    Transitions,
    completed,
    draw_twisted,
    fit_twist,
)
from esscher.samplers.ancestral import draw, rows_at_once
from esscher.samplers.splitting import Guide, Ladder, Particles, PrefixScores, Splits, plan_levels, split, spread_draws
from esscher.training.collectives import broadcast_object
from esscher.training.made_with import RECORD, fingerprint, sequences_fingerprint
from esscher.training.resumable import WorkItem, run_resumable
from esscher.workflow.calibration import drawing, draws_on_disk, peak_memory
from esscher.workflow.config.risk import RiskConfig
from esscher.workflow.cost import Cost, before_start, is_dry_run
from esscher.workflow.model import Model
from esscher.workflow.processors import PromptSet

FIRST_SHARE, PILOT_SHARE, RESERVE = 0.05, 0.3, 0.1  # of the budget: direct draws; the pilot at most; left for costs that differ
PILOT_PARTICLES = 0.01  # of the budget
ENOUGH_HITS = 100
FREQUENT_HITS = 10  # of the first draws, from which on direct draws will show it about 200 times
ROUNDS, ROUND_SHARE, FEWEST_OF_ROUND = 5, 0.02, 128  # of fitting a twist: how many, their part of the budget, draws at least
SETTLED = 0.9  # share of effective draws from which on the twist is good enough
INDEPENDENT = 0.2  # share of effective draws from which on they need not be resampled
EVEN_SPREAD = 1.5  # and the spread of log weights in nats, which luck hardly moves: draws that miss heavy weights look even
RUNS_OF_PARTICLES = 2  # times as many as of splitting: of 400 intervals from 12 runs, one was far off
RESAMPLED = 0.5  # share of effective particles below which these are resampled
FADED = 0.5  # weight of what earlier rounds showed, in each round
CONTRADICTION = 0.999  # confidence of the interval of the direct draws that weighted draws must not lie outside of
TABLE = 2**24  # numbers of a table of draws and tokens that are held at once
CHECKED = 64  # twisted draws on which automaton and event are compared
DRAWS_AT_ONCE = 2048
TIMED_DRAWS = 32
LISTED_PROMPTS = 10
PARTS = "parts"  # folder of the work items
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Risk:
    """What was estimated, what it cost, and sequences that show the event."""

    event: RareEvent
    levels: tuple[float, ...]  # of the ladder; none for direct draws
    ladder: tuple[Estimate, ...]  # the probability of each level
    x: Sequences  # with the event
    weight: Tensor  # of each of them, summing to 1
    run: Tensor  # of each of them; all 0 for direct draws
    run_weight: Tensor  # of each run
    sequences: float  # sequences' worth of tokens
    tokens: int
    mean_length: float
    twist: str = ""  # what led the draws to the event, if they are weighted: `x` ends where the event was settled

    @property
    def probability(self) -> Estimate:
        return self.event.probability

    @property
    def verdict(self) -> Verdict:
        return self.event.verdict

    @property
    def direct_draws(self) -> float:
        """Direct draws that would have the same relative error."""
        estimate = self.probability
        if not 0 < estimate.low < estimate.high < math.inf:
            return math.nan
        z = math.sqrt(2) * float(torch.erfinv(torch.tensor(estimate.confidence, dtype=torch.float64)))
        error = math.log(estimate.high / estimate.low) / (2 * z)
        return (1 - estimate.value) / (estimate.value * error**2)

    def prompt_shares(self, prompts: Sequences) -> list[Estimate]:
        """The share of each prompt in the probability, with its interval over the runs."""
        keys = {key: number for number, key in enumerate(prompts.prompt_keys())}
        which = torch.tensor([keys[key] for key in self.x.prompt_keys()], dtype=torch.long)
        runs = len(self.run_weight)
        counts = torch.bincount(self.run, minlength=runs).clamp(min=1).double()
        shares = []
        for number in range(len(prompts)):
            if self.twist and runs == 1:
                mine, n = (which == number).double() * self.weight, len(which)
                shares.append(
                    interval(
                        ratio(mine, self.weight),
                        [(1, n)],
                        confidence=self.probability.confidence,
                        n=n,
                        method=f"ratio over {n} weighted draws",
                        limits=(0, 1),
                    )
                )
                continue
            if self.twist:
                mine = torch.zeros(runs, dtype=torch.float64).index_add_(0, self.run, (which == number) * self.weight)
                within = mine / self.run_weight.clamp(min=1e-300)
            else:
                within = torch.bincount(self.run[which == number], minlength=runs).double() / counts
            if runs == 1:
                found, total = int((which == number).sum()), len(which)
                shares.append(direct_probability(found, total, confidence=self.probability.confidence).probability)
                continue

            def of_runs(count: Tensor, within: Tensor = within) -> Tensor:
                weight = count[0] * self.run_weight
                return (weight * within).sum() / weight.sum()

            method = f"ratio over {runs} runs"
            shares.append(
                interval(
                    of_runs,
                    [(1, runs)],
                    confidence=self.probability.confidence,
                    n=runs,
                    method=method,
                    counted="runs",
                    limits=(0, 1),
                )
            )
        return shares


def estimate_risk(
    base: Base,
    prompts: Sequences,
    scores: PrefixScores,
    threshold: float,
    *,
    draws: int,
    acceptor: Acceptor | None = None,
    runs: int = 12,
    confidence: float = 0.95,
    rng: Rng,
    runs_at_once: int = 1,
    work: Callable[[Sequence[WorkItem[Tensors]], str], list[Tensors]] | None = None,
) -> Risk:
    """The probability that a draw of the base, after a prompt that each has the same share, has a score of `threshold` or more.
    `scores` are those of all prefixes; `acceptor` recognises the same points, if there is one; `draws` is the budget; `work`
    makes the items of a stage, by default at once."""
    work = work or (lambda items, what: [item.make() for item in items])
    count = max(len(prompts), math.ceil(FIRST_SHARE * draws))
    first = _direct(base, prompts, scores, threshold, count, rng.stream("direct"), work)
    mean_length = max(1.0, float(first.lengths.double().mean()))
    tokens, budget = int(first.lengths.sum()), draws * mean_length
    table = scores(first)
    hits = table[:, -1] >= threshold
    if int(hits.sum()) >= ENOUGH_HITS:
        return _direct_risk(first, hits, tokens, mean_length, confidence)
    if int(hits.sum()) >= FREQUENT_HITS:  # without the first draws, by which this is decided
        rest = max(len(prompts), int((1 - RESERVE) * (budget - tokens) / mean_length))
        more = _direct(base, prompts, scores, threshold, rest, rng.stream("more"), work)
        hits = scores(more)[:, -1] >= threshold
        return _direct_risk(more, hits, tokens + int(more.lengths.sum()), mean_length, confidence)
    if acceptor is not None and bool((acceptor.accepts(first.to("cpu")) == hits).all()):

        def holds(x: Sequences) -> Tensor:
            return scores(x)[:, -1] >= threshold

        twisted = _twisted(base, prompts, acceptor, first, tokens, budget, mean_length, holds, runs, confidence, rng, work)
        if isinstance(twisted, Risk):
            direct = direct_probability(int(hits.sum()), len(first), confidence=CONTRADICTION).probability
            return replace(twisted, event=contradicted(twisted.event, direct))
        tokens += twisted
    guide = Guide.fit(scores, threshold, first)

    def pilot() -> Tensors:
        now = Particles(first, guide(first))
        particles = max(64, int(PILOT_PARTICLES * draws))
        ladder, complete, cost = plan_levels(base, guide, now, particles, budget=PILOT_SHARE * budget, rng=rng.stream("pilot"))
        columns = {name: torch.tensor(getattr(ladder, name), dtype=torch.float64) for name in ("levels", "shares", "costs")}
        return {**columns, "complete": torch.tensor([int(complete), cost])}

    (plan,) = work([WorkItem("pilot", 1, pilot)], "pilots")
    complete, cost = plan["complete"].tolist()
    tokens += cost
    left = (1 - RESERVE) * (budget - tokens)
    if not complete or len(plan["levels"]) < 2 or left < budget / 10:
        rest = max(len(prompts), int(left / mean_length))
        more = _direct(base, prompts, scores, threshold, rest, rng.stream("more"), work)
        hits = torch.cat([hits, scores(more)[:, -1] >= threshold])
        return _direct_risk(concatenate([first, more]), hits, tokens + int(more.lengths.sum()), mean_length, confidence)
    ladder = Ladder(*(tuple(plan[name].tolist()) for name in ("levels", "shares", "costs")))
    particles = ladder.particles(left / runs)

    def run(number: int) -> Tensors:
        size = min(runs_at_once, runs - number)
        parts = split(base, guide, prompts, ladder, particles, runs=size, rng=rng.stream("run", number))
        return _pack(parts)

    items = [
        WorkItem(f"run-{number:03d}", min(runs_at_once, runs - number), partial(run, number))
        for number in range(0, runs, runs_at_once)
    ]
    parts = [_unpack(part, particles) for part in work(items, "runs")]
    if not any(bool(part.reached[:, -1].any()) for part in parts):  # the direct draws bound what no run reached
        tokens += sum(part.tokens for part in parts)
        return _direct_risk(first, hits, tokens, mean_length, confidence)
    return _splitting_risk(parts, ladder, tokens, mean_length, confidence)


def _twisted(
    base: Base,
    prompts: Sequences,
    acceptor: Acceptor,
    first: Sequences,
    tokens: int,
    budget: float,
    mean_length: float,
    holds: Callable[[Sequences], Tensor],
    runs: int,
    confidence: float,
    rng: Rng,
    work: Callable[[Sequence[WorkItem[Tensors]], str], list[Tensors]],
) -> "Risk | int":
    """The probability by draws that a twist leads to the event; or the tokens that the rounds took, where automaton and event
    do not agree."""
    events = EventStates.of(acceptor, base.space)
    at_once = min(DRAWS_AT_ONCE, max(rows_at_once(base.space), TABLE // base.space.vocab_size))
    count = min(at_once, max(FEWEST_OF_ROUND, int(ROUND_SHARE * budget / mean_length)))
    rounds = partial(_rounds, base, prompts, events, first.to("cpu"), count, holds, rng)
    (fitted,) = work([WorkItem("twist", 1, rounds)], "rounds of a twist")
    cost = int(fitted["cost"])
    if "log_psi" not in fitted:
        return cost
    left, twist = (1 - RESERVE) * (budget - tokens - cost), AcceptorTwist(events, fitted["log_psi"])
    alone, with_others = fitted["each"].tolist()
    effective = float(1 / torch.softmax(fitted["log_weight"], 0).square().sum())
    spread = float(upper_spread(fitted["log_weight"][None])[0])
    independent = effective >= INDEPENDENT * count and spread <= EVEN_SPREAD
    if independent:
        total = max(2, int(left / alone))
        sizes = [(1, min(at_once, total - done)) for done in range(0, total, at_once)]
    else:
        runs = RUNS_OF_PARTICLES * runs
        particles = max(2, min(rows_at_once(base.space), int(left / with_others / runs)))
        runs = max(runs, int(left / with_others / particles))
        together = max(1, rows_at_once(base.space) // particles)
        sizes = [(min(together, runs - done), particles) for done in range(0, runs, together)]
    shares = Shares(fitted["shares"]) if independent else None
    threshold = 0.0 if independent else RESAMPLED

    def some(number: int, size: tuple[int, int]) -> Tensors:
        stream = rng.stream("twisted", number)
        drawn = draw_twisted(base, prompts, twist, size[1], rng=stream, runs=size[0], threshold=threshold, shares=shares)
        x = {name: getattr(drawn.points, name).cpu() for name in ("tokens", "start", "stop")}
        columns = {name: getattr(drawn, name) for name in ("log_weight", "roots", "variance")}
        return {**x, **columns, "cost": torch.tensor(drawn.cost)}

    items = [
        WorkItem(f"twisted-{number:04d}-{size[0]}-{size[1]}", size[0] * size[1], partial(some, number, size))
        for number, size in enumerate(sizes)
    ]
    parts = work(items, "weighted draws")
    tokens += cost + sum(int(part["cost"]) for part in parts)
    if independent:
        log_weight = torch.cat([part["log_weight"].view(-1) for part in parts])[None]
        event = weighted_probability(log_weight[0], confidence=confidence)
    else:
        log_weight, variance, roots = (
            torch.cat([part[name] for part in parts]) for name in ("log_weight", "variance", "roots")
        )
        log_p = log_weight.logsumexp(-1) - math.log(log_weight.shape[1])
        event = twisted_runs_probability(log_p, variance, roots, confidence=confidence)
    x = concatenate([Sequences(part["tokens"], part["start"], part["stop"]) for part in parts])
    allowed = (log_weight.view(-1) > -torch.inf).nonzero()[:, 0]
    weight = torch.softmax(log_weight.view(-1)[allowed], 0)
    run = allowed // log_weight.shape[1]
    run_weight = torch.zeros(len(log_weight), dtype=torch.float64).index_add_(0, run, weight)
    how = "independent draws" if independent else "particles"
    led_by = f"a twist on {events.states} states of an automaton, fitted in {int(fitted['rounds'])} rounds; {how}"
    return Risk(event, (), (), x.rows(allowed), weight, run, run_weight, tokens / mean_length, tokens, mean_length, led_by)


def _rounds(
    base: Base,
    prompts: Sequences,
    events: EventStates,
    first: Sequences,
    count: int,
    holds: Callable[[Sequences], Tensor],
    rng: Rng,
) -> Tensors:
    """A twist that is fitted in rounds, with draws of it that are not resampled; without both where the event does not hold for
    points that the automaton accepts, or where none is."""
    transitions, cost, number = Transitions.counted(events, first), 0, 0
    for number in range(ROUNDS):
        transitions = transitions.faded(FADED)
        twist, of_round = fit_twist(events, transitions), rng.stream("round", number)
        drawn = draw_twisted(base, prompts, twist, count, rng=of_round, threshold=RESAMPLED, transitions=transitions)
        cost += drawn.cost
        checked = (drawn.log_weight[0] > -torch.inf).nonzero()[:CHECKED, 0]
        if len(checked) == 0 or not bool(holds(drawn.points.rows(checked.to(drawn.points.tokens.device))).all()):
            return {"cost": torch.tensor(cost)}
        if float(drawn.variance[0]) * count < 1 / SETTLED - 1:
            break
    twist = fit_twist(events, transitions)
    alone = draw_twisted(base, prompts, twist, count, rng=rng.stream("round", "alone"))
    shares = Shares.by_spread(alone.prompt[0], alone.log_weight[0], len(prompts))
    each = torch.tensor([alone.cost / count, drawn.cost / count], dtype=torch.float64)
    return {
        "cost": torch.tensor(cost + alone.cost), "log_psi": twist.log_psi, "log_weight": alone.log_weight[0],
        "shares": shares.log_probability, "each": each, "rounds": torch.tensor(number + 1),
    }  # fmt: skip


def _direct(
    base: Base,
    prompts: Sequences,
    scores: PrefixScores,
    threshold: float,
    count: int,
    rng: Rng,
    work: Callable[[Sequence[WorkItem[Tensors]], str], list[Tensors]],
) -> Sequences:
    """Draws in items, spread evenly over the prompts."""
    each = -(-count // len(prompts))
    size = max(1, DRAWS_AT_ONCE // len(prompts))

    def some(number: int, wanted: int) -> Tensors:
        x, _ = draw(base, prompts, wanted, rng=rng.stream(number))
        return {"tokens": x.tokens.cpu(), "start": x.start.cpu(), "stop": x.stop.cpu()}

    sizes = [min(size, each - done) for done in range(0, each, size)]
    name = "-".join(str(part) for part in getattr(rng, "path", ("direct",))[-1:])
    items = [
        WorkItem(f"{name}-{number:04d}-{wanted}", wanted * len(prompts), partial(some, number, wanted))
        for number, wanted in enumerate(sizes)
    ]
    return concatenate([Sequences(part["tokens"], part["start"], part["stop"]) for part in work(items, "direct draws")])


def _direct_risk(x: Sequences, hits: Tensor, tokens: int, mean_length: float, confidence: float) -> Risk:
    event = direct_probability(int(hits.sum()), len(x), confidence=confidence)
    found = x.rows(hits.nonzero()[:, 0])
    weight = torch.full((len(found),), 1 / max(1, len(found)), dtype=torch.float64)
    run = torch.zeros(len(found), dtype=torch.long)
    one = torch.ones(1, dtype=torch.float64)
    return Risk(event, (), (), found, weight, run, one, tokens / mean_length, tokens, mean_length)


def _splitting_risk(parts: Sequence[Splits], ladder: Ladder, tokens: int, mean_length: float, confidence: float) -> Risk:
    reached, roots = torch.cat([part.reached for part in parts]), torch.cat([part.roots for part in parts])
    sizes = [len(part.reached) for part in parts]
    before = [sum(sizes[:number]) for number in range(len(sizes))]
    run = torch.cat([part.run + first for part, first in zip(parts, before, strict=True)])
    particles = parts[0].particles
    event = splitting_probability(reached, particles, roots, confidence=confidence)
    rungs = tuple(
        splitting_probability(reached[:, : end + 1], particles[: end + 1], roots, confidence=confidence).probability
        for end in range(len(ladder.levels))
    )
    run_weight = (reached.double() / torch.tensor(particles)).prod(-1)
    run_weight = run_weight / run_weight.sum().clamp(min=1e-300)
    counts = torch.bincount(run, minlength=len(reached)).clamp(min=1)
    tokens += sum(part.tokens for part in parts)
    weight = run_weight[run] / counts[run]
    x = concatenate([part.x for part in parts])
    return Risk(event, ladder.levels, rungs, x, weight, run, run_weight, tokens / mean_length, tokens, mean_length)


def _pack(parts: Splits) -> Tensors:
    x = {name: getattr(parts.x, name).cpu() for name in ("tokens", "start", "stop")}
    return {**x, "reached": parts.reached, "roots": parts.roots, "run": parts.run, "cost": torch.tensor([parts.tokens])}


def _unpack(tensors: Tensors, particles: tuple[int, ...]) -> Splits:
    x = Sequences(tensors["tokens"], tensors["start"], tensors["stop"])
    return Splits(tensors["reached"], particles, tensors["roots"], x, tensors["run"], int(tensors["cost"]))


@dataclass(frozen=True)
class RiskResult:
    """The probability of the event with its interval, the verdict and its reason, texts with the event, and the report."""

    risk: Risk
    texts: list[str]
    report: Report

    @property
    def probability(self) -> Estimate:
        """The probability with its interval."""
        return self.risk.probability

    @property
    def verdict(self) -> Verdict:
        """Whether the interval can be trusted: good, doubtful or unreliable."""
        return self.risk.verdict

    @property
    def advice(self) -> str:
        """The reason of the verdict."""
        return self.risk.event.advice


def risk_model(model: Model, settings: RiskConfig) -> RiskResult:
    """The probability of an event, as `Model.risk` describes."""
    if model.is_tilted:
        raise ValueError(
            f"risk draws from a base, and {model.name} is tilted by {model.energy_name}. Nothing was drawn; distil the tilted "
            f"model (`esscher distil`), and take the risk of the student."
        )
    base = truncated(model.base, **vars(settings.truncation))
    labels = list(settings.prompt) if settings.prompts is None else read_lines(Path(settings.prompts))
    labels = labels or [""]
    prompts = prompts_of(model.data.encode_prompts(labels))
    event = make_event(settings.event, model.decode(), base.space.max_length, at_least=settings.at_least)
    before_start(partial(_cost, model, Tilted(base), prompts, settings))
    out = None if settings.out is None else Path(settings.out)
    named = {**to_dict(settings), "event": event.name}
    with locked_folder(None if is_dry_run() else out):
        if out is not None and (out / PARTS / RECORD).is_file() and not settings.resume:
            raise ValueError(
                f"{out} holds work of an earlier run. Nothing was drawn; --resume goes on with it, or choose another folder."
            )
        made_with = {
            "base": model.base_digest,
            "prompts": sequences_fingerprint(prompts),
            "event": event.name if isinstance(settings.event, str) else fingerprint(settings.event),
            **{key: named[key] for key in ("draws", "minutes", "runs", "seed", "at_least", "temperature", "top_k", "top_p")},
        }
        draws = settings.draws if settings.minutes is None else _draws_in(base, prompts, event.scores, settings.minutes, out)
        risk = estimate_risk(
            base, prompts, event.scores, event.threshold, draws=draws, acceptor=event.acceptor(base.space), runs=settings.runs,
            confidence=settings.confidence, rng=SeededRng(settings.seed, "risk"), work=partial(_work, out, made_with),
        )  # fmt: skip
        return _report(model, base, settings, named, risk, event.name, prompts, labels, out)


def _work(out: Path | None, made_with: Mapping[str, Any], items: Sequence[WorkItem[Tensors]], what: str) -> list[Tensors]:
    return run_resumable(
        items, folder=None if out is None else out / PARTS, made_with=made_with, read=read_tensors, write=write_tensors,
        say=current_progress().say, what=what,
    )  # fmt: skip


def _draws_in(base: Base, prompts: Sequences, scores: PrefixScores, minutes: float, out: Path | None) -> int:
    """Draws that take so many minutes, by the time of a few that are scored; kept in the folder, so that a run resumes."""
    file = None if out is None else out / PARTS / "budget.json"
    if file is not None and file.is_file():
        return int(read_json_object(file)["draws"])
    started = time.perf_counter()
    scores(spread_draws(base, prompts, TIMED_DRAWS, rng=SeededRng(0, "timing")))
    seconds = (time.perf_counter() - started) / TIMED_DRAWS
    draws = max(1000, int(broadcast_object(60 * minutes / max(seconds, 1e-9))))
    if file is not None and is_main_process():
        write_json(file, {"draws": draws})
    return draws


def _cost(model: Model, target: Tilted, prompts: Sequences, settings: RiskConfig) -> Cost:
    notes = ("The draws are a budget: direct draws that show the event often enough end earlier.",)
    each = -(-settings.draws // len(prompts))
    phase = drawing("drawing", target, prompts, each, at_once=DRAWS_AT_ONCE, rows=settings.draws)
    disk = draws_on_disk(settings.draws // 4, model.base.space.max_length) if settings.out else 0
    facts = {"device": model.placement, "budget_minutes": settings.minutes}
    facts = {name: value for name, value in facts.items() if value is not None}
    return Cost("esscher risk", (phase,), settings.out, disk, peak_memory(model.base), notes, facts)


def _report(
    model: Model,
    base: Base,
    settings: RiskConfig,
    named: Mapping[str, Any],
    risk: Risk,
    event: str,
    prompts: Sequences,
    labels: Sequence[str],
    out: Path | None,
) -> RiskResult:
    order = torch.multinomial(
        risk.weight, min(settings.texts, len(risk.x)), generator=torch.Generator().manual_seed(settings.seed)
    ) if settings.texts and len(risk.x) else torch.zeros(0, dtype=torch.long)  # fmt: skip
    shown = risk.x.rows(order)
    if risk.twist and len(shown):
        shown = completed(base, shown, rng=SeededRng(settings.seed, "risk", "texts")).to("cpu")
    texts = model.data.decode(shown.points()) or [] if len(shown) else []
    keys = dict(zip(prompts.prompt_keys(), labels, strict=True))
    rows = [{"prompt": keys[key], "text": text} for key, text in zip(shown.prompt_keys(), texts, strict=True)]
    tables: dict[str, Any] = {}
    if risk.levels:
        tables["ladder"] = [{"level": level, "probability": p} for level, p in zip(risk.levels, risk.ladder, strict=True)]
    if len(labels) > 1 and len(risk.x):
        shares = sorted(zip(labels, risk.prompt_shares(prompts), strict=True), key=lambda pair: -pair[1].value)
        tables["prompts"] = [{"prompt": label, "share": share} for label, share in shares[:LISTED_PROMPTS] if share.value > 0]
    if rows:
        tables["texts"] = rows
    direct = risk.direct_draws
    saved = direct / risk.sequences if risk.levels or risk.twist else math.nan
    facts: dict[str, Any] = {
        "probability": risk.probability, "verdict": risk.verdict, "reason": risk.event.advice, "event": event,
        "prompts": len(labels) if len(labels) > 1 else None,
        "cost": f"{risk.sequences:,.0f} sequences' worth of the base's tokens ({risk.tokens:,} tokens)",
        "direct_draws_for_this_error": None if math.isnan(direct) else float(f"{direct:.3g}"),
        "tokens_saved": f"{saved:.3g} times as many" if saved >= 1 else None,
        "led_by": risk.twist or None,
        **model.facts, "seed": settings.seed,
    }  # fmt: skip
    notes = []
    if saved < 1:
        notes.append(f"{direct:,.0f} direct draws, {saved:.2g} of what was drawn, would have had the same error.")
    if len(labels) > 1:
        notes.append(
            f"The probability is the mean over these {len(labels)} prompts, which are the population: no other is meant."
        )
    if out is not None and is_main_process():
        if risk.levels:
            facts["plot"] = _plot(risk, out / "ladder.png")
        if rows:
            model.data.save_samples(out / "texts.jsonl", rows, [], PromptSet(labels, prompts))
    report = Report("esscher risk", facts, tables, notes, details=("energy", "ladder"))
    if out is not None:
        report = report.save(out, {"model": model.name, **named})
    return RiskResult(risk, list(texts), report)


def _plot(risk: Risk, file: Path) -> Path:
    """The probability of each level, with its interval."""
    from esscher.reports.plots import TILTED, interval_bands, save_figure

    least = min(rung.value for rung in risk.ladder if rung.value > 0) / 1e3
    lines = [rung.map(lambda value: math.log10(max(value, least))) for rung in risk.ladder]
    figure = interval_bands(
        {"reached": (TILTED, list(risk.levels), lines)}, x="level of the score", y="log10 of the probability"
    )
    return save_figure(figure, file)
