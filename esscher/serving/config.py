"""What the endpoint of a model allows, without torch."""

from dataclasses import dataclass

from esscher.reach import HOME, check_reach, known_token


@dataclass(frozen=True)
class ServeConfig:
    """Limits of single requests, and of all together."""

    host: str = HOME
    """The address to listen at; any other than this machine's own needs a token."""
    port: int = 8000
    token: str | None = None
    """What a client must send as its bearer token; by default what ESSCHER_TOKEN says, which no list of processes shows."""
    body: int = 65_536
    """Bytes of a request."""
    prompts: int = 8
    """Prompts in a request."""
    prompt_tokens: int = 1_024
    """Tokens of a prompt."""
    draws: int = 16
    """Draws for each prompt."""
    pool: int = 64
    """Candidates that a draw is chosen from, unless the request says; four times as many at most."""
    at_once: int = 1
    """Requests that are drawn for at the same time."""
    waiting: int = 32
    """Requests that may wait for that; more are refused."""
    seconds: float = 60.0
    """From a request's first byte to its answer."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token", known_token(self.token))
        for name in ("body", "prompts", "prompt_tokens", "draws", "pool", "at_once", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is above 0, not {getattr(self, name)}. Nothing is served.")
        if self.waiting < 0:
            raise ValueError(f"waiting is 0 or more, not {self.waiting}. Nothing is served.")
        check_reach(self.host, self.token)
