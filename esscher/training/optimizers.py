"""Optimizers of the modules that learn, and the average of their weights.

An objective may return a loss for each of several modules, which moves that module only; a module without a loss stays as it
is. Losses of micro-batches and processes are weighted by `Loss.count`, so the gradient is that of the whole batch. Gradients of
FSDP weights (`esscher.bases.fsdp`) arrive sharded and summed. `WeightAverage` (Polyak and Juditsky 1992) begins at a given
step, or where evaluations stall (NT-ASGD, Merity et al. 2018); it is evaluated and returned, and never trained from.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from esscher.core.objective import Loss
from esscher.core.storage import full_tensor, is_sharded, shard_like
from esscher.training.collectives import all_reduce_gradients, all_reduce_sum
from esscher.training.config import OptimizerConfig, TrainingConfig


class Optimizers:
    """Named modules, their optimizers, and the gradient of the current update."""

    def __init__(
        self,
        modules: Mapping[str, nn.Module],
        optimizer_configs: Mapping[str, OptimizerConfig],
        config: TrainingConfig,
        accelerator: Accelerator,
    ):
        self.modules, self.config, self.accelerator = dict(modules), config, accelerator
        self.parameters = {name: [p for p in module.parameters() if p.requires_grad] for name, module in modules.items()}
        for name, module in modules.items():
            if not self.parameters[name]:
                raise ValueError(f"The module {name!r} ({type(module).__name__}) has no trainable weight. Nothing was trained.")
        for name in optimizer_configs:
            self._of(name, "has an optimizer config")
        self.optimizer_configs = {name: optimizer_configs.get(name, OptimizerConfig()) for name in modules}
        self.group_lr_scales: dict[str, list[float]] = {}  # of the parameter groups
        self.optimizers = {name: _build_optimizer(config, self.optimizer_configs[name], self._groups(name)) for name in modules}
        self._all = list({id(p): p for parameters in self.parameters.values() for p in parameters}.values())
        self._is_sharded = any(map(is_sharded, self._all))
        self.clear()

    def clear(self) -> None:
        """Reset the gradient and the sums of this update."""
        self.count, self.loss = 0.0, 0.0
        self.counts = dict.fromkeys(self.modules, 0.0)
        self.metrics: dict[str, float] = {}
        for parameter in self._all:
            parameter.grad = None

    def add(self, loss: Loss) -> None:
        """Add the loss of one micro-batch to the gradient."""
        values = loss.values
        if self._is_sharded and len(values) > 1:
            raise ValueError(
                "FSDP trains on one loss, not on one for each of several modules. Nothing was learnt; do without it."
            )
        for number, (module, value) in enumerate(values.items()):
            parameters = self._all if module is None else self._of(module, "has a loss")
            for name in self.counts if module is None else [module]:
                self.counts[name] += loss.count
            if self._is_sharded:
                torch.autograd.backward(value * loss.count)  # whose hooks shard the gradient
                continue
            more = number + 1 < len(values)
            gradients = torch.autograd.grad(value * loss.count, parameters, retain_graph=more, allow_unused=True)
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self.count += loss.count
        self.loss += float(sum(value.detach() for value in values.values())) * loss.count
        metrics = dict(loss.metrics)
        if isinstance(loss.value, Mapping):
            metrics |= {f"{module}/loss": float(value.detach()) for module, value in loss.value.items()}
        for name, metric in metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + metric * loss.count

    def update(self, rate: float) -> tuple[float, dict[str, float]]:
        """Step every optimizer with a gradient; returns the mean loss, and the mean metrics of this process."""
        metrics = {name: value / self.count for name, value in self.metrics.items()}
        loss, count, *counts = all_reduce_sum(self.accelerator, [self.loss, self.count, *self.counts.values()])
        loss /= count
        max_norm, moving = 0.0, {name: units for name, units in zip(self.counts, counts, strict=True) if units > 0}
        for name, units in moving.items():
            parameters = self.parameters[name]
            all_reduce_gradients(self.accelerator, parameters)
            for parameter in parameters:
                if parameter.grad is not None:
                    parameter.grad.div_(units)
            limit = math.inf if self.config.max_grad_norm is None else self.config.max_grad_norm
            max_norm = max(max_norm, float(full_tensor(nn.utils.clip_grad_norm_(parameters, limit))))
            for group, scale in zip(self.optimizers[name].param_groups, self.group_lr_scales[name], strict=True):
                group["lr"] = rate * self.optimizer_configs[name].lr_scale * scale
        if math.isfinite(loss) and math.isfinite(max_norm):
            for name in moving:
                self.optimizers[name].step()
        return loss, {**metrics, "gradient": max_norm}

    def train(self, mode: bool) -> None:
        for module in self.modules.values():
            module.train(mode)

    def _groups(self, module: str) -> list[dict[str, Any]]:
        """Parameter groups by learning rate and weight decay, which acts on matrices, not on biases and norms."""
        groups: dict[tuple[float, bool], list[nn.Parameter]] = {}
        for name, weight in self.modules[module].named_parameters():
            if weight.requires_grad:
                groups.setdefault((self.optimizer_configs[module].lr_scale_of(name), weight.ndim >= 2), []).append(weight)
        order = sorted(groups, key=lambda key: (key[0], not key[1]))
        self.group_lr_scales[module] = [scale for scale, _ in order]
        decay = self.config.weight_decay
        return [{"params": groups[key], "weight_decay": decay if key[1] else 0.0} for key in order]

    def _of(self, module: str, what: str) -> list[nn.Parameter]:
        if module not in self.parameters:
            known = ", ".join(self.parameters)
            raise ValueError(f"{module!r} {what} and is none of the modules, which are {known}. Nothing was learnt.")
        return self.parameters[module]


def _build_optimizer(
    config: TrainingConfig, optimizer_config: OptimizerConfig, groups: list[dict[str, Any]]
) -> torch.optim.Optimizer:
    lr = config.learning_rate
    if config.optimizer in ("adam", "adamw"):
        adam = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        return adam(groups, lr=lr, betas=(optimizer_config.momentum, optimizer_config.beta2))
    if config.optimizer == "adagrad":
        return torch.optim.Adagrad(groups, lr=lr)
    return torch.optim.SGD(groups, lr=lr, momentum=optimizer_config.momentum)


AVERAGE = "swa"


class WeightAverage:
    """The mean of all trainable parameters over the updates after step `begin`; none before it, or with `begin` None."""

    def __init__(self, modules: Mapping[str, nn.Module], begin: int | None):
        self.begin, self.mean = begin, {}  # type: int | None, dict[str, Tensor]
        weights = {f"{key}/{name}": p for key, module in modules.items() for name, p in module.named_parameters()}
        self.parameters = {name: weight for name, weight in weights.items() if weight.requires_grad}

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Add the weights after update `step` to the mean."""
        if self.begin is None or step <= self.begin:
            return
        for name, parameter in self.parameters.items():
            if step == self.begin + 1:
                self.mean[name] = parameter.detach().clone()
            else:
                self.mean[name].lerp_(parameter, 1 / (step - self.begin))

    @torch.no_grad()
    def copy_to_modules(self) -> None:
        """Replace the weights by the mean, if there is one."""
        for name, mean in self.mean.items():
            self.parameters[name].copy_(mean)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Give the modules the mean within the block, if there is one, and their own weights back after it."""
        current_weights = {name: self.parameters[name].detach().clone() for name in self.mean}
        self.copy_to_modules()
        try:
            yield
        finally:
            with torch.no_grad():
                for name, tensor in current_weights.items():
                    self.parameters[name].copy_(tensor)

    def state_dict(self) -> dict[str, Tensor]:
        return {f"{AVERAGE}/{name}": full_tensor(mean) for name, mean in self.mean.items()}

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        prefix = f"{AVERAGE}/"
        means = {name.removeprefix(prefix): mean for name, mean in saved.items() if name.startswith(prefix)}
        self.mean = {name: shard_like(self.parameters[name], mean) for name, mean in means.items()}


def has_stalled(evaluations: Sequence[float], patience: int) -> bool:
    """Whether the last evaluation is worse than the best one, not counting the `patience` evaluations before it."""
    earlier = evaluations[: -patience - 1]
    return bool(earlier) and evaluations[-1] > min(earlier)
