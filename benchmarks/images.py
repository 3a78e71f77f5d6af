"""Drawing images of 28 x 28 binary pixels: steps from what is kept, against a pass for every pixel.

A pass reads the whole image, as the released programs do, and counts 784 times; or only the rows that have begun: one is made
in the middle of each row, and counts 28 times. 16 images are drawn at once.
"""

import torch

from benchmarks._device import on_device
from benchmarks._timing import Run, Table, time_runs, versus
from esscher.bases.network import NetworkBase, build_base
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, empty_prompts
from esscher.networks.pixelcnn_config import GatedPixelCnnConfig, PixelCnnConfig, PixelCnnPlusPlusConfig
from esscher.networks.registry import NetworkConfig
from esscher.samplers.ancestral import draw

REPEATS = 3
SIDE, IMAGES = 28, 16
COUNTED = {"a pass over the image": SIDE * SIDE, "a pass over the rows begun": SIDE, "steps": 1}
BASES: dict[str, NetworkConfig] = {
    "PixelCNN, 7 blocks of 32": PixelCnnConfig(32, 7),
    "PixelCNN, 7 blocks of 128": PixelCnnConfig(128, 7),
    "Gated PixelCNN, 7 layers of 32": GatedPixelCnnConfig(32, 7),
    "PixelCNN++, 3 scales of 2 blocks of 24": PixelCnnPlusPlusConfig(24, 2, 0.0, (SIDE, SIDE, 1), mixtures=5),
}


@torch.no_grad()
def passes(base: NetworkBase, lengths: list[int]) -> None:
    """A pass over so many pixels, for each length."""
    for length in lengths:
        tokens, start = torch.zeros(IMAGES, length, dtype=torch.long), torch.zeros(IMAGES, dtype=torch.long)
        base.log_probs(on_device(Sequences(tokens, start, start + length)))


def sides_of(config: NetworkConfig) -> dict[str, Run]:
    base = on_device(build_base(config, Space(2, SIDE * SIDE), rng=SeededRng(0)).eval())
    return {
        "a pass over the image": lambda: passes(base, [SIDE * SIDE]),
        "a pass over the rows begun": lambda: passes(base, [row * SIDE + SIDE // 2 for row in range(SIDE)]),
        "steps": lambda: draw(base, empty_prompts(1), IMAGES, rng=SeededRng(1)),
    }


def tables(repeats: int) -> list[Table]:
    rows = []
    for name, config in BASES.items():
        seconds = {side: [COUNTED[side] * item for item in some] for side, some in time_runs(sides_of(config), repeats).items()}
        rows += [{"base": name, **versus(seconds, "steps", peer)} for peer in COUNTED if peer != "steps"]
    return [Table(f"{IMAGES} images", rows)]
