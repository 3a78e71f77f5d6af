"""Fully sharded bases (FSDP2): each process keeps a shard of every layer and gathers the layer while it computes.

Within `with gather_in_lockstep():` each process scores or draws as often as it likes. All must take part in gathering a layer,
so they gather in rounds: each announces the layer it needs next, if any, until no process needs one. Gradients are summed over
the processes. Networks of esscher draw without a cache (`UncachedDecoding`), because their caches hold prepared weights.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist
from torch import nn

from esscher.bases.causal_lm import CausalLM
from esscher.bases.network import NetworkBase
from esscher.core.distributed import world_size
from esscher.networks.gradient_checkpointing import transformer_layers
from esscher.networks.incremental_decoding import UncachedDecoding
from esscher.networks.network import EncoderNetwork, Network, StreamingNetwork
from esscher.networks.xlnet import XLNetNetwork

NO_UNIT = -1  # announced by a process that needs no layer
FORWARD_METHODS = [  # of networks: those that read weights
    Network.hidden, Network.output, Network.log_probs, Network.log_probs_and_logsumexp, EncoderNetwork.encode,
    StreamingNetwork.init_memory, StreamingNetwork.read, XLNetNetwork.target_hidden,
]  # fmt: skip


class GatherSchedule:
    """The FSDP units (modules gathered together) of this process by number, the same on all processes."""

    def __init__(self) -> None:
        self.units: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self.numbers, self.active = count(), set[int]()
        self.device: torch.device | None = None  # of the weights, once a unit is registered

    def register(self, unit: Any, device: torch.device) -> int:
        """The number of a new unit, an `FSDPModule`."""
        number = next(self.numbers)
        self.units[number], self.device = unit, device
        return number

    def gather_round(self, requested_unit: int) -> bool:
        """Gather the units that any process requests; False if no process requests one."""
        requested = [torch.empty(1, dtype=torch.long, device=self.device) for _ in range(world_size())]
        dist.all_gather(requested, torch.tensor([requested_unit], device=self.device))
        numbers = sorted({int(number) for number in requested} - {NO_UNIT})
        for number in numbers:
            unit, busy = self.units[number], number in self.active
            if busy:
                unit.reshard()  # and gathered again into the same memory, which its readers go on reading
            unit.unshard()
            if number != requested_unit and not busy:
                unit.reshard()
        return bool(numbers)

    def enter(self, number: int) -> None:
        self.gather_round(number)
        self.active.add(number)

    def gathering_call(self, number: int, inner: Callable[..., Any], gathered: Callable[..., Any]) -> Callable[..., Any]:
        """A method that gathers its unit, unless it is called by another method of the unit: then `inner` is called."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if number in self.active:
                return inner(*args, **kwargs)
            self.enter(number)
            try:
                with warnings.catch_warnings():  # results may be views, which must not be written to; here nothing is
                    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
                    return gathered(*args, **kwargs)
            finally:
                self.active.discard(number)

        return call


GATHER_SCHEDULE = GatherSchedule()


@contextmanager
def gather_in_lockstep() -> Iterator[None]:
    """Within it each process may use sharded bases as often as it likes; it must not communicate in any other way."""
    yield
    while GATHER_SCHEDULE.device is not None and GATHER_SCHEDULE.gather_round(NO_UNIT):
        pass


def shard(module: nn.Module, device: torch.device | None = None) -> None:
    """Shard the weights of a base in place; all processes call it, with equal weights. Weights that are elsewhere than on the
    device (by default where they are) move there a layer at a time, so that no device ever holds all of them."""
    from torch.distributed.device_mesh import init_device_mesh

    if world_size() == 1:
        raise ValueError(
            "Weights are sharded over several processes, and there is one. Nothing was done; start torchrun, or leave fsdp out."
        )
    root, methods = module, tuple[str, ...]()
    if isinstance(module, CausalLM):
        root, methods = module.model, ("forward",)
    elif isinstance(module, NetworkBase) and isinstance(module.network, nn.Module):
        root = module.network
        methods = tuple(method.__name__ for method in FORWARD_METHODS if hasattr(root, method.__name__))
    else:
        raise ValueError(
            f"A {type(module).__name__} cannot be sharded: only a NetworkBase or CausalLM can. "
            "Nothing was done; leave fsdp out."
        )
    mesh = init_device_mesh((device or next(root.parameters()).device).type, (world_size(),))
    for layer, layer_methods in transformer_layers(root).items():
        _shard_unit(layer, layer_methods, mesh)
    outermost = _shard_unit(root, methods, mesh)
    outermost._get_fsdp_state()._lazy_init()  # as its first pass would, which may come later than a layer's on another process
    if isinstance(module, NetworkBase):
        steps = UncachedDecoding(module.network)
        for name in ("begin", "advance", "select"):
            setattr(root, name, getattr(steps, name))


def _shard_unit(module: nn.Module, methods: tuple[str, ...], mesh: Any) -> Any:
    """Shard a module as one FSDP unit, which its methods gather."""
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    unit = fully_shard(module, mesh=mesh, reshard_after_forward=True)
    device = next(module.parameters()).device
    unit.set_gradient_divide_factor(1.0)  # a sum, as everywhere in training
    unit.set_force_sum_reduction_for_comms(True)  # the alternative is not supported by all backends
    unit.set_modules_to_backward_prefetch([unit])  # no prefetch: it assumes equal passes on all processes
    number = GATHER_SCHEDULE.register(unit, device)
    for name in methods:
        if name == "forward":
            module.register_forward_pre_hook(lambda *args: GATHER_SCHEDULE.enter(number), prepend=True)
            module.register_forward_hook(lambda *args: GATHER_SCHEDULE.active.discard(number))
        else:
            inner = getattr(module, name)
            register_fsdp_forward_method(module, name)
            setattr(module, name, GATHER_SCHEDULE.gathering_call(number, inner, getattr(module, name)))
    return unit
