"""Flags that several verbs have, each told once, without torch."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from esscher.cut import Cut
from esscher.data.sources import Unit

Run = TypeVar("Run")

ENERGY = "Folder of the energy that tilts the base; or `own`, the level of the base's own logits."

BaseFolder = Annotated[Path, Parameter(help="Folder of the base.")]
EnergyFolder = Annotated[Path | None, Parameter(help=ENERGY)]
Cutting = Annotated[Cut, Parameter(name="*")]
Column = Annotated[str, Parameter(help="Of jsonl, parquet and Hugging Face data.")]
UnitAsLearnt = Annotated[
    Unit | None, Parameter(help="What a text is in a text file: a line, or what it was for a model that learnt from a stream.")
]
Level = Annotated[float, Parameter(help="How often the intervals cover the truth.")]
Sharded = Annotated[
    bool, Parameter(name="--sharded", negative="", help="Share out the base's weights among the processes of torchrun.")
]
Resume = Annotated[bool, Parameter(negative="", help="Go on from the last checkpoint in --out, to the same weights.")]
RunSeed = Annotated[int | None, Parameter(help="Short for --training.seed; printed back.")]
Seed = Annotated[int, Parameter(name="--seed", help="One seed for everything random; printed back.")]
Quiet = Annotated[bool, Parameter(negative="", help="Show no progress.")]
Json = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON object as the last line.")]


def seeded(run: Run, seed: int | None) -> Run:
    """The settings of something that is trained, with this seed where one is given."""
    trained: Any = run
    return run if seed is None else replace(trained, training=replace(trained.training, seed=seed))
