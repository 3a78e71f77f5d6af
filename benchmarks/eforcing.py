"""The cost of a step of E-Forcing against one of plain likelihood, on the same base and the same tokens.

    python benchmarks/eforcing.py [--repeats 5] [--threads 2] [--json]

A step is what the trainer does: loss, gradient, clipping, AdamW. E-Forcing's draws as many points as the batch has with the
model as it is, and scores them with a gradient beside the data. Batches have about 4,000 tokens and draws 50, as published;
the data's segments have 150, as Transformer-XL's were, or 50, the dearest case: every token of the data then has one that was
drawn. The bases: a Transformer, an LSTM, a Transformer-XL in the midst of streams, whose draws go on from its memory, and
an LSTM with a mixture of softmaxes. Scheduled sampling in its form of one pass more is the usual peer. The sides take turns in
this process; the ratio is taken within a repeat.
"""

import argparse
import json
import platform
import sys
import time

import torch
from _turns import Run, in_turns, spread
from rich.console import Console

from esscher.bases.carried import Carried
from esscher.bases.config import BaseConfig, RecurrentConfig, TransformerConfig, TransformerXLConfig
from esscher.bases.network import build_base
from esscher.objective import Objective
from esscher.objectives.eforcing import EForcing
from esscher.objectives.likelihood import Likelihood
from esscher.objectives.scheduled_sampling import ScheduledSampling
from esscher.randomness import Seeded
from esscher.reports.tables import rich_table
from esscher.samplers.ancestral import Ancestral
from esscher.space import Sequences, Space
from esscher.target import Base, Tilted

VOCAB, DRAWN = 5_000, 50
LAYOUTS = {"27 x 150": (27, 150), "80 x 50": (80, 50)}
BASES: dict[str, BaseConfig] = {
    "Transformer, 4 x 256": TransformerConfig(256, 4, 4, 1024),
    "LSTM, 2 x 400": RecurrentConfig("lstm", 400, 2, embedding=400, tied=True),
    "Transformer-XL, 4 x 256, memory 50": TransformerXLConfig(256, 4, 4, None, 1024, memory=50),
    "LSTM, 400, 8 softmaxes": RecurrentConfig("lstm", 400, 1, embedding=280, tied=True, output="softmaxes", components=8),
}
SIDES: dict[str, Objective] = {
    "likelihood": Likelihood(),
    "E-Forcing": EForcing(0.3, sampler=Ancestral(DRAWN)),
    "scheduled sampling": ScheduledSampling(0.25),
}


def run_of(base_name: str, layout: str, objective: Objective) -> Run:
    """A step of the objective on a base of its own."""
    rows, segment = LAYOUTS[layout]
    config, space = BASES[base_name], Space(VOCAB, segment)
    base = build_base(config, space, rng=Seeded(0)).train()
    optimiser = torch.optim.AdamW(base.parameters(), 1e-4)
    tokens = torch.randint(VOCAB, (rows, 2 * segment), generator=torch.Generator().manual_seed(0))
    length = torch.full((rows,), segment)
    data = Sequences(tokens[:, segment:].contiguous(), torch.zeros_like(length), length)
    memory = base.read(base.open(rows), tokens[:, :segment])[1] if isinstance(config, TransformerXLConfig) else None

    def run() -> None:
        target: Base = base if memory is None else Carried(base, memory)
        optimiser.zero_grad(set_to_none=True)
        value = objective(Tilted(target), data, rng=Seeded(1)).value
        assert isinstance(value, torch.Tensor)
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(base.parameters(), 1.0)
        optimiser.step()
        if isinstance(target, Carried):
            target.memory_after(data)

    return run


def compare(base: str, layout: str, repeats: int, threads: int) -> list[dict[str, object]]:
    print(base, layout, file=sys.stderr, flush=True)
    runs = {side: run_of(base, layout, objective) for side, objective in SIDES.items()}
    seconds = in_turns(runs, repeats, time.process_time if threads == 1 else time.perf_counter)
    rows = []
    for side, some in seconds.items():
        ratio = spread([one / plain for one, plain in zip(some, seconds["likelihood"], strict=True)])
        times = {f"times likelihood{', ' + name if name != 'median' else ''}": round(one, 2) for name, one in ratio.items()}
        rows.append(
            {"base": base, "tokens": layout, "step": side, "milliseconds": round(1000 * spread(some)["median"]), **times}
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bases", nargs="*", default=list(BASES), choices=list(BASES), metavar="BASE")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = [row for base in given.bases for layout in LAYOUTS for row in compare(base, layout, given.repeats, given.threads)]
    if given.json:
        print(json.dumps(rows))
        return
    versions = f"torch {torch.__version__}, Python {platform.python_version()}, {given.threads} threads"
    Console().print(rich_table(f"A step, vocabulary {VOCAB:,} ({versions})", rows))


if __name__ == "__main__":
    main()
