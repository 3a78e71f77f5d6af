"""The cost of a step of E-Forcing against one of plain likelihood, on the same base and the same tokens.

A step is what the trainer does: loss, gradient, clipping, AdamW. E-Forcing's draws as many points as the batch has with the
model as it is, and scores them with a gradient beside the data. Batches have about 4,000 tokens and draws 50, as published;
the data's segments have 150, as Transformer-XL's were, or 50, the dearest case: every token of the data then has one that was
drawn, which makes two passes with a gradient and 50 steps that draw. The bases: a Transformer, an LSTM, a Transformer-XL in
the midst of streams, whose draws go on from its memory, and an LSTM with a mixture of softmaxes. Scheduled sampling in its
form of one pass more is the usual peer; of a mixture it needs all logits.
"""

import torch

from benchmarks._turns import Row, Run, Table, in_turns, spread
from esscher.bases.carried import Carried
from esscher.bases.config import BaseConfig, RecurrentConfig, TransformerConfig, TransformerXLConfig
from esscher.bases.network import build_base
from esscher.objective import Objective
from esscher.objectives.eforcing import EForcing
from esscher.objectives.likelihood import Likelihood
from esscher.objectives.scheduled_sampling import ScheduledSampling
from esscher.randomness import Seeded
from esscher.samplers.ancestral import Ancestral
from esscher.space import Sequences, Space
from esscher.target import Base, Tilted

REPEATS = 3
VOCAB, DRAWN = 5_000, 50
LAYOUTS = {"27 x 150": (27, 150), "80 x 50": (80, 50)}
WANTED = {("E-Forcing", "27 x 150"): "at most 2.5"}
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


def compare(base: str, layout: str, repeats: int) -> list[Row]:
    seconds = in_turns({side: run_of(base, layout, objective) for side, objective in SIDES.items()}, repeats)
    plain = seconds.pop("likelihood")
    return [
        {"base": base, "segments": layout, "step": side, "ms": 1000 * spread(some)["median"],
         "ms, likelihood": 1000 * spread(plain)["median"],
         "times likelihood": spread([one / other for one, other in zip(some, plain, strict=True)]),
         "wanted": WANTED.get((side, layout))}
        for side, some in seconds.items()
    ]  # fmt: skip


def tables(repeats: int) -> list[Table]:
    rows = [row for layout in LAYOUTS for base in BASES for row in compare(base, layout, repeats)]
    return [Table(f"a step, vocabulary {VOCAB:,}, draws of {DRAWN} tokens", rows)]
