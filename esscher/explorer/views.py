"""What the explorer shows of a model, computed: candidates by weight, next tokens, changes along a text, energies, a student.

Everything here is what samplers and estimators give, for one prompt, from one seed; the page only dresses it. A pool grows in
parts (16 candidates, then as many again as there are), each part from its own stream of chance, so that the first ones are
shown early, the same seed gives the same candidates, and a larger pool begins with those of a smaller one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from esscher.bases.truncated import truncated
from esscher.draws import Draws, side_by_side
from esscher.energies.features import Explains
from esscher.estimate import Estimate
from esscher.estimators.energy_histograms import EnergyComparison, compare_energies
from esscher.estimators.next_token import NextToken, NextTokens, next_tokens
from esscher.estimators.steps import per_step
from esscher.randomness import Rng, Seeded
from esscher.reports.token_names import pieces, token_name
from esscher.samplers.ancestral import draw
from esscher.samplers.choice import SamplerSettings, choose_sampler
from esscher.samplers.importance import Importance
from esscher.samplers.pool import AdaptivePool, Chosen, Pool
from esscher.samplers.scores import log_prob, log_weight
from esscher.samplers.twists import Foresees
from esscher.space import Sequences, prompts_of, sequences
from esscher.target import Tilted, flat
from esscher.verbs.candidates import Candidate, candidates_of, pool_rows
from esscher.verbs.comparison import gather
from esscher.verbs.models import Model
from esscher.verbs.subsets import some_of
from esscher.verbs.tilt import read_sets, source_of

SAMPLERS = ("pool", "adaptive-pool", "particles")
FIRST = 16  # candidates that are shown before there are more
DATA, DATA_DRAWS = 100, 16  # sequences of the data whose energies are compared, and base draws for each


@dataclass(frozen=True)
class Controls:
    """What the page's controls say; `top_k` 0 keeps every token."""

    sampler: str = "pool"
    pool: int = 64
    temperature: float = 1.0
    top_k: int = 0
    draws: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sampler not in SAMPLERS:
            raise ValueError(f"No sampler named {self.sampler!r} here. Nothing was drawn; choose from: {', '.join(SAMPLERS)}.")
        if self.pool < 2 or self.draws < 1 or self.top_k < 0 or not self.temperature > 0:
            raise ValueError(f"No candidates can be drawn as {self} says. Nothing was drawn.")

    def target(self, target: Tilted) -> Tilted:
        """The target with its base truncated, where that is asked for."""
        base = truncated(target.base, top_k=self.top_k or None, temperature=self.temperature)
        return Tilted(base, target.energy)


@dataclass(frozen=True)
class View:
    """The candidates after one prompt, and the draws that were chosen from them."""

    prompt: str
    target: Tilted
    given: Sequences  # the prompt as the model reads it
    chosen: Chosen
    rows: list[Candidate]  # the largest share first
    parts: list[Mapping[str, float]]  # of -E of each of them; empty where the energy names none
    pool: Mapping[str, Any]  # what the pool says of itself: log_z with its interval, the verdict, advice
    complete: bool


@dataclass(frozen=True)
class TokenChange:
    """One token of a text: what the tilt does to its log-probability there, and what the energy foresees after it."""

    text: str
    base: Estimate  # nats, log a(x_t | x_<t)
    change: Estimate  # nats, log p(x_t | x_<t) - log a(x_t | x_<t)
    foreseen: float | None


@dataclass(frozen=True)
class Explorer:
    """A model, perhaps its student, and the prompts to begin with."""

    model: Model
    energy: Path | None = None
    student: Model | None = None
    examples: Sequence[str] = ()
    cache: dict[str, Sequences] = field(default_factory=dict)

    @property
    def tilted(self) -> bool:
        return self.model.target.energy is not flat

    def prompt(self, text: str) -> Sequences:
        """The prompt as the model reads it."""
        given = prompts_of(self.model.prompts([text]))
        if int(given.start[0]) == 0 and self.model.given > 0:
            raise ValueError(
                f"The prompt is empty, and this model goes on from {self.model.given} tokens. Nothing was drawn; type some."
            )
        return given

    def draw(self, text: str, controls: Controls) -> Iterator[View]:
        """Candidates after the prompt, a few at first; the last view has them all."""
        given, target, rng = self.prompt(text), controls.target(self.model.target), Seeded(controls.seed)
        if controls.sampler == "pool":
            for candidates in _growing(target, given, controls.pool, rng):
                yield self._view(text, target, given, _choice(candidates, controls.draws, rng), controls.pool)
            return
        settings = SamplerSettings(pool=controls.pool, largest=max(16, controls.pool), effective=8.0, shared=True)
        sampler = choose_sampler(controls.sampler, settings)
        assert isinstance(sampler, Pool | AdaptivePool)
        (chosen,) = sampler.choose(target, given, controls.draws, rng=rng)
        yield self._view(text, target, given, chosen, chosen.pool)

    @torch.no_grad()
    def _view(self, text: str, target: Tilted, given: Sequences, chosen: Chosen, pool: int) -> View:
        (rows,) = candidates_of([chosen], target, self.model.tokenizer)
        (told,) = pool_rows([text], [chosen])
        parts: list[Mapping[str, float]] = [{} for _ in rows]
        if isinstance(target.energy, Explains):
            named = target.energy.parts(_points_after(given, [row.point for row in rows]))
            columns = {name: part.tolist() for name, part in named.items()}
            parts = [{name: column[place] for name, column in columns.items()} for place in range(len(rows))]
        return View(text, target, given, chosen, rows, parts, told, len(chosen.candidates.x) >= pool)

    def next_tokens(self, text: str, controls: Controls, *, top: int = 8, draws: int = 64) -> tuple[list[str], NextTokens]:
        """The likeliest next tokens under base and joint, with their names; of a base alone, the base's twice."""
        given, target = self.prompt(text), controls.target(self.model.target)
        rng = Seeded(controls.seed).stream("next tokens")
        found = next_tokens(target, given, top=top, draws=draws, rng=rng) if self.tilted else _plain_tokens(target, given, top)
        before = given.tokens[0].tolist()
        return [token_name(row.token, before, self.model.tokenizer) for row in found.rows], found

    def changes(self, view: View, rank: int, controls: Controls, *, draws: int = 32) -> list[TokenChange]:
        """Token by token along the candidate of that rank (from 1); the changes add up to -E(x) - log Z, as it is estimated."""
        if not 1 <= rank <= len(view.rows):
            raise ValueError(f"There are {len(view.rows)} different candidates, so none of rank {rank}. Nothing was computed.")
        point, given = view.rows[rank - 1].point, view.given.tokens[0].tolist()
        x = _points_after(view.given, [point])
        rng = Seeded(controls.seed).stream("changes", rank)
        steps = per_step(view.target, x, Importance(), draws, test="fixed", rng=rng)
        foreseen = _foreseen(view.target, x)
        rows = zip(pieces(point, given, self.model.tokenizer), steps, foreseen, strict=True)
        return [TokenChange(text, _negative(step.base), step.saved, level) for text, step, level in rows]

    def energies(self, controls: Controls) -> EnergyComparison:
        """Energies of held-out data, of base draws and of joint draws after the data's own prompts."""
        rng = Seeded(controls.seed).stream("energies")
        x = some_of(self.held_out, DATA, rng=rng.stream("sequences"))
        target = controls.target(self.model.target)
        return compare_energies(target, gather(target, x, DATA_DRAWS, rng=rng.stream("draws")), rng=rng.stream("resamples"))

    @property
    def held_out(self) -> Sequences:
        """Data that neither base nor energy learnt from, as their folders tell; read once."""
        if "data" not in self.cache:
            source = None if self.energy is None else source_of(self.energy)
            self.cache["data"] = read_sets(self.model, source).test
        return self.cache["data"]

    def three(self, view: View, controls: Controls) -> dict[str, list[dict[str, Any]]]:
        """Draws of the base, of the tilted model and of the student after the same prompt, each with its energy."""
        draws = view.chosen.candidates
        of_base = draws.x.rows(slice(0, controls.draws))
        sides = {"base": of_base, "tilted": draws.x.rows(view.chosen.pick[0])}
        if self.student is not None:
            rng = Seeded(controls.seed).stream("student")
            own = prompts_of(self.student.prompts([view.prompt]))
            sides["distilled"] = draw(self.student.base, own, controls.draws, rng=rng)[0]
        return {name: self._told(view.target, x) for name, x in sides.items()}

    def _told(self, target: Tilted, x: Sequences) -> list[dict[str, Any]]:
        columns = zip(self.model.tokenizer.decode(x.points()), log_prob(target.base, x), -log_weight(target, x), strict=True)
        return [{"text": text, "log_base": float(base), "energy": float(energy)} for text, base, energy in columns]


def _growing(target: Tilted, given: Sequences, pool: int, rng: Rng) -> Iterator[Draws]:
    """Draws with weights, of which there are ever more, until there are `pool`."""
    found = Importance()(target, given, min(FIRST, pool), rng=rng.stream("part", 0))
    part = 0
    yield found
    while (have := found.log_weight.shape[1]) < pool:
        part += 1
        more = Importance()(target, given, min(have, pool - have), rng=rng.stream("part", part))
        found = side_by_side([found, more])
        yield found


def _choice(candidates: Draws, draws: int, rng: Rng) -> Chosen:
    """Plain draws chosen by weight from these candidates, which they share."""
    if bool((candidates.log_weight == -torch.inf).all()):
        raise ValueError(
            f"The energy forbids all {candidates.log_weight.shape[1]} candidates after this prompt. Nothing is shown; "
            f"enlarge the pool, or type another prompt."
        )
    pick = rng.stream("pick").categorical(candidates.log_weight, draws)
    effective = candidates.effective()[:, None].expand(-1, draws)
    one = torch.zeros(1, dtype=torch.long)
    return Chosen(one, candidates, pick, candidates.log_weight.shape[1], effective, one == 0, independent=False)


def _points_after(given: Sequences, points: Sequence[Sequence[int]]) -> Sequences:
    return sequences(points, [given.tokens[0, : int(given.start[0])].tolist()] * len(points))


@torch.no_grad()
def _plain_tokens(target: Tilted, given: Sequences, top: int) -> NextTokens:
    share = target.base.begin(given)[0][0].double().softmax(-1).cpu()
    shown = share.topk(min(top, len(share)))
    pairs = [*zip(shown.indices.tolist(), shown.values.tolist(), strict=True), (None, max(0.0, 1 - float(shown.values.sum())))]
    return NextTokens(tuple(NextToken(token, Estimate.exact(value), Estimate.exact(value)) for token, value in pairs))


@torch.no_grad()
def _foreseen(target: Tilted, x: Sequences) -> list[float | None]:
    """What the energy foresees after each token of one point, where it foresees."""
    length = int(x.lengths[0])
    if not isinstance(target.energy, Foresees):
        return [None] * length
    every = x.repeat(length)
    stop = every.start + torch.arange(1, length + 1)
    levels: Tensor = target.energy.after(Sequences(every.tokens, every.start, stop))
    return [float(level) for level in levels]


def _negative(found: Estimate) -> Estimate:
    return Estimate(-found.value, -found.high, -found.low, found.level, found.draws, found.method, "nats")
