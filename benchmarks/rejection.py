"""What rejection costs beyond the draws it needs: accepted strings at an acceptance near 1 in 1,000, from an LSTM.

An LSTM of 2 layers of 200 over two symbols, strings of 30, and a motif of 14 that about 1 in 1,000 of its strings has.
`Rejection` keeps 20 strings with the motif, and pure drawing makes as many strings as that needed, in turns. The ratio is the
price of an accepted string over the price of the strings it took.
"""

from functools import partial

import torch

from benchmarks._device import on_device
from benchmarks._timing import Row, Table, spread, timed
from esscher.bases.network import build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, empty_prompts
from esscher.core.target import Tilted
from esscher.energies.features import LogLinear, lacks
from esscher.networks.recurrent_config import LstmConfig
from esscher.samplers.accept_reject import Rejection
from esscher.samplers.ancestral import draw

REPEATS = 3
ACCEPTED = 20
MOTIF = [int(symbol) for symbol in "10001011111000"]


def tables(repeats: int) -> list[Table]:
    base = on_device(build_base(LstmConfig(), Space(2, 30), rng=SeededRng(0)))
    target = on_device(Tilted(base, LogLinear([lacks(MOTIF)], torch.tensor([-30.0]))))
    rows: list[Row] = []
    for number in range(repeats):
        rng = SeededRng(number)
        kept, accepting = timed(partial(Rejection(0.0), target, empty_prompts(1), ACCEPTED, rng=rng.stream("rejection")))
        cost = kept.cost
        _, drawing = timed(partial(draw, base, empty_prompts(1), cost, rng=rng.stream("pure")))
        row = {"repeat": number + 1, "strings": cost, "accepted in 10,000": 10_000 * ACCEPTED / cost}
        rows.append(row | {"rejection, s": accepting, "pure, s": drawing, "times the time": accepting / drawing})
    whole = {"repeat": "all", "times the time": spread([row["times the time"] for row in rows])}
    return [Table(f"{ACCEPTED} accepted strings", [*rows, whole])]
