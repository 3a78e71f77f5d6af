"""A base whose weights the processes share out: each keeps a part of every layer, and all of a layer is there while it works.

    shard(base)

It then scores, learns and draws as before, in turns with the other processes (`esscher.bases.turns`). The parts are torch's
(FSDP2, `fully_shard`), and so are gradients: summed over the processes, each keeping its part.

Networks of ours draw by whole passes (`esscher.networks.reread`), since what their states keep are all weights. Layers that
`esscher.networks.layers` does not tell apart are gathered together.
"""

import warnings
from functools import wraps
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from esscher.bases.causal_lm import CausalLM
from esscher.bases.network import NetworkBase
from esscher.bases.turns import TURNS
from esscher.launch import started
from esscher.networks.layers import layers
from esscher.networks.reread import Reread

WHOLE = ("hidden", "output", "score", "score_and_level", "surveyed", "open", "read", "predicted")  # what needs weights of ours


def shard(module: nn.Module) -> None:
    """Share out the weights of a base, in place, which must be equal on all processes; all of them call it."""
    if started() == 1:
        raise ValueError(
            "There is one process, and weights are shared out among several. Nothing was done; start them with torchrun, or "
            "leave sharded out."
        )
    root, passes = _root(module)
    mesh = init_device_mesh(next(root.parameters()).device.type, (started(),))
    for layer in layers(root):
        _share_out(layer.module, layer.passes, mesh)
    outermost = _share_out(root, passes, mesh)
    outermost._get_fsdp_state()._lazy_init()  # which its first pass would do, and that of another process may come before
    if isinstance(module, NetworkBase):
        steps = Reread(module.network)
        for name in ("begin", "advance", "select"):
            setattr(root, name, getattr(steps, name))


def _root(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """What holds all weights of a base, and the methods by which sequences pass through it."""
    if isinstance(module, CausalLM):
        return module.model, ("forward",)
    if isinstance(module, NetworkBase) and isinstance(module.network, nn.Module):
        return module.network, tuple(name for name in WHOLE if hasattr(module.network, name))
    raise ValueError(
        f"A {type(module).__name__} cannot be shared out: that is for networks of ours and causal language models. Nothing was "
        f"done; leave sharded out."
    )


def _share_out(module: nn.Module, passes: tuple[str, ...], mesh: DeviceMesh) -> FSDPModule:
    device = next(module.parameters()).device
    unit = fully_shard(module, mesh=mesh, reshard_after_forward=True)
    unit.set_gradient_divide_factor(1.0)  # a sum, as everywhere in training
    unit.set_force_sum_reduction_for_comms(True)  # or else by an operation that only some networks of processes have
    unit.set_modules_to_backward_prefetch([unit])  # nothing ahead: that is guessed from passes, of which others may have more
    number = TURNS.join(unit, device)
    for name in passes:
        if name == "forward":
            module.register_forward_pre_hook(lambda *given: TURNS.enter(number), prepend=True)
            module.register_forward_hook(lambda *given: TURNS.leave(number))
        else:
            within = getattr(module, name)
            register_fsdp_forward_method(module, name)
            setattr(module, name, TURNS.in_turn(number, within, _without_warning(getattr(module, name))))
    return unit


def _without_warning(method: Any) -> Any:
    """Results that are views are warned of, because nobody may write into them; nobody does."""

    @wraps(method)
    def called(*given: Any, **settings: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
            return method(*given, **settings)

    return called
