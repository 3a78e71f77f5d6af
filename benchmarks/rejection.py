"""What rejection costs beyond the draws it needs: accepted strings at an acceptance near 1 in 1,000, from an LSTM.

    python benchmarks/rejection.py [--accepted 200] [--repeats 3] [--threads 2] [--json]

An LSTM of 2 layers of 200 over two symbols, strings of 30, and a motif of 14 that about 1 in 1,000 of its strings has.
`Rejection` keeps strings with the motif, and pure drawing makes as many strings as that needed; both in this process, in
turns. The ratio is the price of an accepted string over the price of the strings it took.
"""

import argparse
import json
import time

import torch
from rich.console import Console
from rich.table import Table
from sampling import spread

from esscher.bases.config import RecurrentConfig
from esscher.bases.network import build_base
from esscher.energies.features import LogLinear, lacks
from esscher.randomness import Seeded
from esscher.samplers.ancestral import draw
from esscher.samplers.rejection import Rejection
from esscher.space import Space, empty_prompts
from esscher.target import Tilted

MOTIF = [int(symbol) for symbol in "10001011111000"]


def measure(accepted: int, repeats: int) -> list[dict[str, float]]:
    """For each repeat: candidates, seconds of both sides and their ratio."""
    base = build_base(RecurrentConfig(), Space(2, 30), rng=Seeded(0))
    target = Tilted(base, LogLinear([lacks(MOTIF)], torch.tensor([-30.0])))
    rows = []
    for number in range(repeats):
        rng = Seeded(number)
        begin = time.perf_counter()
        kept = Rejection(0.0)(target, empty_prompts(1), accepted, rng=rng.stream("rejection"))
        middle = time.perf_counter()
        draw(base, empty_prompts(1), kept.cost, rng=rng.stream("pure"))
        end = time.perf_counter()
        rows.append(
            {
                "candidates": kept.cost,
                "acceptance": accepted / kept.cost,
                "rejection, s": middle - begin,
                "pure, s": end - middle,
                "ratio": (middle - begin) / (end - middle),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accepted", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = measure(given.accepted, given.repeats)
    if given.json:
        print(json.dumps(rows))
        return
    table = Table(title=f"{given.accepted} accepted strings, {given.threads} threads")
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{value:,.4g}" for value in row.values()))
    Console().print(table, spread([row["ratio"] for row in rows]))


if __name__ == "__main__":
    main()
