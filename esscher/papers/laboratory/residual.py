"""Residual energy-based models on random automata: energies trained by noise contrast against enumerated exact values. The base
is a unigram model of `BASE_SEQUENCES` sequences; prompts have at most `LONGEST_PROMPT` symbols."""

import math
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.bases.ngram import fit_ngram
from esscher.core.draws import Draws
from esscher.core.estimate import Estimate
from esscher.core.progress import progress_as
from esscher.core.randomness import Rng, SeededRng
from esscher.core.space import Sequences, Space, empty_prompts, prompts_of
from esscher.core.storage import read_tensors, write_tensors
from esscher.core.target import Base, Tilted
from esscher.energies.config import EncoderKind, EnergyConfig
from esscher.energies.network import build_energy
from esscher.estimators.expectations import per_prompt
from esscher.estimators.log_z import log_z
from esscher.estimators.per_position import per_position
from esscher.estimators.perplexity import guaranteed_cross_entropy, score_sequences, tilted_cross_entropy, unit_counts
from esscher.exact.automaton import Automaton
from esscher.exact.enumeration import ExactTable, tabulate
from esscher.networks.transformer_config import TransformerConfig
from esscher.objectives.noise_contrastive import NoiseContrast
from esscher.papers.laboratory.coverage import CONFIDENCE, EstimatesByName, coverage_table, single_thread
from esscher.papers.study import Row, StudyContext
from esscher.samplers.ancestral import draw
from esscher.samplers.importance import Importance
from esscher.samplers.sir import SIR
from esscher.testing.statistics import point_number
from esscher.training.collectives import exists_on_main_process
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer

SPACE = Space(3, 5, eos=0)
STATES, LONGEST_PROMPT, BASE_SEQUENCES = 5, 2, 84
PROMPTS = [list(prompt) for length in range(LONGEST_PROMPT + 1) for prompt in product((1, 2), repeat=length)]
NETWORK = TransformerConfig(width=32, layers=2, heads=2, feedforward=64, max_positions=16)
READERS: dict[str, EncoderKind] = {"UniT": "unidirectional", "BiT": "bidirectional"}
ENDS = 0.1
DRAWS, FEW_DRAWS, STEP_DRAWS = 400, 50, 24  # of one prompt, of each of several, of each prefix
TEST_SEQUENCES, STEP_SEQUENCES = 200, 60
MIN_EXPECTED_SEQUENCES = 20
NAME = "trained BiT"
POOLS = (1, 4, 16, 64, 256)
FLOOR_SAMPLES = 10  # sets of exact draws, whose mean distance is the floor
ROWS_AT_ONCE = 2**19


@dataclass(frozen=True, kw_only=True)
class LaboratoryScale:
    """The settings that differ between scales."""

    automata: int
    sequences: int  # of the data, for each prompt
    steps: int
    replications: int
    pool_draws: int  # of each pool size


SCALES = {
    "smoke": LaboratoryScale(automata=1, sequences=800, steps=200, replications=40, pool_draws=2_000),
    "small": LaboratoryScale(automata=6, sequences=3_000, steps=1_500, replications=300, pool_draws=20_000),
    "paper": LaboratoryScale(automata=30, sequences=5_000, steps=4_000, replications=2_000, pool_draws=100_000),
}


def run(context: StudyContext) -> dict[str, Any]:
    """All automata with both energies; `seeds` times as many automata."""
    scale, rows = SCALES[context.scale], []
    with single_thread():
        for seed in range(scale.automata * context.seeds):
            compared = {name: train_energy(seed, name, scale, context.out) for name in READERS}
            rows += [entropy_row(seed, name, comparison) for name, comparison in compared.items()]
            if seed == 0:
                first = compared["BiT"]
        coverage = coverage_rows(first, scale.replications)
        pools = [pool_row(first, size, scale.pool_draws) for size in POOLS]
    return {"rows": rows, "coverage": coverage, "pool": pools, "paper": []}


@dataclass(frozen=True)
class ExactComparison:
    """A trained energy and the automaton that made its data, with the probability of every sequence after every prompt."""

    process: Automaton
    base: Base
    table: ExactTable  # of the joint model
    process_table: ExactTable  # of the automaton

    @property
    def target(self) -> Tilted:
        """The joint model with a table of its energies."""
        return Tilted(self.base, TableEnergy(self.table))

    def cross(self, other: Float[Tensor, "P K"]) -> Float[Tensor, "P"]:
        """Nats for each sequence of the automaton under other log-probabilities, after each prompt."""
        return -(self.process_table.log_prob.exp() * other).sum(-1)


class TableEnergy:
    """The energies of a table as an energy: many draws from a small space need no network."""

    def __init__(self, table: ExactTable):
        prompts = table.x.rows(slice(0, None, table.log_prob.shape[1])).prompts()
        self.energy, self.space = -table.log_weight, table.space
        self.order = _prompt_number(prompts).argsort()
        self.numbers = _prompt_number(prompts)[self.order]

    def __call__(self, x: Sequences) -> Float[Tensor, "B"]:
        numbers = _prompt_number(x)
        place = torch.searchsorted(self.numbers, numbers).clamp(max=len(self.numbers) - 1)
        if not torch.equal(self.numbers[place], numbers):
            raise ValueError("A prompt is not among those of the table. Nothing was looked up; tabulate it, too.")
        return self.energy[self.order[place], point_number(self.space, x)]


def _prompt_number(x: Sequences) -> Int[Tensor, "B"]:
    """A number that identifies a prompt: its tokens plus 1 as octal digits."""
    digits = x.tokens[:, : int(x.start.max())] + 1
    position = torch.arange(digits.shape[1], device=digits.device)
    return (torch.where(position < x.start[:, None], digits, 0) * 8**position).sum(-1)


def random_process(seed: int) -> Automaton:
    """An automaton with normal log-weights of deviation 1.5 and random transitions; each state ends with probability `ENDS`."""
    generator = torch.Generator().manual_seed(seed)
    symbols = 1.5 * torch.randn(STATES, SPACE.vocab_size - 1, generator=generator, dtype=torch.float64)
    log_emission = torch.log_softmax(symbols, -1) + math.log(1 - ENDS)
    log_emission = torch.cat([torch.full_like(log_emission[:, :1], math.log(ENDS)), log_emission], 1)
    return Automaton(log_emission, torch.randint(STATES, (STATES, SPACE.vocab_size), generator=generator), SPACE)


def train_energy(seed: int, name: str, scale: LaboratoryScale, out: Path | None = None) -> ExactComparison:
    """Fit a base to few sequences of an automaton and train an energy on many; log-weights are kept in `out` if given."""
    process, prompts, rng = random_process(seed), prompts_of(PROMPTS), SeededRng(seed, "residual laboratory")
    seen, _ = draw(process, prompts, BASE_SEQUENCES // len(PROMPTS), rng=rng.stream("seen"))
    base = fit_ngram(seen, SPACE, order=1)
    table, process_table = tabulate(Tilted(base), prompts), tabulate(Tilted(process), prompts)
    file = None if out is None else out / f"automaton-{seed}-{name}-{scale.sequences}-{scale.steps}.safetensors"
    if file is not None and exists_on_main_process(file):
        return ExactComparison(process, base, replace(table, log_weight=read_tensors(file)["log_weight"]), process_table)
    data, _ = draw(process, prompts, scale.sequences, rng=rng.stream("data"))
    energy = build_energy(EnergyConfig(READERS[name], "sum", NETWORK), base, rng=rng.stream("energy"))
    training = TrainingConfig(
        steps=scale.steps, batch_size=128, learning_rate=0.004, optimizer="adam", schedule="cosine", warmup_steps=20,
        seed=seed,
    )  # fmt: skip
    with progress_as("quiet"):
        Trainer(training)(NoiseContrast(negatives=2), Tilted(base, energy), data, modules=energy)
    joint = tabulate(Tilted(base, energy.eval()), prompts)
    if file is not None:
        write_tensors(file, {"log_weight": joint.log_weight})
    return ExactComparison(process, base, joint, process_table)


def entropy_row(seed: int, name: str, comparison: ExactComparison) -> Row:
    """Exact cross-entropies in nats per sequence, averaged over prompts, and their ratios to the entropy."""
    entropy, table = float(comparison.process_table.entropy.mean()), comparison.table
    base, joint = (float(comparison.cross(log_prob).mean()) for log_prob in (table.log_base, table.log_prob))
    return {
        "automaton": seed, "energy": name, "entropy": entropy, "CE base": base, "CE joint": joint,
        "base / entropy": base / entropy, "joint / entropy": joint / entropy,
        "mean log Z": float(table.log_z.mean()), "largest |log Z|": float(table.log_z.abs().max()),
    }  # fmt: skip


def coverage_rows(comparison: ExactComparison, replications: int) -> list[Row]:
    """How often each interval covered the exact value; every replication has its own draws and test sequences."""
    truth, covered = exact_values(comparison), 0
    estimates: dict[int, EstimatesByName] = {}  # by the number of draws
    runs = Importance()(comparison.target, empty_prompts(replications), DRAWS, rng=SeededRng(0, "one prompt"))
    for number, drawn in enumerate(per_prompt(runs)):
        rng = SeededRng(number, "coverage of trained energies")
        for (name, draws), value in _estimates(comparison, drawn, rng).items():
            if name in truth:
                estimates.setdefault(draws, {}).setdefault(name, []).append(value)
        covered += _guarantee_holds(comparison, rng.stream("promise"))
    rows = [row for draws, by_name in estimates.items() for row in coverage_table(NAME, draws, truth, by_name)]
    guaranteed = {"process": NAME, "quantity": "perplexity, guaranteed", "draws": FEW_DRAWS, "replications": replications}
    return [*rows, {**guaranteed, "coverage": covered / replications}]


def exact_values(comparison: ExactComparison) -> dict[str, float]:
    """The exact values of the quantities that `coverage_rows` estimates. A step is a position after the empty prompt: its nats
    under the joint model, over the sequences of the automaton that have this position, if at least `MIN_EXPECTED_SEQUENCES` of
    `STEP_SEQUENCES` are expected to."""
    table, process = comparison.table, comparison.process_table
    nats, lengths = comparison.cross(table.log_prob), process.expect(lambda x: x.lengths)
    truth = {"log Z": float(table.log_z[0]), "perplexity": float(nats[0] / lengths[0])}
    truth["mean log Z, prompts fixed"] = float(table.log_z.mean())
    x, share = process.x.rows(slice(0, process.log_prob.shape[1])), process.log_prob[0].exp()
    present = (x.counted.double() * share[:, None]).sum(0)
    steps = (-(share[:, None] * table.log_probs(x)).sum(0) / present).tolist()
    often = (present * STEP_SEQUENCES >= MIN_EXPECTED_SEQUENCES).tolist()
    return truth | {f"step {place + 1}": value for place, value in enumerate(steps) if often[place]}


def _estimates(comparison: ExactComparison, drawn: Draws, rng: Rng) -> dict[tuple[str, int], Estimate]:
    """Estimates by name and number of draws; after the empty prompt, except for the mean over prompts."""
    test, _ = draw(comparison.process, empty_prompts(1), TEST_SEQUENCES, rng=rng.stream("test"))
    score, units = score_sequences(comparison.target, test, drawn), unit_counts(test, None)
    several = Importance()(comparison.target, prompts_of(PROMPTS), FEW_DRAWS, rng=rng.stream("several"))
    some = test.rows(slice(0, STEP_SEQUENCES))
    steps = per_position(comparison.target, some, Importance(), STEP_DRAWS, confidence=CONFIDENCE, rng=rng.stream("steps"))
    return {
        ("log Z", DRAWS): log_z(drawn, confidence=CONFIDENCE),
        ("perplexity", DRAWS): tilted_cross_entropy(score, units, test="sample", confidence=CONFIDENCE)["token"],
        ("mean log Z, prompts fixed", FEW_DRAWS): log_z(several, prompts="fixed", confidence=CONFIDENCE),
        **{(f"step {step.position}", STEP_DRAWS): step.tilted for step in steps},
    }


def _guarantee_holds(comparison: ExactComparison, rng: Rng) -> bool:
    """Whether the guaranteed bounds cover the exact cross-entropy of one sequence after each prompt."""
    test, _ = draw(comparison.process, prompts_of(PROMPTS), 1, rng=rng.stream("test"))
    drawn = Importance()(comparison.target, prompts_of(PROMPTS), FEW_DRAWS, rng=rng.stream("draws"))
    score, units = score_sequences(comparison.target, test, drawn), unit_counts(test, None)
    bounds = float(comparison.table.log_weight.min()) - 1e-6, float(comparison.table.log_weight.max()) + 1e-6
    exact = float((score.nll + comparison.table.log_z).sum() / test.lengths.sum())
    return guaranteed_cross_entropy(score, units, bounds=bounds, confidence=CONFIDENCE)["token"].covers(exact)


def pool_row(comparison: ExactComparison, size: int, draws: int) -> Row:
    """Total variation between the empirical distribution of SIR(size) and the joint model, after the empty prompt."""
    exact, rng, at_once = comparison.table.log_prob[0].exp(), SeededRng(size, "pool"), max(1, ROWS_AT_ONCE // size)

    def distance(counts: Tensor) -> float:
        return float((counts / draws - exact).abs().sum() / 2)

    counts = torch.zeros_like(exact)
    for first in range(0, draws, at_once):
        drawn = SIR(size, shared=False)(comparison.target, empty_prompts(1), min(at_once, draws - first), rng=rng.stream(first))
        counts += point_number(SPACE, drawn.x).bincount(minlength=len(exact)).double()
    floor = rng.stream("floor").categorical(comparison.table.log_prob[:1].expand(FLOOR_SAMPLES, -1), draws)
    floors = [distance(sample.bincount(minlength=len(exact))) for sample in floor]
    return {
        "pool": size, "draws": draws, "total variation": distance(counts), "of exact draws": math.fsum(floors) / FLOOR_SAMPLES,
        "highest of exact draws": max(floors),
    }  # fmt: skip
