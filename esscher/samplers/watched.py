"""A target that tells how far drawing has come: the same base and the same energy, counted as they are asked."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from esscher.samplers.twists import Foresees
from esscher.space import Sequences, Space
from esscher.target import Base, Energy, State, Tilted, flat

PAUSE = 10.0  # seconds between two words


class Tally:
    """Tokens drawn and sequences weighed so far; says so now and then."""

    def __init__(self, say: Callable[[str], None], *, pause: float = PAUSE):
        self.say, self.pause, self.tokens, self.weighed = say, pause, 0, 0
        self.begun = self.spoken = time.monotonic()

    def add(self, *, tokens: int = 0, weighed: int = 0) -> None:
        self.tokens, self.weighed = self.tokens + tokens, self.weighed + weighed
        now = time.monotonic()
        if now - self.spoken >= self.pause:
            self.spoken = now
            self.say(f"{self.tokens:,} tokens drawn, {self.weighed:,} sequences weighed, {now - self.begun:.0f} s")


def watched(target: Tilted, tally: Tally) -> Tilted:
    """The same target, which tells the tally of every token and every energy."""

    def energy(x: Sequences) -> Tensor:
        found = target.energy(x)
        tally.add(weighed=len(x))
        return found

    seen = WatchedForesight(target.energy, energy) if isinstance(target.energy, Foresees) else energy
    return Tilted(WatchedBase(target.base, tally), flat if target.energy is flat else seen)


@dataclass(frozen=True)
class WatchedForesight:
    """An energy that foresees, and counts whole points only."""

    energy: Foresees
    counted: Energy

    def __call__(self, x: Sequences) -> Tensor:
        return self.counted(x)

    def after(self, x: Sequences) -> Float[Tensor, "B"]:
        return self.energy.after(x)


@dataclass(frozen=True)
class WatchedBase:
    """A base that counts the tokens it goes on with."""

    base: Base
    tally: Tally

    @property
    def space(self) -> Space:
        return self.base.space

    def log_probs(self, x: Sequences) -> Float[Tensor, "B T"]:
        return self.base.log_probs(x)

    def begin(self, prompts: Sequences) -> tuple[Float[Tensor, "B V"], State]:
        return self.base.begin(prompts)

    def advance(self, state: State, token: Int[Tensor, "B"]) -> tuple[Float[Tensor, "B V"], State]:
        self.tally.add(tokens=len(token))
        return self.base.advance(state, token)

    def select(self, state: State, index: Int[Tensor, "K"]) -> State:
        return self.base.select(state, index)
