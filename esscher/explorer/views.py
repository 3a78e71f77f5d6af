"""What the explorer shows of a model, for one prompt and one seed: weighted candidates, next tokens, changes token by token,
energies, a student's draws. The pool of candidates starts with 16 and doubles, each part from its own random stream, so a
larger pool starts with the candidates of a smaller one."""

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
from esscher.energies.features import Decomposable
from esscher.estimators.continuations import NextToken, NextTokens, next_tokens
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

SAMPLERS = ("sir", "adaptive-sir", "particles")
FIRST_CANDIDATES = 16  # candidates in the first view
DATA, DATA_DRAWS = 100, 16  # data sequences whose energies are compared, and base draws per sequence
MAX_POOL, MIN_TEMPERATURE = 4_096, 0.01


@dataclass(frozen=True)
class Controls:
    """The values of the page's controls; `top_k=0` keeps every token."""

    sampler: str = "sir"
    pool: int = 64
    temperature: float = 1.0
    top_k: int = 0
    draws: int = 8
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
        if controls.sampler == "sir":
            for candidates in _growing_pool(target, prompt, controls.pool, rng):
                yield self._view(text, target, prompt, _resample(candidates, controls.draws, rng), controls.pool)
            return
        adaptive = controls.sampler == "adaptive-sir"
        sampler = AdaptiveSIR(8.0, max_candidates=max(16, controls.pool)) if adaptive else ParticleSIR(controls.pool)
        (selection,) = sampler.choose(target, prompt, controls.draws, rng=rng)
        yield self._view(text, target, prompt, selection, selection.num_candidates)

    @torch.no_grad()
    def _view(self, text: str, target: Tilted, prompt: Sequences, selection: CandidateSelection, pool: int) -> CandidatesView:
        (rows,) = weighted_candidates([selection], target, self.model.tokenizer)
        (pool_row,) = pool_rows([text], [selection], target.energy)
        parts: list[Mapping[str, float]] = [{} for _ in rows]
        if isinstance(target.energy, Decomposable):
            x = on_device_of(_sequences_after(prompt, [row.point for row in rows]), target)
            by_name = target.energy.parts(x)
            columns = {name: part.tolist() for name, part in by_name.items()}
            parts = [{name: column[row] for name, column in columns.items()} for row in range(len(rows))]
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

    def draws_by_model(self, view: CandidatesView, controls: Controls) -> dict[str, list[dict[str, Any]]]:
        """Texts of base, tilted model and student after the same prompt, with their log-probability and energy."""
        candidates = view.selection.candidates.x
        by_model = {"base": candidates.rows(slice(0, controls.draws)), "tilted": candidates.rows(view.selection.selected[0])}
        if self.student is not None:
            rng = SeededRng(controls.seed).stream("student")
            prompt = prompts_of(self.student.data.encode_prompts([view.text]))
            by_model["distilled"] = draw(self.student.base, prompt, controls.draws, rng=rng)[0]
        return {name: self._score_texts(view.target, x) for name, x in by_model.items()}

    def _score_texts(self, target: Tilted, x: Sequences) -> list[dict[str, Any]]:
        columns = zip(self.model.tokenizer.decode(x.points()), log_prob(target.base, x), -log_weight(target, x), strict=True)
        return [{"text": text, "log_base": float(base), "energy": float(energy)} for text, base, energy in columns]


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
