"""The layers of a network or of a model of `transformers`: what is large, alike, and passed through one after the other.

They are what training may compute anew (`esscher.networks.recompute`), and what processes share out (`esscher.bases.sharding`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn

from esscher.networks.blocks import Block
from esscher.networks.encoder_decoder import Writer
from esscher.networks.transformer_xl import XLBlock

PASSES: Mapping[type[nn.Module], tuple[str, ...]] = {
    Block: ("forward",),
    Writer: ("knows", "write"),
    XLBlock: ("forward", "known"),
}
"""By which methods whole sequences pass through a layer; steps are taken by others."""


@dataclass(frozen=True)
class Layer:
    """A module, and the methods by which whole sequences pass through it."""

    module: nn.Module
    passes: tuple[str, ...]


def layers(module: nn.Module) -> list[Layer]:
    """Those within a module, in order; none of a network whose layers are not told apart here."""
    stated = {name for one in module.modules() for name in getattr(one, "_no_split_modules", None) or ()}
    found = [(one, ("forward",) if type(one).__name__ in stated else PASSES.get(type(one))) for one in module.modules()]
    return [Layer(one, passes) for one, passes in found if passes is not None]
