"""Progress reports of sampling: wrap the target, and every token drawn and every energy computed is counted."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.progress import Throttle
from esscher.core.space import Sequences
from esscher.core.target import BaseWrapper, Energy, State, Tilted, flat
from esscher.samplers.twists import HasTwist


class ProgressCounter:
    """Counts tokens drawn and sequences weighed, and reports them at intervals."""

    def __init__(self, report: Callable[[str], None], *, pause: float | None = None):
        self.report, self.throttle, self.tokens, self.weighed = report, Throttle(pause), 0, 0

    def add(self, *, tokens: int = 0, weighed: int = 0) -> None:
        self.tokens, self.weighed = self.tokens + tokens, self.weighed + weighed
        if self.throttle.due():
            seconds = self.throttle.elapsed
            self.report(f"{self.tokens:,} tokens drawn, {self.weighed:,} sequences weighed, {seconds:.0f} s")


def with_progress(target: Tilted, tally: ProgressCounter) -> Tilted:
    """The same target, whose base and energy count their calls."""

    @wraps(target.energy, updated=())
    def energy(x: Sequences) -> Tensor:
        value = target.energies(x)
        tally.add(weighed=len(x))
        return value

    counting = CountingTwistedEnergy(target.energy, energy) if isinstance(target.energy, HasTwist) else energy
    return Tilted(CountingBase(target.base, tally), flat if target.energy is flat else counting).unchecked()


@dataclass(frozen=True)
class CountingTwistedEnergy:
    """An energy with a twist that counts energies, not twists."""

    energy: HasTwist
    counted: Energy

    def __call__(self, x: Sequences) -> Tensor:
        return self.counted(x)

    def twist(self, x: Sequences) -> Float[Tensor, "B"]:
        return self.energy.twist(x)


@dataclass(frozen=True)
class CountingBase(BaseWrapper):
    """A base that counts the tokens it advances by."""

    tally: ProgressCounter

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        self.tally.add(tokens=len(token))
        return self.base.advance(state, token)
