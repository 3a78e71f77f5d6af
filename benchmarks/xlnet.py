"""XLNet against that of `transformers`, and Local-XLNet against full attention: a training step of two streams.

    python benchmarks/xlnet.py [--repeats 5] [--threads 2] [--parts train local] [--busy] [--json]

All sides take turns in this process: 4 layers, width 256, 4 heads, inner width 1024, vocabulary 10,000; forward, backward and
one AdamW step. The peak of memory is that of a process of its own that does one such step, above what it held before (Linux).

train    windows of 512 tokens, 85 of them targets in an order by chance, 4 rows: ours and theirs, from the same weights; the
         losses of the first step must agree
local    one row of 4,096 tokens, 683 of them targets: full attention and chunks of 64, both ours

Medians, with the smallest and the largest of the repeats; ratios are taken within each repeat. On a `--busy` machine it is the
time of the processor that is measured, with one thread, instead of the time that passes.
"""

import argparse
import json
import os
import platform
import time
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from _turns import Run, faster, in_turns, peak, peak_elsewhere
from rich.console import Console
from rich.table import Table
from torch import nn

from esscher.bases.config import XLNetConfig
from esscher.bases.network import NetworkBase, build_base
from esscher.hub.xlnet import to_transformers
from esscher.networks.xlnet import Arrangement
from esscher.randomness import Seeded
from esscher.space import Space

VOCAB, WIDTH, LAYERS, HEADS, INNER, CHUNK = 10_000, 256, 4, 4, 1024, 64
LENGTH, ROWS, LONG = 512, 4, 4_096
ONE_IN = 6
PARTS = {"train": ("transformers", "ours"), "local": ("full", "local")}


def ours(mixer: str = "full") -> NetworkBase:
    config = XLNetConfig(WIDTH, LAYERS, HEADS, None, INNER, mixers=(mixer,), spans=(CHUNK,))
    return build_base(config, Space(VOCAB, LENGTH), rng=Seeded(0)).train()


def given(rows: int, length: int) -> tuple[torch.Tensor, Arrangement, torch.Tensor]:
    """Tokens, the order in which they are seen, and the targets' tokens."""
    tokens = Seeded(0).categorical(torch.zeros(rows, VOCAB), length)
    turn = torch.stack([Seeded(1).stream(row).permutation(length) for row in range(rows)])
    targets = turn.argsort(1)[:, -round(length / ONE_IN) :].sort(1).values
    rank = torch.where(turn < length - targets.shape[1], -1, turn)
    return tokens, Arrangement(rank, targets), tokens.gather(1, targets)


def loss_of(side: str) -> tuple[nn.Module, Run]:
    """A network, and what makes its loss."""
    rows, length = (ROWS, LENGTH) if side in PARTS["train"] else (1, LONG)
    tokens, arrangement, asked = given(rows, length)
    if side == "transformers":
        model = to_transformers(ours()).train()
        mapping = nn.functional.one_hot(arrangement.targets, length).float()
        hidden = (arrangement.rank[:, None] > arrangement.rank[:, :, None] - mapping.sum(1)[:, :, None]).float()
        return model, lambda: model(tokens, perm_mask=hidden, target_mapping=mapping, labels=asked, use_mems=False).loss
    base = ours("local" if side == "local" else "full")
    network = base.any_order
    return base, lambda: -network.score(network.predicted(tokens, arrangement, None, 0)[0], asked).mean()


def step(side: str) -> Run:
    module, loss = loss_of(side)
    optimiser = torch.optim.AdamW(module.parameters(), 1e-4)

    def run() -> None:
        optimiser.zero_grad()
        loss().backward()
        optimiser.step()

    return run


def gap() -> float:
    """By how much the losses of ours and theirs differ from the same weights."""
    with torch.no_grad():
        first, second = (float(loss_of(side)[1]()) for side in PARTS["train"])
    return abs(first - second)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--gain", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    threads = 1 if options.busy else options.threads
    torch.set_num_threads(threads)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    if options.gain:
        print(peak(step(options.gain[1])))
        return
    rows: list[dict[str, object]] = []
    clock = time.process_time if options.busy else time.perf_counter
    for part in options.parts:
        for row in faster(in_turns({side: step(side) for side in PARTS[part]}, options.repeats, clock)):
            rows.append({"work": part, **row, "MB": peak_elsewhere(__file__, threads, part, str(row["side"]))})
    machine = {"processor": platform.processor(), "threads": threads, "torch": torch.__version__}
    found = {"machine": machine, "rows": rows, "gap of losses": gap() if "train" in options.parts else None}
    if options.json:
        print(json.dumps(found))
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=140).print(table)
    print(f"Difference of the losses of both sides of train: {found['gap of losses']}")


if __name__ == "__main__":
    main()
