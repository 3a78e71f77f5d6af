"""Runs that are killed, stopped by a signal, out of disk or cut off from power at any write, and resumed: nothing may differ.

Each case runs a verb of the command line in a forked process, does one harm to it, resumes it, and compares every file of the
result with that of an undisturbed run: weights, settings, history, results, report, and the last and best checkpoint.
"""

import atexit
import functools
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

from forks import forks

from esscher.core.folder_lock import LOCK, UNFINISHED
from faults.suite import Case, Family, Outcome

DIFFERING, WRONG_END, LEFTOVER = "differing bits", "wrong ends", "leftovers"
STEPS = ("--training.evaluate-every", "2", "--training.save-every", "3", "--training.batch-size", "8", "--training.steps")
TRAIN = ("train", "--data", "motif:101", "--data.size", "24", "--data.length", "5", "--base.kind", "lstm", "--base.width", "4")
VERBS = {
    "train": (*TRAIN, *STEPS, "5"),
    "tilt": (
        "tilt", "base", "--energy.network.kind", "lstm", "--energy.network.width", "4", "--contrast.stored", "1",
        "--contrast.draws", "20", "--contrast.held-out", "8", *STEPS, "3", "--training.warmup-steps", "0",
    ),
    "tilt by features": ("tilt", "base", "--want", "contains:11=0.5", "--fit.draws", "50"),
    "distil": (
        "distil", "base", "--energy", "energy", "--distil.method", "cyclical", "--distil.stages", "2", "--distil.draws", "24",
        "--distil.candidates", "48", "--distil.evaluation-draws", "16", *STEPS, "3",
    ),
}  # fmt: skip
OUT = "run"
LOST_CODE = 255  # of a child that ended and whose code the fork server could not pass on; the child has written it down


@functools.cache
def prepared() -> Path:
    """A folder with a base and an energy that the cases share."""
    folder = Path(tempfile.mkdtemp(prefix="esscher-kills-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, arguments in (("base", VERBS["train"]), ("energy", VERBS["tilt by features"])):
        code, said, _ = called([*arguments, "--out", name], folder)
        assert code == 0, said
    return folder


@functools.cache
def undisturbed(verb: str) -> tuple[dict[str, bytes], int, float]:
    """Every file of the result, how many events there are, and how long it takes."""
    with tempfile.TemporaryDirectory() as place:
        started = time.monotonic()
        code, said, events = called([*VERBS[verb], "--out", OUT], begin(Path(place), verb))
        assert code == 0, said
        return files(Path(place) / OUT), events, time.monotonic() - started


def begin(folder: Path, verb: str) -> Path:
    """The folder of a case, with links to what the verb reads."""
    if verb != "train":
        for name in ("base", "energy"):
            (folder / name).symlink_to(prepared() / name)
    return folder


def called(
    arguments: list[str], folder: Path, at: int = -1, harm: str = "", after: float | None = None
) -> tuple[int, str, int]:
    """Call the command line in a forked process: its exit code, what it said, and the number of events."""
    said, counted = folder / "said.txt", folder / "events.txt"
    said.touch()
    counted.unlink(missing_ok=True)
    child = forks().Process(target=_speak, args=(arguments, str(folder), str(said), str(counted), at, harm))
    child.start()
    child.join(60 if after is None else after)
    if child.exitcode is None:
        child.kill()
        child.join()
    events, ended = map(int, counted.read_text().split()) if counted.exists() else (0, LOST_CODE)
    code = ended if child.exitcode == LOST_CODE else child.exitcode
    return code, said.read_text(encoding="utf8"), events


def _speak(arguments: list[str], folder: str, said: str, counted: str, at: int, harm: str) -> None:
    os.chdir(folder)
    sys.argv = ["esscher", *arguments]
    out = os.open(said, os.O_WRONLY | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    from esscher.cli import main
    from esscher.training import run_status
    from faults.disk import FailingDisk

    run_status.WRITE_INTERVAL = math.inf  # one write: how many there are must not depend on the clock
    disk, code = FailingDisk(Path(folder, OUT), at, harm), 1
    disk.install()
    try:
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
        raise
    finally:
        handle = os.open(counted, os.O_WRONLY | os.O_CREAT)
        os.write(handle, f"{disk.events} {code}".encode())
        os.close(handle)


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a run by name; of the checkpoints the last one and the best, as such."""
    contents = {}
    for file in sorted(folder.rglob("*")):
        name = str(file.relative_to(folder))
        if file.is_file() and "/step-" not in name:
            contents[name] = file.read_bytes()
    for current in folder.rglob("current.json"):
        for role, step in json.loads(current.read_text()).items():
            for file in sorted((current.parent / str(step)).glob("*")):
                contents[f"{current.parent.relative_to(folder)}/{role}/{file.name}"] = file.read_bytes()
    return contents


def attack(folder: Path, *, verb: str, harm: str, at: int = -1, share: float | None = None) -> Outcome:
    """Do one harm to a run, resume it, and compare."""
    expected, _, seconds = undisturbed(verb)
    after = None if share is None else share * seconds
    code, said, _ = called([*VERBS[verb], "--out", OUT], begin(folder, verb), at, harm, after)
    resumed, more, _ = called([*VERBS[verb], "--out", OUT, "--resume"], folder)
    actual = files(folder / OUT) if (folder / OUT).is_dir() else {}
    differing = [name for name in expected if actual.get(name) != expected[name]]
    left = list(set(actual) - set(expected)) + [
        name for path in (folder / OUT).rglob(".*") if UNFINISHED.fullmatch(name := path.name) or name == LOCK
    ]
    wrong = [] if right_end(harm, code, said) else [f"the run ended with {code}"]
    wrong += [] if resumed == 0 and "Traceback" not in more else [f"the resumed run ended with {resumed}"]
    faults = {DIFFERING: len(differing), WRONG_END: len(wrong), LEFTOVER: len(left)}
    return Outcome(faults, f"{wrong} differing {differing}, left {left}\n--- run\n{said}\n--- resumed\n{more}")


def right_end(harm: str, code: int, said: str) -> bool:
    """Whether a run ended as it must after this harm: in time, or with one message that says what to do."""
    if code == 0:  # the harm came after its work, or only the report could not be saved
        return "Traceback" not in said
    if harm.startswith("SIG"):
        expected = 128 + (signal.SIGINT if harm == "SIGINT" else signal.SIGTERM)
        return code == expected and "--resume" in said and "Traceback" not in said
    if harm in ("full", "error"):
        return code == 1 and "esscher: " in said and "Traceback" not in said
    return code == -signal.SIGKILL


EVENTS = {"train": 149, "tilt": 112, "tilt by features": 24, "distil": 177}  # of the undisturbed runs
EACH = 4  # cases of the other harms for each verb
RANDOM_KILLS = 6  # for each verb


def count_events(folder: Path, *, verb: str) -> Outcome:
    """A write that no case attacks is a fault of this suite."""
    events = undisturbed(verb)[1]
    return Outcome({"broken cases": int(events != EVENTS[verb])}, f"EVENTS[{verb!r}] is {EVENTS[verb]}, and there are {events}")


def cases() -> Iterator[Case]:
    """Every write, fsync and rename fails once; the other harms come at random ones, and kills at any moment."""
    random = Random(31)
    for verb, events in EVENTS.items():
        yield Case(f"{verb}: events", functools.partial(count_events, verb=verb))
        for at in range(1, events + 1):
            harm = ("full", "error")[at % 2]
            yield Case(f"{verb}: {harm} at {at}", functools.partial(attack, verb=verb, harm=harm, at=at))
        for harm in ("kill", "lost content", "lost names", "SIGTERM", "SIGINT", "SIGUSR1"):
            for at in sorted(random.sample(range(1, events + 1), EACH)):
                yield Case(f"{verb}: {harm} at {at}", functools.partial(attack, verb=verb, harm=harm, at=at))
        for number in range(RANDOM_KILLS):
            attacked = functools.partial(attack, verb=verb, harm="killed", share=random.random())
            yield Case(f"{verb}: killed at any moment, {number}", attacked)


FAMILY = Family(
    "kills",
    "Kills, signals, failing writes and lost writes, then resumed",
    (DIFFERING, WRONG_END, LEFTOVER),
    300,
    cases,
    sample=8,
    forks=True,
)
