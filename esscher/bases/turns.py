"""How processes gather weights that they share out, each of them as often as it likes.

    with in_turns(): ...

To gather a layer, all processes must take part, and they need not want it equally often: points that they draw have
different lengths. So they take turns. In a turn everybody tells which layer it wants next, if any, and all gather those that
anybody wants. At the end of `in_turns` a process goes on taking turns until nobody wants more: no process ever waits for one
that has finished. Outside of it all processes must do the same. How weights are shared out is in `esscher.bases.sharding`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol, runtime_checkable
from weakref import WeakValueDictionary

import torch
import torch.distributed as dist

from esscher.launch import started

NOTHING = -1  # what a process wants that has finished


@runtime_checkable
class Unit(Protocol):
    """Weights that are gathered together: a layer, or what stands around all layers."""

    def unshard(self) -> Any:
        """Gather them; all processes take part, unless they are here."""
        ...

    def reshard(self) -> None:
        """Keep this process's part only."""
        ...


class Turns:
    """The units of this process by number, the same on all processes, and those at work."""

    def __init__(self) -> None:
        self.units: WeakValueDictionary[int, Unit] = WeakValueDictionary()
        self.numbers, self.at_work = count(), set[int]()
        self.device: torch.device | None = None  # of the weights, once there are some

    def join(self, unit: Unit, device: torch.device) -> int:
        """The number of a new unit."""
        number = next(self.numbers)
        self.units[number], self.device = unit, device
        return number

    def take(self, own: int) -> bool:
        """Gather what this process wants, and what others want; False where nobody wants anything."""
        wanted = [torch.empty(1, dtype=torch.long, device=self.device) for _ in range(started())]
        dist.all_gather(wanted, torch.tensor([own], device=self.device))
        numbers = sorted({int(number) for number in wanted} - {NOTHING})
        for number in numbers:
            unit, busy = self.units[number], number in self.at_work
            if busy:
                unit.reshard()  # and gathered anew in the same place, where those who read its weights go on reading
            unit.unshard()
            if number != own and not busy:
                unit.reshard()
        return bool(numbers)

    def enter(self, number: int) -> None:
        """Gather a unit, which then works."""
        self.take(number)
        self.at_work.add(number)

    def leave(self, number: int) -> None:
        """The unit has done its work."""
        self.at_work.discard(number)

    def in_turn(self, number: int, within: Callable[..., Any], gathered: Callable[..., Any]) -> Callable[..., Any]:
        """A method that gathers its unit, unless another method of the unit, which calls it, has."""

        def called(*given: Any, **settings: Any) -> Any:
            if number in self.at_work:
                return within(*given, **settings)
            self.enter(number)
            try:
                return gathered(*given, **settings)
            finally:
                self.leave(number)

        return called


TURNS = Turns()


@contextmanager
def in_turns() -> Iterator[None]:
    """Within it each process may use weights that are shared out as often as it likes, and talks to others of nothing else."""
    yield
    while TURNS.device is not None and TURNS.take(NOTHING):
        pass
