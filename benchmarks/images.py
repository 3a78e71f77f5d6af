"""Drawing images of 28 x 28 binary pixels: steps from what is kept, against a pass for every pixel.

    python benchmarks/images.py [--repeats 3] [--threads 1] [--images 16] [--json]

A pass reads the whole image, as the released programs do, and counts 784 times; or only the rows that have begun: one is made
in the middle of each row, and counts 28 times. Seconds are of the processor, so that other work on the machine matters less;
the sides take turns in this process, and the ratio is taken within a repeat.
"""

import argparse
import json
import platform
import sys
import time

import torch
from _turns import Run, faster, in_turns
from rich.console import Console

from esscher.bases.config import BaseConfig, GatedPixelCnnConfig, PixelCnnConfig, PixelCnnPlusPlusConfig
from esscher.bases.network import NetworkBase, build_base
from esscher.randomness import Seeded
from esscher.reports.tables import rich_table
from esscher.samplers.ancestral import draw
from esscher.space import Sequences, Space, empty_prompts

SIDE = 28
BASES: dict[str, BaseConfig] = {
    "PixelCNN, 7 blocks of 32": PixelCnnConfig(32, 7),
    "PixelCNN, 7 blocks of 128": PixelCnnConfig(128, 7),
    "Gated PixelCNN, 7 layers of 32": GatedPixelCnnConfig(32, 7),
    "PixelCNN++, 3 scales of 2 blocks of 24": PixelCnnPlusPlusConfig(24, 2, 0.0, (SIDE, SIDE, 1), mixtures=5),
}


@torch.no_grad()
def passes(base: NetworkBase, images: int, lengths: list[int]) -> None:
    """A pass over so many pixels, for each length."""
    for length in lengths:
        tokens, start = torch.zeros(images, length, dtype=torch.long), torch.zeros(images, dtype=torch.long)
        base.log_probs(Sequences(tokens, start, start + length))


def steps(base: NetworkBase, images: int) -> None:
    draw(base, empty_prompts(1), images, rng=Seeded(1))


def sides_of(config: BaseConfig, images: int) -> dict[str, Run]:
    base = build_base(config, Space(2, SIDE * SIDE), rng=Seeded(0)).eval()
    return {
        "a pass over the image": lambda: passes(base, images, [SIDE * SIDE]),
        "a pass over the rows begun": lambda: passes(base, images, [row * SIDE + SIDE // 2 for row in range(SIDE)]),
        "steps": lambda: steps(base, images),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    told = parser.parse_args()
    torch.set_num_threads(told.threads)
    rows: list[dict[str, object]] = []
    for name, config in BASES.items():
        seconds = in_turns(sides_of(config, told.images), told.repeats, time.process_time)
        counted = {"a pass over the image": SIDE * SIDE, "a pass over the rows begun": SIDE, "steps": 1}
        seconds = {side: [counted[side] * one for one in some] for side, some in seconds.items()}
        rows += [{"base": name, **row} for row in faster(seconds)]
    if told.json:
        print(json.dumps({"rows": rows, "python": platform.python_version(), "torch": torch.__version__}))
        return
    Console(width=140).print(rich_table(f"{told.images} images, {' '.join(sys.argv)}", rows))


if __name__ == "__main__":
    main()
