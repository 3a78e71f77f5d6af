"""The settings of `esscher serve`, without torch."""

from dataclasses import dataclass

from esscher.core.auth import ServerConfig


@dataclass(frozen=True, kw_only=True)
class ServeConfig(ServerConfig):
    """Each draw is chosen by the energy among candidates of the base. Requests beyond the limits, and what a tilted model
    cannot do, are refused with the reason. A distilled model needs none of this: it is a plain Hugging Face folder."""

    port: int = 8000
    """Port to listen on."""
    max_prompts: int = 8
    """Prompts per request."""
    max_prompt_tokens: int = 1_024
    """Tokens per prompt."""
    max_draws: int = 16
    """Draws per prompt."""
    num_candidates: int = 64
    """Candidates that each draw is chosen from, by default; a request may ask for up to four times as many."""
    max_concurrent: int = 1
    """Requests that are computed at the same time."""
    max_queued: int = 32
    """Requests that may wait; more are refused."""
    timeout: float = 60.0
    """Seconds from a request, once it is here, to its answer."""

    def __post_init__(self) -> None:
        limits = {name: value for name, value in vars(self).items() if name.startswith("max_") and name != "max_queued"}
        for name, value in {**limits, "num_candidates": self.num_candidates, "timeout": self.timeout}.items():
            if not value > 0:
                raise ValueError(f"{name} must be above 0, not {value}. Nothing is served.")
        if self.max_queued < 0:
            raise ValueError(f"max_queued must be 0 or more, not {self.max_queued}. Nothing is served.")
        super().__post_init__()
