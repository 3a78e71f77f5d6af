"""The modules that learn, each with its own optimiser.

Most often there is one player; a game has several, and a loss for each, which moves that player only. The
parts of an update are put together by `Loss.count`, so that reading a batch in several passes, or on several
processes, gives the gradient of reading it at once. A player that no part has a loss for rests: neither its weights nor its
optimiser change in that update.

Weights that processes share out (`esscher.bases.sharding`) get the part of a gradient that this process has, summed already.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from esscher.objective import Loss
from esscher.settings.training import Pace, TrainingConfig
from esscher.storage import parted, whole
from esscher.training.processes import sum_gradients, sum_numbers


class Players:
    """Named modules, their optimisers, and the gradient of the update that is being made."""

    def __init__(
        self, modules: Mapping[str, nn.Module], paces: Mapping[str, Pace], config: TrainingConfig, accelerator: Accelerator
    ):
        self.modules, self.config, self.accelerator = dict(modules), config, accelerator
        self.parameters = {name: _learning(name, module) for name, module in modules.items()}
        for name in paces:
            self._of(name, "has a pace")
        self.paces = {name: paces.get(name, Pace()) for name in modules}
        self.shares: dict[str, list[float]] = {}  # of each optimiser's groups
        self.optimisers = {name: _optimiser(config, self.paces[name], self._groups(name)) for name in modules}
        self._everyone = list({id(p): p for own in self.parameters.values() for p in own}.values())
        self._parted = any(map(parted, self._everyone))
        self.clear()

    def clear(self) -> None:
        """Forget the gradient."""
        self.count, self.loss = 0.0, 0.0
        self.counts = dict.fromkeys(self.modules, 0.0)
        self.metrics: dict[str, float] = {}
        for parameter in self._everyone:
            parameter.grad = None

    def add(self, loss: Loss) -> None:
        """Add one part of the batch to the gradient."""
        values = loss.value if isinstance(loss.value, Mapping) else {None: loss.value}
        if self._parted and len(values) > 1:
            raise ValueError(
                "Weights that are shared out learn from one loss, not in a game. Nothing was learnt; leave sharded out."
            )
        for number, (player, value) in enumerate(values.items()):
            own = self._everyone if player is None else self._of(player, "has a loss")
            for name in self.counts if player is None else [player]:
                self.counts[name] += loss.count
            if self._parted:
                torch.autograd.backward(value * loss.count)  # brings parts of the gradient to those of the weights
                continue
            more = number + 1 < len(values)
            gradients = torch.autograd.grad(value * loss.count, own, retain_graph=more, allow_unused=True)
            for parameter, gradient in zip(own, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self.count += loss.count
        self.loss += float(sum(value.detach() for value in values.values())) * loss.count
        metrics = dict(loss.metrics)
        if isinstance(loss.value, Mapping):
            metrics |= {f"{player}/loss": float(value.detach()) for player, value in loss.value.items()}
        for name, metric in metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + metric * loss.count

    def update(self, rate: float) -> tuple[float, dict[str, float]]:
        """Move every player along its gradient; the mean loss, and the first process's mean metrics."""
        metrics = {name: value / self.count for name, value in self.metrics.items()}
        loss, count, *counts = sum_numbers(self.accelerator, [self.loss, self.count, *self.counts.values()])
        loss /= count
        longest, moving = 0.0, {name: own for name, own in zip(self.counts, counts, strict=True) if own > 0}
        for name, weight in moving.items():
            own = self.parameters[name]
            sum_gradients(self.accelerator, own)
            for parameter in own:
                if parameter.grad is not None:
                    parameter.grad.div_(weight)
            limit = math.inf if self.config.clip is None else self.config.clip
            longest = max(longest, float(whole(nn.utils.clip_grad_norm_(own, limit))))
            for group, share in zip(self.optimisers[name].param_groups, self.shares[name], strict=True):
                group["lr"] = rate * self.paces[name].rate * share
        if math.isfinite(loss) and math.isfinite(longest):
            for name in moving:
                self.optimisers[name].step()
        return loss, {**metrics, "gradient": longest}

    def train(self, mode: bool) -> None:
        for module in self.modules.values():
            module.train(mode)

    def _groups(self, player: str) -> list[dict[str, Any]]:
        """Weights of one share of the rate; weight decay acts on matrices, biases and norms are left alone."""
        found: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, weight in self.modules[player].named_parameters():
            if weight.requires_grad:
                found.setdefault((self.paces[player].share(name), weight.ndim >= 2), []).append(weight)
        order = sorted(found, key=lambda one: (one[0], not one[1]))
        self.shares[player] = [share for share, _ in order]
        decay = self.config.weight_decay
        return [{"params": found[one], "weight_decay": decay if one[1] else 0.0} for one in order]

    def _of(self, player: str, what: str) -> list[nn.Parameter]:
        if player not in self.parameters:
            known = ", ".join(self.parameters)
            raise ValueError(f"The player {player!r} {what} and is none of the players, which are {known}. Nothing was learnt.")
        return self.parameters[player]


def _learning(name: str, module: nn.Module) -> list[nn.Parameter]:
    parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not parameters:
        raise ValueError(f"The player {name!r} ({type(module).__name__}) has no parameter that may learn. Nothing was trained.")
    return parameters


def _optimiser(config: TrainingConfig, pace: Pace, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    rate: float | Tensor = config.learning_rate
    if config.optimiser == "adam":
        return torch.optim.Adam(groups, lr=rate, betas=(pace.momentum, pace.memory))
    if config.optimiser == "adamw":
        return torch.optim.AdamW(groups, lr=rate, betas=(pace.momentum, pace.memory))
    if config.optimiser == "adagrad":
        return torch.optim.Adagrad(groups, lr=rate)
    return torch.optim.SGD(groups, lr=float(rate), momentum=pace.momentum)
