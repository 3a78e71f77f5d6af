"""Which base an energy belongs to: weights learnt on one mean nothing on another."""

import torch
from torch import nn

from esscher.space import Space
from esscher.storage import digest, module_tensors


def base_digest(base: nn.Module) -> str:
    """One name for a base that is a module: its weights, and the space they speak about."""
    space = getattr(base, "space", None)
    assert isinstance(space, Space)
    numbers = [space.vocab_size, space.max_length, -1 if space.eos is None else space.eos]
    return digest({**module_tensors(base), "space": torch.tensor(numbers)})


def refuse_other_base(base: nn.Module, *, fitted_on: str, known: str) -> None:
    """An error unless the base has the digest `known`; `fitted_on` is the folder that had it."""
    found = base_digest(base)
    if found != known:
        raise ValueError(
            f"This energy was fitted on the base in {fitted_on} (digest {known[:12]}), and the base given "
            f"has digest {found[:12]}: its weights mean nothing there. Nothing was computed; give that base, with the same "
            f"longest point and end symbol, or fit the energy anew on this one."
        )
