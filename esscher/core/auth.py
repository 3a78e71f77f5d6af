"""Access to servers: loopback only, or anybody with a token."""

import hmac
import os
from dataclasses import dataclass
from ipaddress import ip_address

LOOPBACK = "127.0.0.1"
MIN_TOKEN_LENGTH = 8


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The address of a server, and the token that its clients must know."""

    host: str = LOOPBACK
    """Address to listen on: this machine only by default; any other requires a token."""
    port: int | None = None
    """Port to listen on."""
    token: str | None = None
    """Token of the clients; ESSCHER_TOKEN by default, which process listings do not show."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "token", self.token or os.environ.get("ESSCHER_TOKEN") or None)
        if self.token is None and not is_loopback(self.host):
            raise ValueError(
                f"Other machines can reach {self.host}, and there is no token. Nothing is served; set one (--token or "
                f"ESSCHER_TOKEN), or serve at {LOOPBACK}."
            )
        if self.token is not None and len(self.token) < MIN_TOKEN_LENGTH:
            raise ValueError(f"A token has {MIN_TOKEN_LENGTH} characters or more, not {len(self.token)}. Nothing is served.")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def token_matches(candidate: str, token: str) -> bool:
    """Whether a token is right; compares in constant time."""
    return hmac.compare_digest(candidate.encode(), token.encode())
