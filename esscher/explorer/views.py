"""What the explorer shows of a model, for one prompt and one seed: texts of base and tilted model, weighted candidates, means
of features, next tokens, changes token by token, energies, a student's draws. The pool of candidates starts with 16 and
doubles, each part from its own random stream, so a larger pool starts with the candidates of a smaller one. By default it grows
until the verdict on log Z is good; that is a look at each size, so the intervals of a pool that has just become good are a
little too narrow."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any

import torch
from torch import Tensor

from esscher.bases.truncated import truncated
from esscher.core.device import on_device_of
from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, prompts_of, sequences
from esscher.core.target import Tilted
from esscher.data.splits import random_rows
from esscher.energies.features import Decomposable, LogLinear, feature_values
from esscher.estimators.continuations import NextToken, NextTokens, next_tokens
from esscher.estimators.expectations import moments
from esscher.estimators.per_position import per_position
from esscher.estimators.populations import EnergyComparison, compare_energies
from esscher.reports.tables import token_name, token_texts
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Importance
from esscher.samplers.scoring import log_prob, log_weight
from esscher.samplers.sir import AdaptiveSIR, CandidateSelection
from esscher.samplers.twists import HasTwist, ParticleSIR
from esscher.workflow.analyse import draw_populations, encode_prompt
from esscher.workflow.model import Model
from esscher.workflow.sample import WeightedCandidate, pool_rows, weighted_candidates
from esscher.workflow.tilt import energy_data

UNTIL_GOOD = "until-good"
SAMPLERS = (UNTIL_GOOD, "sir", "adaptive-sir", "particles")
FIRST_CANDIDATES, FEWEST_CANDIDATES = 16, 128  # candidates in the first view, and from when drawing may stop by itself
ENOUGH_ESS = 50.0  # effective sample size from which it does
SECONDS = 20.0  # after which drawing stops by itself, if the next candidates would take it longer
MORE = 4  # how many times as many candidates the page offers
MAX_FEATURES = 6  # whose means are shown
DATA, DATA_DRAWS = 100, 16  # data sequences whose energies are compared, and base draws per sequence
MAX_POOL, MIN_TEMPERATURE = 16_384, 0.01


@dataclass(frozen=True)
class Controls:
    """The values of the page's controls; `top_k=0` keeps every token. `pool` is the number of candidates; until the verdict is
    good, the most that may be drawn."""

    sampler: str = UNTIL_GOOD
    pool: int = 1_024
    temperature: float = 1.0
    top_k: int = 0
    draws: int = 6
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise ValueError(f"No sampler named {self.sampler!r}. Nothing was drawn; choose from: {', '.join(SAMPLERS)}.")
        in_range = 2 <= self.pool <= MAX_POOL and self.draws >= 1 and self.top_k >= 0 and abs(self.seed) < 2**63
        if not in_range or not MIN_TEMPERATURE <= self.temperature <= 100:
            raise ValueError(
                f"{self} is out of range: pool from 2 to {MAX_POOL:,}, draws >= 1, top_k >= 0, temperature from "
                f"{MIN_TEMPERATURE} to 100, a seed of 64 bits. Nothing was drawn."
            )

    def target(self, target: Tilted) -> Tilted:
        return Tilted(truncated(target.base, top_k=self.top_k or None, temperature=self.temperature), target.energy)


@dataclass(frozen=True)
class CandidatesView:
    """The candidates after one prompt, and the draws that were resampled from them."""

    text: str
    target: Tilted
    prompt: Sequences  # the encoded text
    selection: CandidateSelection
    rows: list[WeightedCandidate]  # largest share first
    parts: list[Mapping[str, float]]  # of -E by feature, for each row; empty unless the energy is Decomposable
    pool: Mapping[str, Any]  # log_z with its interval, verdict, advice
    complete: bool
    stopped: str = ""  # why drawing ended, if it ends by itself: "good", "limit" or "time"

    @property
    def candidates(self) -> int:
        return len(self.selection.candidates.x)


@dataclass(frozen=True)
class FeatureMean:
    """The mean of a feature, or of the energy, over texts of the base and of the tilted model."""

    name: str
    base: Estimate
    tilted: Estimate


@dataclass(frozen=True)
class ShownText:
    """A text of one of the models: log a(x), E(x), and what each feature adds to -E(x)."""

    text: str
    log_base: float
    energy: float
    parts: Mapping[str, float]


@dataclass(frozen=True)
class TokenChange:
    """One token of a text: how the tilt changes its log-probability, and the energy's twist after it."""

    text: str
    base: Estimate  # nats, log a(x_t | x_<t)
    change: Estimate  # nats, log p(x_t | x_<t) - log a(x_t | x_<t)
    twist: float | None


@dataclass(frozen=True)
class Explorer:
    """A model, optionally its student, and example prompts."""

    model: Model
    student: Model | None = None
    examples: Sequence[str] = ()

    def draw(self, text: str, controls: Controls) -> Iterator[CandidatesView]:
        """Views of a growing pool of candidates after the prompt; the last one is complete."""
        prompt, target, rng = encode_prompt(self.model, text)[0], controls.target(self.model.target), SeededRng(controls.seed)
        if controls.sampler in ("sir", UNTIL_GOOD):
            begin = time.monotonic()
            for candidates in _growing_pool(target, prompt, controls.pool, rng):
                view = self._view(text, target, prompt, _resample(candidates, controls.draws, rng), controls.pool)
                if controls.sampler == UNTIL_GOOD:
                    view = _stopped(view, time.monotonic() - begin)
                yield view
                if view.complete:
                    return
        adaptive = controls.sampler == "adaptive-sir"
        sampler = AdaptiveSIR(8.0, max_candidates=max(16, controls.pool)) if adaptive else ParticleSIR(controls.pool)
        (selection,) = sampler.choose(target, prompt, controls.draws, rng=rng)
        yield self._view(text, target, prompt, selection, selection.num_candidates)

    @torch.no_grad()
    def _view(self, text: str, target: Tilted, prompt: Sequences, selection: CandidateSelection, pool: int) -> CandidatesView:
        (rows,) = weighted_candidates([selection], target, self.model.tokenizer)
        stored = self.model.stored_estimates if target.base is self.model.base else None
        (pool_row,) = pool_rows([text], [selection], target.energy, stored)
        x = _sequences_after(prompt, [row.point for row in rows])
        parts = _parts(target, x)
        return CandidatesView(text, target, prompt, selection, rows, parts, pool_row, len(selection.candidates.x) >= pool)

    def next_tokens(self, text: str, controls: Controls, *, top: int = 8, draws: int = 64) -> tuple[list[str], NextTokens]:
        """Names and probabilities of the likeliest next tokens under base and tilted model, which may be the base itself."""
        prompt, target = encode_prompt(self.model, text)[0], controls.target(self.model.target)
        if self.model.is_tilted:
            table = next_tokens(target, prompt, top=top, draws=draws, rng=SeededRng(controls.seed).stream("next tokens"))
        else:
            table = _base_next_tokens(target, prompt, top)
        return [token_name(row.token, prompt.tokens[0].tolist(), self.model.tokenizer) for row in table.rows], table

    def changes(self, view: CandidatesView, rank: int, controls: Controls, *, draws: int = 32) -> list[TokenChange]:
        """The tokens of the candidate of that rank (from 1); their changes add up to the estimate of -E(x) - log Z."""
        if not 1 <= rank <= len(view.rows):
            raise ValueError(f"There is no rank {rank} among {len(view.rows)} different candidates. Nothing was computed.")
        point = view.rows[rank - 1].point
        x = _sequences_after(view.prompt, [point])
        rng = SeededRng(controls.seed).stream("changes", rank)
        steps = per_position(view.target, x, Importance(), draws, test="fixed", rng=rng)
        texts = token_texts(point, view.prompt.tokens[0].tolist(), self.model.tokenizer)
        rows = zip(texts, steps, _twists(view.target, x), strict=True)
        return [TokenChange(text, replace(-step.base, unit="nats"), step.reduction, twist) for text, step, twist in rows]

    def energies(self, controls: Controls) -> EnergyComparison:
        """Energies of held-out data, and of draws of base and tilted model after the same prompts."""
        rng = SeededRng(controls.seed).stream("energies")
        x = random_rows(self.held_out, DATA, rng=rng.stream("sequences"))
        target = controls.target(self.model.target)
        populations = draw_populations(target, x, DATA_DRAWS, rng=rng.stream("draws"))
        return compare_energies(target, populations, rng=rng.stream("resamples"))

    @cached_property
    def held_out(self) -> Sequences:
        """Test data of the energy or else of the base, from the source that its folder names."""
        return self.model.training_splits(energy_data(self.model)).test

    def texts(self, view: CandidatesView, controls: Controls) -> dict[str, list[ShownText]]:
        """Texts of base, tilted model and student after the same prompt; of a model that is not tilted, only the base's."""
        candidates = view.selection.candidates.x
        by_model = {"base": candidates.rows(slice(0, controls.draws))}
        if self.model.is_tilted:
            by_model["tilted"] = candidates.rows(view.selection.selected[0])
        if self.student is not None and view.complete:
            rng = SeededRng(controls.seed).stream("student")
            prompt = prompts_of(self.student.data.encode_prompts([view.text]))
            by_model["student"] = draw(self.student.base, prompt, controls.draws, rng=rng)[0]
        return {name: self._score_texts(view.target, x) for name, x in by_model.items()}

    @torch.no_grad()
    def _score_texts(self, target: Tilted, x: Sequences) -> list[ShownText]:
        texts = self._continuations(x)
        log_base, energy = log_prob(target.base, x).tolist(), (-log_weight(target, x)).tolist()
        return [ShownText(*row) for row in zip(texts, log_base, energy, _parts(target, x), strict=True)]

    def _continuations(self, x: Sequences) -> list[str]:
        """What each sequence adds to its prompt: decoded with it, because some tokenizers drop the first space otherwise."""
        points, decode = x.points(), self.model.tokenizer.decode
        if self.model.is_translator or not len(x) or not int(x.start[0]):
            return decode(points)
        prompt = x.tokens[0, : int(x.start[0])].tolist()
        (before,), together = decode([prompt]), decode([[*prompt, *point] for point in points])
        pairs = zip(together, decode(points), strict=True)
        return [text[len(before) :] if text.startswith(before) else alone for text, alone in pairs]

    def feature_means(self, view: CandidatesView) -> list[FeatureMean]:
        """Means of the features that the energy weighs most, or else of the energy, over base and tilted model."""
        candidates, energy = view.selection.candidates, view.target.energy
        weighed = -candidates.log_weight
        if not candidates.independent or view.candidates < 2 or not bool(weighed.isfinite().all()):
            return []
        if isinstance(energy, LogLinear):
            order = energy.weights.detach().abs().argsort(descending=True)[:MAX_FEATURES].tolist()
            features = [energy.features[index] for index in order]
            names = [feature.name for feature in features]
            values = feature_values(features, on_device_of(candidates.x, view.target)).cpu().double()[None]
        else:
            names, values = ["energy E(x), nats"], weighed.cpu().double()[..., None]
        plain = replace(candidates, log_weight=torch.zeros_like(candidates.log_weight))
        pairs = zip(names, moments(plain, values), moments(candidates, values), strict=True)
        return [FeatureMean(*row) for row in pairs]


def _stopped(view: CandidatesView, seconds: float) -> CandidatesView:
    """The view with the reason for which drawing ends here, if it does."""
    enough = view.candidates >= FEWEST_CANDIDATES and view.pool["ess"] >= ENOUGH_ESS
    if view.pool["verdict"] == "good" and (enough or view.complete):
        return replace(view, complete=True, stopped="good")
    if view.complete:
        return replace(view, stopped="limit")
    return replace(view, complete=True, stopped="time") if seconds > SECONDS / 2 else view


@torch.no_grad()
def _parts(target: Tilted, x: Sequences) -> list[Mapping[str, float]]:
    """What each feature adds to -E, for each row; nothing unless the energy is Decomposable."""
    if not isinstance(target.energy, Decomposable):
        return [{} for _ in range(len(x))]
    columns = {name: part.tolist() for name, part in target.energy.parts(on_device_of(x, target)).items()}
    return [{name: column[row] for name, column in columns.items()} for row in range(len(x))]


def _growing_pool(target: Tilted, prompt: Sequences, size: int, rng: Rng) -> Iterator[Draws]:
    """Weighted draws that double in number until there are `size`."""
    pool = Importance()(target, prompt, min(FIRST_CANDIDATES, size), rng=rng.stream("part", 0))
    yield pool
    for part in count(1):
        drawn = pool.log_weight.shape[1]
        if drawn >= size:
            return
        pool = Draws.cat([pool, Importance()(target, prompt, min(drawn, size - drawn), rng=rng.stream("part", part))], 1)
        yield pool


def _resample(candidates: Draws, draws: int, rng: Rng) -> CandidateSelection:
    """Unweighted draws, resampled by weight from one pool of candidates."""
    size = candidates.log_weight.shape[1]
    if bool((candidates.log_weight == -torch.inf).all()):
        raise ValueError(f"All {size} candidates have weight 0. Nothing is shown; enlarge the pool, or type another prompt.")
    selected = rng.stream("pick").categorical(candidates.log_weight, draws)
    ess = candidates.ess()[:, None].expand(-1, draws)
    first = torch.zeros(1, dtype=torch.long)
    return CandidateSelection(first, candidates, selected, size, ess, first == 0, independent=False)


def _sequences_after(prompt: Sequences, points: Sequence[Sequence[int]]) -> Sequences:
    return sequences(points, [prompt.tokens[0, : int(prompt.start[0])].tolist()] * len(points))


@torch.no_grad()
def _base_next_tokens(target: Tilted, prompt: Sequences, top: int) -> NextTokens:
    probability = target.base.begin(on_device_of(prompt, target))[0][0].cpu().double().softmax(-1)
    values, tokens = probability.topk(min(top, len(probability)))
    rest = max(0.0, 1 - float(values.sum()))
    pairs = [*zip(tokens.tolist(), values.tolist(), strict=True), (None, rest)]
    return NextTokens(tuple(NextToken(token, Estimate.exact(value), Estimate.exact(value)) for token, value in pairs))


@torch.no_grad()
def _twists(target: Tilted, x: Sequences) -> list[float | None]:
    """The twist after each token of one point; None if the energy has no twist."""
    length = int(x.lengths[0])
    if not isinstance(target.energy, HasTwist):
        return [None] * length
    prefixes = on_device_of(x, target).repeat(length)
    stop = prefixes.start + torch.arange(1, length + 1, device=prefixes.start.device)
    twists: Tensor = target.energy.twist(Sequences(prefixes.tokens, prefixes.start, stop))
    return [float(twist) for twist in twists]
