"""The settings of `esscher sample`, without torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DrawingConfig:
    """How to draw."""

    draws: int = 4
    """Draws for each prompt."""
    sampler: str | None = None
    """ancestral, importance, pool, adaptive-pool, rejection, quasi-rejection, metropolis, particles or exhaustive; ancestral by
    default, adaptive-pool for a tilted model."""
    pool: int | None = None
    """Candidates of the samplers pool and particles (64); chooses pool."""
    effective: float = 16.0
    """adaptive-pool: candidates are drawn until none holds more than 1 / this of the weight."""
    largest: int = 4096
    """adaptive-pool: candidates of the largest pool."""
    own_pools: bool = False
    """One pool for each draw, not one for all draws of a prompt."""
    block: int = 8
    """particles: tokens between two weighings."""
    halvings: int = 0
    """particles: start with 2^this times as many, keep half after each block."""
    steps: int = 100
    """metropolis: length of each chain."""
    log_bound: float | None = None
    """rejection, quasi-rejection: bound on -E(x)."""
    temperature: float = 1.0
    """Of the base, which stays normalised."""
    top_k: int | None = None
    """Keep the k likeliest tokens at each step."""
    top_p: float | None = None
    """Keep the likeliest tokens up to this share."""

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise ValueError(f"There is at least 1 draw for each prompt, not {self.draws}. Nothing was drawn.")

    def name(self, *, tilted: bool) -> str:
        """The sampler that these settings ask for."""
        if self.sampler is not None:
            return self.sampler
        if not tilted:
            return "ancestral"
        return "adaptive-pool" if self.pool is None else "pool"


@dataclass(frozen=True)
class PicturingConfig:
    """Of a model of images: what is given of them."""

    classes: tuple[int, ...] = ()
    """Of a model with classes: those to draw; all by default."""
    complete: str | None = None
    """A source of images, such as digits: their upper rows are given, the rest is drawn."""
    rows: int | None = None
    """How many rows are given; half of them by default."""
    images: int = 8
    """How many images to complete, the first ones."""

    def __post_init__(self) -> None:
        if self.images < 1:
            raise ValueError(f"At least 1 image is given, not {self.images}. Nothing was drawn.")
