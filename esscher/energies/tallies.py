"""Declared features as exact tallies: what an automaton can compute while it reads.

With them a finite-state base has exact moments, and exact weights for wanted moments (`esscher.exact.moments`). Only
features on tokens have one, and of these the kinds in `EXACT`.
"""

from esscher.energies.declaration import Declared
from esscher.exact import acceptors
from esscher.exact.acceptors import Acceptor
from esscher.exact.features import Tally, indicator, length, visits
from esscher.space import Space

ACCEPTORS = {
    "contains": acceptors.contains,
    "lacks": lambda motif, vocab_size: ~acceptors.contains(motif, vocab_size),
    "starts-with": acceptors.starts_with,
    "ends-with": acceptors.ends_with,
}
EXACT = (*ACCEPTORS, "count", "tokens")


def declared_tally(declared: Declared, space: Space) -> Tally:
    """The tally that equals the declared feature on every point of the space."""
    if declared.reads != "tokens" or declared.kind not in EXACT or declared.at_least is not None:
        raise ValueError(
            f"Feature {declared.title!r} ({declared.kind} on {declared.reads}) has no exact tally. Declare it on tokens, "
            f"without a threshold, as one of: {', '.join(EXACT)}; or build an acceptor (`esscher.exact.regular`)."
        )
    if declared.kind == "tokens":
        return length(space, name=declared.title)
    if declared.kind == "count":
        return visits(declared.title, _apart(acceptors.ends_with(declared.motif, space.vocab_size)), space)
    acceptor = ACCEPTORS[declared.kind](declared.motif, space.vocab_size)
    return indicator(declared.title, ~acceptor if declared.negated else acceptor, space)


def _apart(ends: Acceptor) -> Acceptor:
    """The next occurrence begins after the last one: from the whole motif it goes on as from nothing."""
    move = ends.move.clone()
    move[-1] = move[0]
    return Acceptor(move, ends.accepting)
