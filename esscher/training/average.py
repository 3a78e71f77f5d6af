"""The mean of the weights that a run passes through (Polyak and Juditsky 1992), every update counted alike.

Training goes on with its own weights; the mean is what is evaluated, and what is left in the end. It may begin at a step that
is known, or where evaluations stop to get better (`stalled`; Merity et al. 2018, who call it NT-ASGD).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from esscher.storage import parted_as, whole

AVERAGE = "average"


class Average:
    """The mean of the parameters of all modules after each update beyond `begin`; there is none before, or without `begin`."""

    def __init__(self, modules: Mapping[str, nn.Module], begin: int | None):
        self.begin, self.mean = begin, {}  # type: int | None, dict[str, Tensor]
        self.parameters = {
            f"{player}/{name}": parameter
            for player, module in modules.items()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }

    @torch.no_grad()
    def add(self, step: int) -> None:
        """The weights after so many updates."""
        if self.begin is None or step <= self.begin:
            return
        for name, parameter in self.parameters.items():
            if step == self.begin + 1:
                self.mean[name] = parameter.detach().clone()
            else:
                self.mean[name].lerp_(parameter, 1 / (step - self.begin))

    @torch.no_grad()
    def settle(self) -> None:
        """Leave the modules with the mean, if there is one."""
        for name, mean in self.mean.items():
            self.parameters[name].copy_(mean)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the modules have the mean for their weights, if there is one."""
        own = {name: self.parameters[name].detach().clone() for name in self.mean}
        self.settle()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in own.items():
                    self.parameters[name].copy_(tensor)

    def saved(self) -> dict[str, Tensor]:
        return {f"{AVERAGE}/{name}": whole(mean) for name, mean in self.mean.items()}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Take back what `saved` gave."""
        prefix = f"{AVERAGE}/"
        found = {name.removeprefix(prefix): mean for name, mean in saved.items() if name.startswith(prefix)}
        self.mean = {name: parted_as(self.parameters[name], mean) for name, mean in found.items()}


def stalled(evaluations: Sequence[float], patience: int) -> bool:
    """Whether the last evaluation is worse than the best of those before it, the `patience` before it not counted."""
    earlier = evaluations[: -patience - 1]
    return bool(earlier) and evaluations[-1] > min(earlier)
