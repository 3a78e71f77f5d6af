"""Who reaches what is served: this machine alone, or others who know a token."""

import hmac
import os
from ipaddress import ip_address

HOME = "127.0.0.1"
SHORTEST = 8  # characters of a token


def known_token(token: str | None) -> str | None:
    """The token, by default what ESSCHER_TOKEN says, which no list of processes shows."""
    return token or os.environ.get("ESSCHER_TOKEN") or None


def check_reach(host: str, token: str | None) -> None:
    """Refuse to serve at an address that others reach without a token, or with one that is soon guessed."""
    if token is None and not local(host):
        raise ValueError(
            f"At {host} others reach this model. Nothing is served; set a token (--token or ESSCHER_TOKEN) that they must "
            f"know, or stay at {HOME}."
        )
    if token is not None and len(token) < SHORTEST:
        raise ValueError(f"A token of {len(token)} characters is soon guessed. Nothing is served; give {SHORTEST} or more.")


def local(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def knows(given: str, token: str) -> bool:
    """Whether what a visitor gave is the token; the time this takes does not tell how far it was right."""
    return hmac.compare_digest(given.encode(), token.encode())
