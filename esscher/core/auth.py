"""Access to servers: loopback only, or anybody with a token."""

import hmac
import os
from dataclasses import dataclass, field
from ipaddress import ip_address

LOOPBACK = "127.0.0.1"
MIN_TOKEN_LENGTH = 8


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The address of a server, the token that its clients must know, and the size of their requests."""

    host: str = LOOPBACK
    """Address to listen on: this machine only by default; any other requires a token."""
    port: int | None = None
    """Port to listen on."""
    token: str | None = None
    """Token of the clients; ESSCHER_TOKEN by default, which process listings do not show."""
    allowed_hosts: tuple[str, ...] = field(default=(), metadata={"flag": "--allowed-host"})
    """Names of this server beside its address and localhost, for instance that of a proxy. May be given several times."""
    max_body_bytes: int = 65_536
    """Largest request, in bytes."""
    receive_timeout: float = 10.0
    """Seconds that a client has to send its headers, and as many again for its body."""

    def __post_init__(self) -> None:
        for name in ("max_body_bytes", "receive_timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}. Nothing is served.")
        for name in self.allowed_hosts:
            if not name or set(name) & set("/:*@ []"):
                raise ValueError(f"{name!r} is no name of a host: give it without scheme and port. Nothing is served.")
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
    return hmac.compare_digest(candidate.encode(errors="surrogatepass"), token.encode(errors="surrogatepass"))
