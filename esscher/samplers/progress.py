"""Progress reports of sampling: wrap the target, and tokens drawn and energies computed are counted (`with_progress`), or the
share of a known number of draws that is done is reported (`counting_draws`)."""

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


class DrawCounter:
    """How many draws are done, from the calls of their base: a sequence that goes on counts for the share of its largest length
    that it has, and one that ended for a whole draw."""

    def __init__(self, report: Callable[[float], None], max_length: int):
        self.report, self.max_length = report, max_length
        self.done, self.rows, self.length = 0, 0, 0  # draws before this batch, its rows, its length so far

    def begin(self) -> None:
        self.done, self.rows, self.length = self.done + self.rows, 0, 0

    def advance(self, rows: int) -> None:
        self.rows, self.length = max(self.rows, rows), self.length + 1
        self.report(self.done + self.rows - rows * (1 - self.length / self.max_length))


@dataclass(frozen=True)
class DrawCountingBase(BaseWrapper):
    """A base whose draws are counted."""

    counter: DrawCounter

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        self.counter.begin()
        return self.base.begin(prompts)

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        self.counter.advance(len(token))
        return self.base.advance(state, token)


def counting_draws(target: Tilted, report: Callable[[float], None]) -> Tilted:
    """The same target, which reports how many draws are done while a sampler draws from it."""
    return Tilted(DrawCountingBase(target.base, DrawCounter(report, target.space.max_length)), target.energy).unchecked()
