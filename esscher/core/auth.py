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
        object.__setattr__(self, "token", token_or_environment(self.token))
        require_token_off_loopback(self.host, self.token)


def token_or_environment(token: str | None) -> str | None:
    """The token, by default that of ESSCHER_TOKEN, which process listings do not show."""
    return token or os.environ.get("ESSCHER_TOKEN") or None


def require_token_off_loopback(host: str, token: str | None) -> None:
    """Refuse to serve beyond this machine without a token, or with one that is too short."""
    if token is None and not is_loopback(host):
        raise ValueError(
            f"Other machines can reach {host}, and there is no token. Nothing is served; set one (--token or ESSCHER_TOKEN), "
            f"or serve at {LOOPBACK}."
        )
    if token is not None and len(token) < MIN_TOKEN_LENGTH:
        raise ValueError(f"A token of {len(token)} characters is too short. Nothing is served; use {MIN_TOKEN_LENGTH} or more.")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def token_matches(candidate: str, token: str) -> bool:
    """Whether a token is right; compares in constant time."""
    return hmac.compare_digest(candidate.encode(), token.encode())
