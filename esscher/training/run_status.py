"""Where a run is, for a page that watches it: `.training.json` in the run folder, rewritten about once a second and removed
when the run ends. It holds what `history.jsonl` must not, because a resumed run repeats that bit for bit: seconds, tokens per
second, the time left. A write that fails is dropped: a run does not end because nobody can watch it."""

import contextlib
import json
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from esscher.core.progress import Throttle
from esscher.core.reading import parse_json

STATUS = ".training.json"
WRITE_INTERVAL = 1.0  # seconds between two writes


@dataclass(frozen=True)
class RunStatus:
    """The last update that was written, the number of all, the speed, and when (seconds since 1970)."""

    step: int
    steps: int
    seconds: float  # since the run began or was resumed
    seconds_left: float
    tokens_per_second: float
    learning_rate: float
    time: float


class StatusWriter:
    """Writes the status of one run; without a folder it does nothing."""

    def __init__(self, folder: Path | None):
        self.file = None if folder is None else folder / STATUS
        self.tokens, self.first, self.throttle = 0, 0, Throttle(WRITE_INTERVAL)

    def begin(self, step: int) -> None:
        self.first, self.throttle = step, Throttle(WRITE_INTERVAL)

    def update(self, step: int, steps: int, tokens: int, learning_rate: float) -> None:
        """Take note of an update, and write where the last write is long enough ago."""
        self.tokens += tokens
        if self.file is None or not self.throttle.due(force=step == self.first + 1):
            return
        status = RunStatus(
            step,
            steps,
            self.throttle.elapsed,
            self.throttle.seconds_left(step - self.first, steps - self.first),
            self.throttle.rate(self.tokens),
            learning_rate,
            time.time(),
        )
        with contextlib.suppress(OSError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps(asdict(status)), encoding="utf8")

    def end(self) -> None:
        if self.file is not None:
            with contextlib.suppress(OSError):
                self.file.unlink()


def read_status(folder: Path) -> RunStatus | None:
    """The status of the run in a folder; None where none is running, or the file is being rewritten."""
    try:
        values = parse_json((folder / STATUS).read_bytes(), STATUS)
        numbers = [float(values[field.name]) for field in fields(RunStatus)[2:]]
        return RunStatus(int(values["step"]), int(values["steps"]), *numbers)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
