"""The cost of a step of E-Forcing against one of plain likelihood, on the same base and the same tokens.

A step is what the trainer does: loss, gradient, clipping, AdamW. E-Forcing's draws as many points as the batch has with the
model as it is, and scores them with a gradient beside the data. Batches have about 4,000 tokens and draws 50, as published;
the data's segments have 150, as Transformer-XL's were, or 50, the dearest case: every token of the data then has one that was
drawn, which makes two passes with a gradient and 50 steps that draw. The bases: a Transformer, an LSTM, a Transformer-XL in
the midst of streams, whose draws go on from its memory, and an LSTM with a mixture of softmaxes. Scheduled sampling in its
form of one pass more is the usual peer; of a mixture it needs all logits.
"""

import torch

from benchmarks._device import on_device
from benchmarks._timing import Row, Run, Table, spread, time_runs
from esscher.bases.network import build_base
from esscher.bases.wrappers import WithMemory
from esscher.core.objective import Objective
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space
from esscher.core.target import Base, Tilted
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.registry import NetworkConfig
from esscher.networks.transformer_config import TransformerConfig, TransformerXLConfig
from esscher.objectives.config import EForcingConfig, ScheduledSamplingConfig
from esscher.objectives.exposure_bias import EForcing, ScheduledSampling
from esscher.objectives.likelihood import Likelihood

REPEATS = 3
VOCAB, DRAWN = 5_000, 50
LAYOUTS = {"27 x 150": (27, 150), "80 x 50": (80, 50)}
WANTED = {("E-Forcing", "27 x 150"): "at most 2.5"}
BASES: dict[str, NetworkConfig] = {
    "Transformer, 4 x 256": TransformerConfig(256, 4, 4, 1024),
    "LSTM, 2 x 400": LstmConfig(400, 2, embedding=400, tied=True),
    "Transformer-XL, 4 x 256, memory 50": TransformerXLConfig(256, 4, 4, 1024, memory=50),
    "LSTM, 400, 8 softmaxes": LstmConfig(400, 1, embedding=280, tied=True, output="mos", components=8),
}
SIDES: dict[str, Objective] = {
    "likelihood": Likelihood(),
    "E-Forcing": EForcing(EForcingConfig(0.3, negatives=DRAWN)),
    "scheduled sampling": ScheduledSampling(ScheduledSamplingConfig(0.25)),
}


def run_of(base_name: str, layout: str, objective: Objective) -> Run:
    """A step of the objective on a base of its own."""
    rows, segment = LAYOUTS[layout]
    config, space = BASES[base_name], Space(VOCAB, segment)
    base = on_device(build_base(config, space, rng=SeededRng(0)).train())
    optimizer = torch.optim.AdamW(base.parameters(), 1e-4)
    tokens = on_device(torch.randint(VOCAB, (rows, 2 * segment), generator=torch.Generator().manual_seed(0)))
    length = on_device(torch.full((rows,), segment))
    data = Sequences(tokens[:, segment:].contiguous(), torch.zeros_like(length), length)
    memory = base.read(base.init_memory(rows), tokens[:, :segment])[1] if isinstance(config, TransformerXLConfig) else None

    def run() -> None:
        target: Base = base if memory is None else WithMemory(base, memory)
        optimizer.zero_grad(set_to_none=True)
        value = objective(Tilted(target), data, rng=SeededRng(1)).value
        assert isinstance(value, torch.Tensor)
        value.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(base.parameters(), 1.0)
        optimizer.step()
        if isinstance(target, WithMemory):
            target.memory_after(data)

    return run


def compare(base: str, layout: str, repeats: int) -> list[Row]:
    seconds = time_runs({side: run_of(base, layout, objective) for side, objective in SIDES.items()}, repeats)
    plain = seconds.pop("likelihood")
    return [
        {"base": base, "segments": layout, "step": side, "ms": 1000 * spread(some)["median"],
         "ms, likelihood": 1000 * spread(plain)["median"],
         "times likelihood": spread([item / other for item, other in zip(some, plain, strict=True)]),
         "wanted": WANTED.get((side, layout))}
        for side, some in seconds.items()
    ]  # fmt: skip


def tables(repeats: int) -> list[Table]:
    rows = [row for layout in LAYOUTS for base in BASES for row in compare(base, layout, repeats)]
    return [Table(f"a step, vocabulary {VOCAB:,}, draws of {DRAWN} tokens", rows)]
