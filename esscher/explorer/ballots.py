"""Pairs of texts to be judged blind, and the votes on them, in a folder that survives a crash.

    pairs.jsonl   written once: an id, the prompt, what A and B wrote, and the right answer where the pair is a check
    votes.jsonl   one line a vote, on the disk before the next pair is shown: pair, rater, choice, what stood left, time

Which side a text stands on and the order of the pairs are chance, from the seed and the rater's name, so that a server that was
killed goes on with the same order where each rater was. A line that was cut off by a crash is dropped; its vote was never
confirmed. Attention checks show a text beside itself with its words in another order.
"""

import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from esscher.estimators.preference import Choice, Vote
from esscher.randomness import Seeded
from esscher.storage import write_file

PAIRS, VOTES = "pairs.jsonl", "votes.jsonl"
EVERY = 10  # pairs to one attention check


@dataclass(frozen=True)
class Pair:
    """Two texts after a prompt; `right` is the better one where that is known beforehand."""

    id: str
    prompt: str
    a: str
    b: str
    right: Choice | None = None

    def side(self, name: str) -> str:
        return self.a if name == "a" else self.b


def make_pairs(prompts: Sequence[str], a: Sequence[str], b: Sequence[str], *, seed: int) -> list[Pair]:
    """The pairs, those whose texts are equal left out, and an attention check for every ten of them, at least one."""
    rows = [row for row in zip(prompts, a, b, strict=True) if row[1].strip() != row[2].strip()]
    if not rows:
        raise ValueError(f"All {len(prompts)} pairs of texts are equal, so there is nothing to judge. Nothing was served.")
    pairs = [Pair(f"p{number}", *row) for number, row in enumerate(rows)]
    checks = []
    for number, one in enumerate(pairs[::EVERY]):
        mixed = _mixed(one.a, Seeded(seed).stream("check", number))
        if mixed is not None:
            checks.append(Pair(f"c{number}", one.prompt, one.a, mixed, "a"))
    return [*pairs, *checks]


def _mixed(text: str, rng: Seeded) -> str | None:
    """The words of the text in another order, or its letters where it has too few; None where that changes nothing."""
    words, gap = (text.split(), " ") if len(text.split()) > 3 else (list(text), "")
    for attempt in range(8):
        mixed = gap.join(words[place] for place in rng.stream(attempt).permutation(len(words)).tolist())
        if mixed != text:
            return mixed
    return None


class Ballots:
    """The folder of one comparison."""

    def __init__(self, folder: Path, *, seed: int = 0):
        self.folder, self.seed, self._lock = folder, seed, threading.Lock()
        lines = (folder / PAIRS).read_text(encoding="utf8").splitlines()
        self.pairs = {pair.id: pair for pair in (Pair(**json.loads(line)) for line in lines)}
        self._mend()

    @classmethod
    def begin(cls, folder: Path, pairs: Sequence[Pair], *, seed: int) -> "Ballots":
        """A new comparison; one that has begun keeps its pairs, and other ones are refused."""
        written = "".join(json.dumps(asdict(pair), ensure_ascii=False) + "\n" for pair in pairs).encode()
        file = folder / PAIRS
        if file.is_file() and file.read_bytes() != written:
            raise ValueError(
                f"{file} holds other pairs than these. Nothing was served and no vote was lost; go on with them by naming "
                f"the same models, prompts and seed, or choose another --out."
            )
        write_file(file, written)
        return cls(folder, seed=seed)

    @property
    def checks(self) -> dict[str, Choice]:
        """The pairs with a right answer."""
        return {pair.id: pair.right for pair in self.pairs.values() if pair.right is not None}

    def votes(self) -> list[Vote]:
        """All votes so far, in their order."""
        file = self.folder / VOTES
        lines = file.read_text(encoding="utf8").split("\n")[:-1] if file.is_file() else []
        told = [json.loads(line) for line in lines]
        return [Vote(one["pair"], one["rater"], one["choice"]) for one in told]

    def next(self, rater: str) -> Pair | None:
        """The next pair for this rater, in an order of their own; None when all are judged."""
        done = {vote.pair for vote in self.votes() if vote.rater == rater}
        names = list(self.pairs)
        order = Seeded(self.seed).stream("order", rater).permutation(len(names)).tolist()
        return next((self.pairs[names[place]] for place in order if names[place] not in done), None)

    def left(self, rater: str, pair: Pair) -> str:
        """Which model's text stands left for this rater."""
        return "ab"[int(Seeded(self.seed).stream("side", rater, pair.id).permutation(2)[0])]

    def vote(self, rater: str, pair: Pair, side: str) -> None:
        """Record "left", "right" or "equal": on the disk when this returns. A second vote on a pair counts for nothing."""
        if not rater.strip():
            raise ValueError("A vote needs the rater's name. Nothing was recorded.")
        left = self.left(rater, pair)
        other = "b" if left == "a" else "a"
        choices = {"left": left, "right": other, "equal": "equal"}
        if side not in choices:
            raise ValueError(f"No choice named {side!r}. Nothing was recorded; choose from: {', '.join(choices)}.")
        line = {"pair": pair.id, "rater": rater, "choice": choices[side], "left": left, "time": round(time.time(), 1)}
        with self._lock:
            if any(vote.pair == pair.id and vote.rater == rater for vote in self.votes()):
                return
            with (self.folder / VOTES).open("a", encoding="utf8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
                os.fsync(file.fileno())

    def _mend(self) -> None:
        """Drop a line that a crash cut off."""
        file = self.folder / VOTES
        if file.is_file():
            whole, _, broken = file.read_bytes().rpartition(b"\n")
            if broken:
                write_file(file, whole + b"\n" if whole else b"")
