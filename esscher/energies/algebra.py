"""Energies add: a sum of energies is an energy."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn

from esscher.space import Sequences
from esscher.target import Energy


class Sum(nn.Module):
    """scale_1 E_1(x) + scale_2 E_2(x) + ...; parts that are networks keep their parameters, under their names."""

    def __init__(self, parts: Mapping[str, Energy], scales: Mapping[str, float] | None = None):
        super().__init__()
        if not parts:
            raise ValueError("A sum of energies needs at least one part; `flat` is the energy that changes nothing.")
        unknown = set(scales or {}) - set(parts)
        if unknown:
            raise ValueError(f"No part named {sorted(unknown)} to scale. The parts are {sorted(parts)}.")
        self.terms = dict(parts)
        self.scales = {name: (scales or {}).get(name, 1.0) for name in parts}
        self.networks = nn.ModuleDict({name: part for name, part in parts.items() if isinstance(part, nn.Module)})
        sizes = {size for part in parts.values() if (size := getattr(part, "vocab_size", None)) is not None}
        if len(sizes) > 1:
            raise ValueError(f"The parts of a sum read different vocabularies: {sorted(sizes)} tokens.")
        if sizes:
            self.vocab_size = sizes.pop()

    def forward(self, x: Sequences) -> Float[Tensor, "B"]:
        return -torch.stack(list(self.parts(x).values())).sum(0)

    def parts(self, x: Sequences) -> dict[str, Float[Tensor, "B"]]:
        """What each term adds to -E(x)."""
        return {name: -self.scales[name] * term(x).double() for name, term in self.terms.items()}
