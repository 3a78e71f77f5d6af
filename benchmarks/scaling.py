"""The cost model of docs/scaling.md: what each stage computes, holds and moves, checked here at two small sizes.

Of a Transformer with `weights` in products, `layers` of width `width`, reading so many tokens before it:

    products          2 weights + 4 layers width tokens           for each token; three times as many to learn from it
    to draw a token   weights of the base, and 4 layers width tokens bytes of keys and values a row are read (2 bytes a number)
    to learn          16 bytes a weight (float32 weight, gradient, two averages), and what the layers keep for their gradient
    processes         2 (n - 1) / n gradients pass each of n processes for every update

Counted by `torch.utils.flop_counter`; memory is what resides over what did; bytes are those of the loopback device while two
processes learn, other traffic there included. `predicted` is the model's number. The hours of the last table are predicted
alone, for devices of 989 TFLOP/s (of which 40 % are reached), 3.35 TB/s of memory, 450 GB/s to 7 neighbours and 50 GB/s to
others.
"""

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from benchmarks._device import on_device
from benchmarks._timing import Row, Run, Table, peak_memory, spread, time_runs
from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space
from esscher.core.target import Tilted
from esscher.energies.config import EnergyConfig
from esscher.energies.network import build_energy
from esscher.networks.gradient_checkpointing import enable_gradient_checkpointing
from esscher.networks.registry import NETWORKS, NetworkConfig
from esscher.networks.transformer_config import TransformerConfig, TransformerXLConfig
from esscher.samplers.ancestral import draw
from esscher.samplers.scoring import log_prob, log_weight

REPEATS = 3
VOCAB, PROMPT, NEW, ROWS, DRAWS, UPDATES = 2_000, 32, 32, 8, 4, 20
SIZES = ((256, 4), (512, 8))
KEPT, DEEP = 128, (TransformerConfig(128, 6, 4, 512), TransformerXLConfig(128, 6, 4, 512, memory=128))


@dataclass(frozen=True)
class Network:
    """A Transformer by its sizes; `keys` is the width of what attention keeps of a token, if smaller than its own."""

    weights: float
    layers: int
    width: int
    keys: int | None = None

    def products(self, tokens: float, before: float) -> float:
        """Floating point operations to read so many tokens, each after so many others on average."""
        return tokens * (2 * self.weights + 4 * self.layers * self.width * before)

    def kept(self) -> float:
        """Numbers that attention keeps of a token."""
        return 2 * self.layers * (self.keys or self.width)


@dataclass(frozen=True)
class Machine:
    """One device: operations, bytes of its memory, and bytes to others in a second; `share` of the first are reached."""

    operations: float = 989e12
    memory: float = 3.35e12
    near: float = 450e9  # within 8 devices
    far: float = 50e9
    share: float = 0.4


BASE = Network(6.6e9, 32, 4096)
ENERGY = Network(303e6, 24, 1024)  # of 350 million, the rest are input vectors


def config_of(width: int, layers: int) -> TransformerConfig:
    return TransformerConfig(width, layers, width // 64, 4 * width)


def of_config(config: TransformerConfig, *, output: bool) -> Network:
    """The weights that take part in products: those of the layers, and of the output of a base."""
    layer = 4 * config.width**2 + 2 * config.width * config.feedforward
    return Network(config.layers * layer + output * VOCAB * config.width, config.layers, config.width)


def stages(config: TransformerConfig) -> dict[str, tuple[Callable[[], Any], float]]:
    """What is run for each stage, and the operations that the model predicts for it."""
    whole, space = PROMPT + NEW, Space(VOCAB, NEW)
    base = on_device(build_base(config, space, rng=SeededRng(0)).eval())
    energy = on_device(build_energy(EnergyConfig(network=config), base, rng=SeededRng(1)))
    target = Tilted(base, energy)
    tokens = torch.randint(VOCAB, (ROWS, whole), generator=torch.Generator().manual_seed(0))
    data = on_device(Sequences(tokens, torch.full((ROWS,), PROMPT), torch.full((ROWS,), whole)))
    ours, judge = of_config(config, output=True), of_config(config, output=False)
    stored = draw(base, data.prompts(), 1, rng=SeededRng(2))[0]

    def learn() -> None:
        (energy(data).mean() - energy(stored).mean()).backward()

    read = ROWS * (judge.products(PROMPT, whole) + judge.products(NEW, whole))
    hidden = of_config(config, output=False)
    scored = ROWS * (hidden.products(whole, whole) + 2 * VOCAB * config.width * NEW)
    opened = ROWS * (hidden.products(PROMPT + 1, PROMPT + 1) + 2 * VOCAB * config.width)
    drawn = ROWS * DRAWS * ours.products(NEW - 1, PROMPT + NEW / 2 + 1)
    return {
        "base scores": (lambda: log_prob(base, data), scored),
        "base draws 4 after each prompt": (lambda: draw(base, data.prompts(), DRAWS, rng=SeededRng(3)), opened + drawn),
        "energy reads": (lambda: log_weight(target, data), read),
        "energy learns, one negative each": (learn, 3 * 2 * read),
    }


def counted(run: Callable[[], Any]) -> float:
    """Floating point operations of a run."""
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    more = {torch.ops.aten.addmm_: _added, attention: _attended, backward: lambda given, *rest, **more: 2 * _attended(*rest)}
    with FlopCounterMode(display=False, custom_mapping=more) as counter:
        run()
    return float(counter.get_total_flops())


def _added(into: Any, one: Any, other: Any, *, out_shape: Any = None, **scales: Any) -> int:
    """Of a product that is added where it stands, which the counter does not know."""
    return 2 * one[0] * one[1] * other[1]


def _attended(query: Any, key: Any, *rest: Any, **more: Any) -> int:
    """Of both products of attention, on the processor."""
    rows, heads, length, width = query
    return 4 * rows * heads * length * key[2] * width


def checked(repeats: int) -> list[Row]:
    """Operations counted against predicted, and time against the smaller size, within a repeat."""
    small, large = (stages(config_of(*size)) for size in SIZES)
    rows = []
    for stage, (run, predicted) in small.items():
        other, more = large[stage]
        runs = {"small": run, "large": other}
        seconds, actual = time_runs(runs, repeats), {size: counted(item) for size, item in runs.items()}
        reached = {size: actual[size] / statistics.median(some) / 1e9 for size, some in seconds.items()}
        sizes = {"small": ("4 x 256", predicted), "large": ("8 x 512", more)}
        for size, (message, expected) in sizes.items():
            row: Row = {"stage": stage, "size": message, "GFLOP counted": actual[size] / 1e9}
            more_than = round(100 * (actual[size] / expected - 1), 3)
            rows.append(row | {"more than predicted, %": more_than, "GFLOP/s": reached[size]})
        ratio = spread([long / short for long, short in zip(seconds["large"], seconds["small"], strict=True)])
        rows[-1] |= {"time, times the smaller": ratio, "by operations alone": more / predicted}
    return rows


def update(width: int, layers: int) -> Run:
    """An update with AdamW, of little data."""
    base = on_device(build_base(config_of(width, layers), Space(VOCAB, 8), rng=SeededRng(0)))
    data = on_device(Sequences(torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, dtype=torch.long), torch.full((1,), 8)))
    optimizer = torch.optim.AdamW(base.parameters())

    def run() -> None:
        base.log_probs(data).sum().backward()
        optimizer.step()

    return run


def held(width: int, layers: int) -> Row:
    """Megabytes that an update adds at its peak."""
    weights = of_config(config_of(width, layers), output=True).weights
    actual = peak_memory(update, width, layers)
    return {"size": f"{layers} x {width}", "MB over the weights": actual, "predicted, 12 bytes a weight": 12 * weights / 1e6}


def kept(config: NetworkConfig) -> Row:
    """Megabytes that layers keep for their gradient, as they are and computed anew."""
    base = build_base(config, Space(VOCAB, KEPT), rng=SeededRng(0)).train()
    plain = _kept(base)
    enable_gradient_checkpointing(base)
    return {
        "layers": f"{NETWORKS.kind_of(config)}, {config.layers} x {config.width}",
        "MB kept": plain,
        "computed anew": _kept(base),
    }


def _kept(base: NetworkBase) -> float:
    lengths = torch.full((ROWS,), KEPT)
    x = Sequences(torch.zeros(ROWS, KEPT, dtype=torch.long), 0 * lengths, lengths)
    tensors = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        tensors[tensor.untyped_storage().data_ptr()] = tensor  # held, so that its place stays its own
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        base.log_probs(x)
    weights = {weight.untyped_storage().data_ptr() for weight in base.parameters()}
    return sum(item.untyped_storage().nbytes() for place, item in tensors.items() if place not in weights) / 1e6


def passed(width: int, layers: int) -> Row:
    """Bytes that pass between two processes for an update, read from the loopback device."""
    base = build_base(config_of(width, layers), Space(VOCAB, 8), rng=SeededRng(0))
    sizes = [weight.shape for weight in base.parameters()]
    weights = sum(size.numel() for size in sizes)
    moved = (_passed(sizes, UPDATES) - _passed(sizes, 0)) / UPDATES
    predicted = 2 * 2 * (2 - 1) / 2 * 4 * weights  # both processes together
    return {"size": f"{layers} x {width}", "weights": weights, "MB an update": moved / 1e6, "predicted": predicted / 1e6}


def _passed(sizes: list[torch.Size], updates: int) -> int:
    before = _loopback()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank, (f"file://{folder}/meeting", sizes, updates), nprocs=2)
    return _loopback() - before


def rank(number: int, meeting: str, sizes: list[torch.Size], updates: int) -> None:
    """One of two processes that learn together."""
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=number, world_size=2)
    for _ in range(updates):
        for size in sizes:
            torch.distributed.all_reduce(torch.zeros(size))
    torch.distributed.destroy_process_group()


def _loopback() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


def forecast(contexts: float, negatives: int, prompts: float, draws: int) -> list[Row]:
    """Hours of each stage of a 7B base and a 350M energy, prompts of 128 and points of 128 tokens, on 1 to 1,024 devices."""
    item, given, new = Machine(), 128, 128
    rows = []
    for devices in (1, 8, 64, 512, 1024):
        batch = 256  # rows that a device draws together
        row: Row = {"devices": devices}
        row["negatives"] = _drawing(contexts * negatives, batch, given, new, item) / devices / 3600
        learn = contexts * (1 + negatives) * 3 * ENERGY.products(given + new, given + new)
        updates, link = contexts / 512, item.near if devices <= 8 else item.far
        reduce = updates * 2 * (devices - 1) / devices * 4 * 350e6 / link
        row["energy learns"] = (learn / devices / item.operations / item.share + reduce) / 3600
        judged = prompts * draws * ENERGY.products(given + new, given + new) / item.operations / item.share
        row["log Z"] = (_drawing(prompts * draws, batch, given, new, item) + judged) / devices / 3600
        tokens = contexts * (given + new)
        gathered = tokens / (256 * 512) * 3 * 2 * BASE.weights * (devices - 1) / devices / link  # weights twice, gradients once
        row["student learns"] = (3 * BASE.products(tokens, given) / devices / item.operations / item.share + gathered) / 3600
        rows.append(row)
    return rows


def _drawing(rows: float, batch: int, given: int, new: int, one: Machine) -> float:
    """Seconds of one device: a step reads the weights once, and of every row what attention kept; or it computes for longer."""
    kept = 2 * BASE.kept() * (given + new / 2) * batch
    moved = (2 * BASE.weights + kept) / one.memory
    computed = BASE.products(batch, given + new / 2) / one.operations / one.share
    return rows / batch * new * max(moved, computed)


def tables(repeats: int) -> list[Table]:
    return [
        Table("operations and time", checked(repeats)),
        Table("memory of an update", [held(*size) for size in SIZES]),
        Table(f"kept for the gradient of {ROWS} rows of {KEPT} tokens", [kept(config) for config in DEEP]),
        Table("bytes between two processes", [passed(*size) for size in SIZES]),
        Table(
            "predicted hours of a 7B base and a 350M energy: a million contexts, 16 negatives each; log Z of 10,000 prompts",
            forecast(1e6, 16, 1e4, 512),
        ),
    ]
