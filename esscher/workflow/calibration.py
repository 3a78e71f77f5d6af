"""Times of real steps on this machine, for `esscher.workflow.cost`: gradients of updates, draws, scores of sequences.

What is timed leaves no trace: gradients are dropped and no weight is updated, draws have a stream of random numbers of their
own, buffers and the training mode are restored. Where a first step shows that the work is short, no second one is taken. Larger
batches are faster a row than smaller ones, so draws and scores are timed in batches that grow up to the size of the real ones
as long as one takes no more than `BUDGET` seconds.
"""

import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esscher.bases.network import NetworkBase
from esscher.core.objective import Objective
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences
from esscher.core.target import Tilted
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.samplers.scoring import log_prob, log_weight
from esscher.training.batches import RowData
from esscher.training.checkpoint import KEEP_LAST, CheckpointManager
from esscher.training.config import OptimizerConfig, TrainingConfig
from esscher.training.evaluation import HeldOut
from esscher.training.stream_batches import TokenStream
from esscher.training.trainer import TrainingLoop
from esscher.workflow.cost import LONG, Phase, StepTime, is_dry_run

BUDGET = 1.0  # seconds that one timed step may take before the next is larger
TIMED_UPDATES = 3
FORWARD_SHARE = 1 / 3  # of the time of a gradient
REFERENCE_GFLOPS = 140  # of matrix products, on the two cores that recipes were timed on
FIRST_TOKENS = 4  # that the first timed draws have
BYTES_PER_TOKEN = 8  # of draws in files
OPTIMIZER_STATES = {"adam": 2, "adamw": 2, "adagrad": 1, "sgd": 1}  # tensors for each weight


@dataclass(frozen=True)
class TrainingCost:
    """The phases of a training run, the bytes of its weights, checkpoints and peak of memory, and the time of one row."""

    phases: tuple[Phase, ...]
    weights: int
    checkpoints: int
    memory: int
    row: StepTime  # the gradient of one sequence, or of one segment of a column
    data: Sequences | TokenStream | RowData

    def scoring(self, name: str, data: Sequences | RowData | TokenStream) -> Phase:
        """A pass over other data without a gradient."""
        tokens = _tokens(data)
        rows = -(-len(data) // data.segment) if isinstance(data, TokenStream) else len(data)
        unit = "scored segments" if isinstance(data, TokenStream) else "scored sequences"
        return Phase(name, rows, unit, self.row.scaled(FORWARD_SHARE), tokens=tokens)


def training_cost(
    config: TrainingConfig,
    objective: Objective,
    target: Any,
    data: Sequences | TokenStream | RowData,
    *,
    modules: nn.Module,
    validation: HeldOut | None,
    optimizer_configs: Mapping[str, OptimizerConfig] | None = None,
    folder: Path | None = None,
    resume: bool = False,
    drawn_elsewhere: StepTime | None = None,
) -> TrainingCost:
    """What `Trainer(config)` would need for the same arguments; modules are left as they are. `drawn_elsewhere` is the time of
    draws for one row that the objective makes here, and takes from a file in the real run."""
    plain = replace(config, tracker=None, gradient_checkpointing=False, fsdp=False)
    with restored(modules):
        loop = TrainingLoop(plain, objective, target, data, {"model": modules}, optimizer_configs or {}, validation, None)
        done = _steps_done(folder) if resume else 0
        steps = max(0, loop.steps - done)
        first = [seconds_of(partial(loop.add_gradients, 0))]
        if is_dry_run() or steps * first[0] > LONG:
            more = range(1, 1 + min(TIMED_UPDATES, steps))
            first = [seconds_of(partial(loop.add_gradients, step)) for step in more if sum(first) < 4 * BUDGET] or first
        loop.optimizers.clear()
    rows = config.batch_size
    each = StepTime.of(first).scaled(4 / 3 if config.gradient_checkpointing else 1)
    if drawn_elsewhere is not None:
        least = each.mean / 5
        each = StepTime(
            *(max(least, t - rows * d) for t, d in zip(vars(each).values(), vars(drawn_elsewhere).values(), strict=True))
        )
    sampled = [loop.batch_source.tokens(step) for step in range(min(loop.steps, 16))]
    tokens = round(sum(sampled) / len(sampled))
    size = f"{rows:,} x {data.segment:,} tokens" if isinstance(data, TokenStream) else f"{rows:,} sequences"
    size += f", {tokens:,} tokens" if isinstance(data, Sequences) else ""
    phases = [
        Phase("training", steps, "updates", each, size, steps * tokens if isinstance(data, Sequences | TokenStream) else 0)
    ]
    row = each.scaled(1 / rows)
    bytes_ = sum(weight.numel() * weight.element_size() for weight in modules.parameters())
    learning = sum(weight.numel() * 4 for weight in modules.parameters() if weight.requires_grad)
    states = OPTIMIZER_STATES[config.optimizer] * learning
    cost = TrainingCost((), bytes_, (KEEP_LAST + 1) * (bytes_ + states), peak_memory(modules) + states, row, data)
    if validation is not None:
        one = cost.scoring("evaluation", validation.data)
        evaluations = -(-steps // loop.evaluate_every)
        size = f"{one.count:,} {one.unit}"
        phases.append(
            Phase("evaluation", evaluations, "evaluations", one.each.scaled(one.count), size, evaluations * one.tokens)
        )
    return replace(cost, phases=tuple(phases))


def drawing(
    name: str, target: Tilted, prompts: Sequences, draws: int, *, at_once: int, rows: int | None = None, unit: str = "draws"
) -> Phase:
    """`draws` after each prompt, `at_once` of them in one pass; `rows` is their number where it is not prompts times draws."""
    total, length = len(prompts) * draws if rows is None else rows, target.space.max_length
    rng, most = SeededRng(0).stream("calibration"), max(1, min(at_once, total))

    def chosen(count: int) -> tuple[Sequences, int]:
        each = max(1, min(draws, count))
        return prompts.rows(slice(0, max(1, min(len(prompts), count // each)))), each

    def some(count: int, sampler: Any, model: Tilted) -> int:
        part, each = chosen(count)
        return len(sampler(model, part, each, rng=rng).x)

    few, short, base = min(4, most), min(FIRST_TOKENS, length), Tilted(target.base)
    step = seconds_of(lambda: some(few, Ancestral(short), base)) / short
    if step * length * total / few <= LONG and not is_dry_run():
        return Phase(name, total, unit, StepTime.of([step * length / few]), tokens=total * length)
    if step * length <= BUDGET:
        each = _growing(lambda count: some(count, Importance(), target), most)
    else:
        each = _growing(lambda count: some(count, Ancestral(short), base), most).scaled(length / short)
    return Phase(name, total, unit, each, f"at most {length:,} tokens", total * length)


def scoring(name: str, target: Tilted, x: Sequences) -> Phase:
    """Log-probability, and energy of a tilted model, of sequences."""

    def some(count: int) -> int:
        part = x.rows(slice(0, count))
        log_prob(target.base, part)
        log_weight(target, part)
        return len(part)

    return Phase(name, len(x), "scored sequences", _growing(some, min(len(x), 512)), tokens=int(x.lengths.sum()))


@torch.no_grad()
def reading(name: str, base: NetworkBase, text: Tensor, tokens: int, columns: int, segment: int) -> Phase:
    """`tokens` of a stream in columns, a segment of each at a time, with the memory."""
    device, memory, times = next(base.parameters()).device, base.init_memory(columns), []
    piece = text[torch.arange(columns * segment) % len(text)].view(columns, segment).to(device)
    for _ in range(TIMED_UPDATES):
        times.append(seconds_of(lambda: base.read(memory, piece)))
        if times[-1] > BUDGET:
            break
    each = StepTime.of(times[1:] or times)
    return Phase(name, -(-tokens // (columns * segment)), "segments", each, f"{columns:,} x {segment:,} tokens", tokens)


@torch.no_grad()
def _growing(run: Callable[[int], int], most: int) -> StepTime:
    """Time of one row in the largest batch of at most `most` rows that takes no more than `BUDGET`; `run` returns its rows."""
    rows, times = min(4, most), list[float]()
    while True:
        started = time.perf_counter()
        counted = run(rows)
        seconds = time.perf_counter() - started
        times = [*times[-1:], seconds / counted]
        if rows >= most or 4 * seconds > BUDGET:
            return StepTime(times[-1], min(times), max(times))
        rows = min(4 * rows, most)


def seconds_of(run: Callable[[], Any]) -> float:
    """Seconds of one call, with the work that a GPU still has to do."""
    started = time.perf_counter()
    run()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


@contextmanager
def restored(module: nn.Module) -> Iterator[None]:
    """Restore the buffers and the training modes of a module after the block."""
    modes = {inner: inner.training for inner in module.modules()}
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        for inner, mode in modes.items():
            inner.training = mode
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)


def peak_memory(module: nn.Module) -> int:
    """The most bytes so far: of the GPU that the module is on, or of the process."""
    device = next(module.parameters()).device
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def slowdown() -> float:
    """How many times slower this machine multiplies matrices than the one that recipes were timed on."""
    size = 1024
    matrix = torch.ones(size, size)
    torch.mm(matrix, matrix)
    seconds = min(seconds_of(lambda: torch.mm(matrix, matrix)) for _ in range(5))
    return REFERENCE_GFLOPS * 1e9 * seconds / (2 * size**3)


def draws_on_disk(draws: int, length: int) -> int:
    """Bytes of so many draws in the files of a run."""
    return draws * (length * BYTES_PER_TOKEN + 4 * BYTES_PER_TOKEN)


def _tokens(data: Sequences | RowData | TokenStream) -> int:
    if isinstance(data, Sequences):
        return int(data.lengths.sum())
    return len(data) if isinstance(data, TokenStream) else 0


def _steps_done(folder: Path | None) -> int:
    """The step of the last checkpoint in a run folder; 0 where there is none."""
    last = None if folder is None else CheckpointManager(folder / "checkpoints").last()
    return 0 if last is None else int(last.name.removeprefix("step-"))
