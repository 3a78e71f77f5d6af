"""The residual paper's claims where everything is known: energies trained by noise contrast against exact answers.

The data come from random automata, none of them chosen; the base is a unigram model of `SEEN` of its sequences. For each
automaton a unidirectional and a bidirectional energy learn to tell data from draws of the base, after all prompts of at most
`LONGEST_PROMPT` symbols. Everything after that is compared with the enumerated space:

    rows       cross-entropy of base and joint model on the automaton, over its entropy
    coverage   how often each interval holds the exact number, with the first automaton's bidirectional energy
    pool       total variation between Pool(n) and the exact joint, beside that of as many exact draws
"""

import math
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.config import TransformerConfig
from esscher.bases.ngram import fit_ngram
from esscher.draws import Draws
from esscher.energies.building import build_energy
from esscher.energies.config import EnergyConfig, Reader
from esscher.estimate import Estimate
from esscher.estimators.log_z import log_z
from esscher.estimators.perplexity import tilted_cross_entropy, units_of
from esscher.estimators.perplexity_bounds import guaranteed_cross_entropy
from esscher.estimators.replicates import per_prompt
from esscher.estimators.scored import scored
from esscher.estimators.steps import per_step
from esscher.exact.automaton import Automaton
from esscher.exact.table import Table, tabulate
from esscher.objectives.noise_contrast import NoiseContrast
from esscher.randomness import Rng, Seeded
from esscher.recipes.coverage import LEVEL, Found, one_thread, tally
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Importance
from esscher.samplers.pool import Pool
from esscher.settings.training import TrainingConfig
from esscher.space import Sequences, Space, empty_prompts, prompts_of
from esscher.storage import read_tensors, write_tensors
from esscher.target import Base, Tilted
from esscher.testing.statistics import point_number
from esscher.training.processes import is_made
from esscher.training.trainer import Trainer

SPACE = Space(3, 5, eos=0)
STATES, LONGEST_PROMPT, SEEN = 5, 2, 84
PROMPTS = [list(prompt) for length in range(LONGEST_PROMPT + 1) for prompt in product((1, 2), repeat=length)]
NETWORK = TransformerConfig(width=32, layers=2, heads=2, feedforward=64, max_positions=16)
READERS: dict[str, Reader] = {"UniT": "unidirectional", "BiT": "bidirectional"}
ENDS = 0.1
DRAWS, FEW_DRAWS, STEP_DRAWS = 400, 50, 24  # of one prompt, of each of several, of each prefix
TEST_SEQUENCES, STEP_SEQUENCES = 200, 60
FEWEST = 20
NAME = "trained BiT"
POOLS = (1, 4, 16, 64, 256)
FLOORS = 10  # samples of the exact joint, whose mean distance is the floor
ROWS_AT_ONCE = 2**19


@dataclass(frozen=True)
class Scale:
    """What differs between the scales."""

    automata: int
    sequences: int  # of the data, for each prompt
    steps: int
    replications: int
    pooled: int  # draws of each pool size


SCALES = {
    "smoke": Scale(1, 800, 200, 40, 2_000),
    "small": Scale(6, 3_000, 1_500, 300, 20_000),
    "paper": Scale(30, 5_000, 4_000, 2_000, 100_000),
}


def run(*, scale: str, out: Path, seeds: int) -> dict[str, Any]:
    """All automata with both energies; `seeds` times as many automata."""
    chosen, rows = SCALES[scale], []
    with one_thread():
        for seed in range(chosen.automata * seeds):
            known = {name: study(seed, name, chosen, out) for name in READERS}
            rows += [row(seed, name, one) for name, one in known.items()]
            if seed == 0:
                first = known["BiT"]
        found = coverage(first, chosen.replications)
        pools = [pool_row(first, size, chosen.pooled) for size in POOLS]
    return {"rows": rows, "coverage": found, "pool": pools, "paper": []}


@dataclass(frozen=True)
class Known:
    """A trained energy with the truth: the automaton that made the data, and every point after every prompt."""

    process: Automaton
    base: Base
    table: Table  # of the joint model
    right: Table  # of the automaton

    @property
    def target(self) -> Tilted:
        """The joint model with its energies looked up."""
        return Tilted(self.base, Looked(self.table))

    def cross(self, other: Float[Tensor, "P K"]) -> Float[Tensor, "P"]:
        """Nats for each sequence of the automaton under other log-probabilities, after each prompt."""
        return -(self.right.log_prob.exp() * other).sum(-1)


class Looked:
    """The energies of a table as a function of sequences: many draws of few points cost no network."""

    def __init__(self, table: Table):
        prompts = table.x.rows(slice(0, None, table.log_prob.shape[1])).prompts()
        self.energy, self.space = -table.log_weight, table.space
        self.order = _prompt_number(prompts).argsort()
        self.numbers = _prompt_number(prompts)[self.order]

    def __call__(self, x: Sequences) -> Float[Tensor, "B"]:
        wanted = _prompt_number(x)
        place = torch.searchsorted(self.numbers, wanted).clamp(max=len(self.numbers) - 1)
        if not torch.equal(self.numbers[place], wanted):
            raise ValueError("A prompt is not among those of the table. Nothing was looked up; tabulate it, too.")
        return self.energy[self.order[place], point_number(self.space, x)]


def _prompt_number(x: Sequences) -> Int[Tensor, "B"]:
    """Different for different prompts: its tokens, counted from 1, as digits."""
    digits = x.tokens[:, : int(x.start.max())] + 1
    inside = torch.arange(digits.shape[1]) < x.start[:, None]
    return (torch.where(inside, digits, 0) * 8 ** torch.arange(digits.shape[1])).sum(-1)


def random_process(seed: int) -> Automaton:
    """An automaton with normal log-weights of deviation 1.5 and random moves; every state ends with probability `ENDS`."""
    generator = torch.Generator().manual_seed(seed)
    symbols = 1.5 * torch.randn(STATES, SPACE.vocab_size - 1, generator=generator, dtype=torch.float64)
    emit = torch.log_softmax(symbols, -1) + math.log(1 - ENDS)
    emit = torch.cat([torch.full_like(emit[:, :1], math.log(ENDS)), emit], 1)
    return Automaton(emit, torch.randint(STATES, (STATES, SPACE.vocab_size), generator=generator), SPACE)


def study(seed: int, name: str, scale: Scale, out: Path | None = None) -> Known:
    """Data of an automaton, a base that saw little of it, an energy that learns the rest; kept in a folder if there is one."""
    process, prompts, rng = random_process(seed), prompts_of(PROMPTS), Seeded(seed, "residual laboratory")
    seen, _ = draw(process, prompts, SEEN // len(PROMPTS), rng=rng.stream("seen"))
    base = fit_ngram(seen, SPACE, order=1)
    table, right = tabulate(Tilted(base), prompts), tabulate(Tilted(process), prompts)
    file = None if out is None else out / f"automaton-{seed}-{name}-{scale.sequences}-{scale.steps}.safetensors"
    if file is not None and is_made(file):
        return Known(process, base, replace(table, log_weight=read_tensors(file)["log_weight"]), right)
    data, _ = draw(process, prompts, scale.sequences, rng=rng.stream("data"))
    energy = build_energy(EnergyConfig(READERS[name], "sum", NETWORK), base, rng=rng.stream("energy"))
    training = TrainingConfig(
        steps=scale.steps, batch_size=128, learning_rate=0.004, optimiser="adam", schedule="cosine", warmup=20, seed=seed,
        device="cpu",
    )  # fmt: skip
    Trainer(training, quiet=True)(NoiseContrast(negatives=2), Tilted(base, energy), data, modules=energy)
    joint = tabulate(Tilted(base, energy.eval()), prompts)
    if file is not None:
        write_tensors(file, {"log_weight": joint.log_weight})
    return Known(process, base, joint, right)


def row(seed: int, name: str, known: Known) -> dict[str, Any]:
    """Exact nats for each sequence, the mean over prompts, and over the entropy."""
    entropy = float(known.right.entropy.mean())
    base, joint = float(known.cross(known.table.log_base).mean()), float(known.cross(known.table.log_prob).mean())
    return {
        "automaton": seed,
        "energy": name,
        "entropy": entropy,
        "CE base": base,
        "CE joint": joint,
        "base / entropy": base / entropy,
        "joint / entropy": joint / entropy,
        "mean log Z": float(known.table.log_z.mean()),
        "largest |log Z|": float(known.table.log_z.abs().max()),
    }


def coverage(known: Known, replications: int) -> list[dict[str, Any]]:
    """How often each interval held the exact number; every replication draws anew, and has its own test sequences."""
    truth = exact_numbers(known)
    found: dict[int, Found] = {}  # by the number of draws
    kept = 0
    runs = Importance()(known.target, empty_prompts(replications), DRAWS, rng=Seeded(0, "one prompt"))
    for number, drawn in enumerate(per_prompt(runs)):
        rng = Seeded(number, "coverage of trained energies")
        for (name, draws), value in _estimates(known, drawn, rng).items():
            if name in truth:
                found.setdefault(draws, {}).setdefault(name, []).append(value)
        kept += _promise_kept(known, rng.stream("promise"))
    rows = [row for draws, estimates in found.items() for row in tally(NAME, draws, truth, estimates)]
    promised = {"process": NAME, "quantity": "perplexity, guaranteed", "draws": FEW_DRAWS, "replications": replications}
    return [*rows, {**promised, "coverage": kept / replications}]


def exact_numbers(known: Known) -> dict[str, float]:
    """What the estimates of `coverage` are estimates of."""
    lengths = known.right.expect(lambda x: x.lengths)
    nats, log_z_of = known.cross(known.table.log_prob), known.table.log_z
    truth = {"log Z": float(log_z_of[0]), "perplexity": float(nats[0] / lengths[0])}
    return truth | {"mean log Z, prompts fixed": float(log_z_of.mean())} | _exact_steps(known)


def _estimates(known: Known, drawn: Draws, rng: Rng) -> dict[tuple[str, int], Estimate]:
    """Estimates by name and number of draws; without prompt but for the one that says so."""
    test, _ = draw(known.process, empty_prompts(1), TEST_SEQUENCES, rng=rng.stream("test"))
    score, units = scored(known.target, test, drawn), units_of(test, None)
    several = Importance()(known.target, prompts_of(PROMPTS), FEW_DRAWS, rng=rng.stream("several"))
    some = test.rows(slice(0, STEP_SEQUENCES))
    steps = per_step(known.target, some, Importance(), STEP_DRAWS, level=LEVEL, rng=rng.stream("steps"))
    return {
        ("log Z", DRAWS): log_z(drawn, level=LEVEL),
        ("perplexity", DRAWS): tilted_cross_entropy(score, units, test="sample", level=LEVEL)["token"],
        ("mean log Z, prompts fixed", FEW_DRAWS): log_z(several, prompts="fixed", level=LEVEL),
        **{(f"step {step.position}", STEP_DRAWS): step.tilted for step in steps},
    }


def _promise_kept(known: Known, rng: Rng) -> bool:
    """Whether the guarantee holds the exact cross-entropy of just these sequences, one after each prompt."""
    test, _ = draw(known.process, prompts_of(PROMPTS), 1, rng=rng.stream("test"))
    drawn = Importance()(known.target, prompts_of(PROMPTS), FEW_DRAWS, rng=rng.stream("draws"))
    score, units = scored(known.target, test, drawn), units_of(test, None)
    bounds = float(known.table.log_weight.min()) - 1e-6, float(known.table.log_weight.max()) + 1e-6
    exact = float((score.surprise + known.table.log_z).sum() / test.lengths.sum())
    return guaranteed_cross_entropy(score, units, bounds=bounds, level=LEVEL)["token"].covers(exact)


def _exact_steps(known: Known) -> dict[str, float]:
    """Nats of the joint at each position without prompt, over sequences of the automaton that reach it; where at least
    `FEWEST` of `STEP_SEQUENCES` are expected to."""
    points = known.right.log_prob.shape[1]
    x, share = known.right.x.rows(slice(0, points)), known.right.log_prob[0].exp()
    reach = (x.counted.double() * share[:, None]).sum(0)
    nats = -(share[:, None] * known.table.log_probs(x)).sum(0) / reach
    often = (reach * STEP_SEQUENCES >= FEWEST).tolist()
    return {f"step {place + 1}": value for place, value in enumerate(nats.tolist()) if often[place]}


def pool_row(known: Known, size: int, draws: int) -> dict[str, Any]:
    """Total variation between the empirical law of Pool(size) and the joint, without prompt."""
    exact = known.table.log_prob[0].exp()
    at_once = max(1, ROWS_AT_ONCE // size)
    rng, counts = Seeded(size, "pool"), torch.zeros_like(exact)
    for first in range(0, draws, at_once):
        drawn = Pool(size)(known.target, empty_prompts(1), min(at_once, draws - first), rng=rng.stream(first))
        counts += point_number(SPACE, drawn.x).bincount(minlength=len(exact)).double()
    floor = rng.stream("floor").categorical(known.table.log_prob[:1].expand(FLOORS, -1), draws)
    chance = [float((one.bincount(minlength=len(exact)) / draws - exact).abs().sum() / 2) for one in floor]
    return {
        "pool": size,
        "draws": draws,
        "total variation": float((counts / draws - exact).abs().sum() / 2),
        "of exact draws": math.fsum(chance) / FLOORS,
        "highest of exact draws": max(chance),
    }
