"""The cost model of `docs/scaling.md`: what each stage computes, holds and moves, checked here at two small sizes.

    python benchmarks/scaling.py [--repeats 3]

Of a Transformer with `weights` in products, `layers` of width `width`, reading so many tokens before it:

    products          2 weights + 4 layers width tokens           for each token; three times as many to learn from it
    to draw a token   weights of the base, and 4 layers width tokens bytes of keys and values a row are read (2 bytes a number)
    to learn          16 bytes a weight (float32 weight, gradient, two averages), and what the layers keep for their gradient
    processes         2 (n - 1) / n gradients pass each of n processes for every update

Counted by `torch.utils.flop_counter`; memory is what resides over what did; bytes are those of the loopback device while two
processes learn. `predicted` is the model's number.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from _turns import peak
from rich.console import Console
from torch.utils.flop_counter import FlopCounterMode

from esscher.bases.config import TransformerConfig
from esscher.bases.network import build_base
from esscher.energies.building import build_energy
from esscher.energies.config import EnergyConfig
from esscher.randomness import Seeded
from esscher.reports.tables import rich_table
from esscher.samplers.ancestral import draw
from esscher.samplers.scores import log_prob, log_weight
from esscher.space import Sequences, Space
from esscher.target import Tilted

VOCAB, PROMPT, NEW, ROWS, DRAWS = 2_000, 32, 32, 8, 4


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


def of_config(config: TransformerConfig, *, output: bool) -> Network:
    """The weights that take part in products: those of the layers, and of the output of a base."""
    layer = 4 * config.width**2 + 2 * config.width * config.feedforward
    return Network(config.layers * layer + output * VOCAB * config.width, config.layers, config.width)


def stages(config: TransformerConfig) -> dict[str, tuple[Callable[[], Any], float]]:
    """What is run for each stage, and the operations that the model predicts for it."""
    whole, space = PROMPT + NEW, Space(VOCAB, NEW)
    base = build_base(config, space, rng=Seeded(0)).eval()
    energy = build_energy(EnergyConfig(network=config), base, rng=Seeded(1))
    target = Tilted(base, energy)
    tokens = torch.randint(VOCAB, (ROWS, whole), generator=torch.Generator().manual_seed(0))
    data = Sequences(tokens, torch.full((ROWS,), PROMPT), torch.full((ROWS,), whole))
    ours, judge = of_config(config, output=True), of_config(config, output=False)
    stored = draw(base, data.prompts(), 1, rng=Seeded(2))[0]

    def learn() -> None:
        (energy(data).mean() - energy(stored).mean()).backward()

    read = ROWS * (judge.products(PROMPT, whole) + judge.products(NEW, whole))
    hidden = of_config(config, output=False)
    scored = ROWS * (hidden.products(whole, whole) + 2 * VOCAB * config.width * NEW)
    opened = ROWS * (hidden.products(PROMPT + 1, PROMPT + 1) + 2 * VOCAB * config.width)
    drawn = ROWS * DRAWS * ours.products(NEW - 1, PROMPT + NEW / 2 + 1)
    return {
        "base scores": (lambda: log_prob(base, data), scored),
        "base draws 4 after each prompt": (lambda: draw(base, data.prompts(), DRAWS, rng=Seeded(3)), opened + drawn),
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


def checked(repeats: int) -> list[dict[str, Any]]:
    """Operations counted against predicted, and time against the smaller size."""
    sizes = {"4 x 256": TransformerConfig(256, 4, 4, 1024), "8 x 512": TransformerConfig(512, 8, 8, 2048)}
    rows, first = [], {}
    for size, config in sizes.items():
        for name, (run, predicted) in stages(config).items():
            found, seconds = counted(run), []
            for _ in range(repeats + 1):
                begun = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - begun)
            took = statistics.median(seconds[1:])
            before = first.setdefault(name, (took, predicted))
            row = {"stage": name, "size": size, "GFLOP predicted": predicted / 1e9, "counted": found / 1e9}
            rows.append(row | {"counted / predicted": found / predicted, "GFLOP/s": found / took / 1e9,
                               "time, times the smaller": took / before[0], "predicted ": predicted / before[1]})  # fmt: skip
    return rows


def memory_of(width: int, layers: int) -> float:
    """Megabytes that an update with AdamW adds at its peak, of little data."""
    config = TransformerConfig(width, layers, width // 64, 4 * width)
    base = build_base(config, Space(VOCAB, 8), rng=Seeded(0))
    data = Sequences(torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, dtype=torch.long), torch.full((1,), 8))
    optimiser = torch.optim.AdamW(base.parameters())

    def step() -> None:
        base.log_probs(data).sum().backward()
        optimiser.step()

    return peak(step)


def passed(width: int, layers: int) -> dict[str, Any]:
    """Bytes that pass between two processes for an update, read from the loopback device."""
    size = f"{layers} x {width}"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", __file__,
               "--rank", str(width), str(layers)]  # fmt: skip
    before = _loopback()
    subprocess.run([*command, "0"], check=True, capture_output=True)
    between = _loopback()
    out = subprocess.run([*command, "20"], check=True, capture_output=True, text=True).stdout
    moved = (_loopback() - between) - (between - before)
    weights = float(out.split()[-1])
    predicted = 2 * 2 * (2 - 1) / 2 * 4 * weights  # both processes together
    return {"size": size, "weights": f"{weights:,.0f}", "MB an update": moved / 20 / 1e6, "predicted": predicted / 1e6}


def rank(width: int, layers: int, steps: int) -> None:
    """One of two processes that learn together."""
    torch.distributed.init_process_group("gloo")
    config = TransformerConfig(width, layers, width // 64, 4 * width)
    base = build_base(config, Space(VOCAB, 8), rng=Seeded(0))
    weights = list(base.parameters())
    for _ in range(steps):
        for weight in weights:
            torch.distributed.all_reduce(torch.zeros_like(weight))
    if torch.distributed.get_rank() == 0:
        print(sum(weight.numel() for weight in weights))
    torch.distributed.destroy_process_group()


def _loopback() -> int:
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


def forecast(contexts: float, negatives: int, prompts: float, draws: int) -> list[dict[str, Any]]:
    """Hours of each stage of a 7B base and a 350M energy, prompts of 128 and points of 128 tokens, on 1 to 1,024 devices."""
    one, given, new = Machine(), 128, 128
    rows = []
    for devices in (1, 8, 64, 512, 1024):
        batch = 256  # rows that a device draws together
        row: dict[str, Any] = {"devices": devices}
        row["negatives"] = _drawing(contexts * negatives, batch, given, new, one) / devices / 3600
        learn = contexts * (1 + negatives) * 3 * ENERGY.products(given + new, given + new)
        updates, link = contexts / 512, one.near if devices <= 8 else one.far
        reduce = updates * 2 * (devices - 1) / devices * 4 * 350e6 / link
        row["energy learns"] = (learn / devices / one.operations / one.share + reduce) / 3600
        judged = prompts * draws * ENERGY.products(given + new, given + new) / one.operations / one.share
        row["log Z"] = (_drawing(prompts * draws, batch, given, new, one) + judged) / devices / 3600
        tokens = contexts * (given + new)
        gathered = tokens / (256 * 512) * 3 * 2 * BASE.weights * (devices - 1) / devices / link  # weights twice, gradients once
        row["student learns"] = (3 * BASE.products(tokens, given) / devices / one.operations / one.share + gathered) / 3600
        rows.append(row)
    return rows


def _drawing(rows: float, batch: int, given: int, new: int, one: Machine) -> float:
    """Seconds of one device: a step reads the weights once, and of every row what attention kept; or it computes for longer."""
    kept = 2 * BASE.kept() * (given + new / 2) * batch
    moved = (2 * BASE.weights + kept) / one.memory
    computed = BASE.products(batch, given + new / 2) / one.operations / one.share
    return rows / batch * new * max(moved, computed)


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost model of docs/scaling.md, checked at two small sizes.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rank", nargs=3, type=int)
    parser.add_argument("--peak", nargs=2, type=int)
    asked = parser.parse_args()
    if asked.rank:
        return rank(*asked.rank)
    if asked.peak:
        return print(memory_of(*asked.peak))
    console = Console(width=140)
    console.print(rich_table("operations", checked(asked.repeats)))
    rows = []
    for width, layers in ((256, 4), (512, 8)):
        command = [sys.executable, __file__, "--peak", str(width), str(layers)]
        found = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        weights = of_config(TransformerConfig(width, layers, 4, 4 * width), output=True).weights
        rows.append({"size": f"{layers} x {width}", "MB over the weights": found, "predicted, 12 bytes": 12 * weights / 1e6})
    console.print(rich_table("memory of an update", rows))
    console.print(rich_table("bytes between two processes", [passed(256, 4), passed(512, 8)]))
    console.print(rich_table("hours: a million contexts, 16 negatives each; log Z of 10,000 prompts by 512 draws",
                             forecast(1e6, 16, 1e4, 512)))  # fmt: skip


if __name__ == "__main__":
    main()
