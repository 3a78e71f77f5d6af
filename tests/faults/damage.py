"""Damaged files: every file of every kind of finished folder is flipped, cut, emptied, deleted, swapped or edited, then used.

A use that ends well must give what it gives on the undamaged folder, to the last digit (else a silent change); a use that fails
must end with a message (else a traceback) that names the file (else a nameless message). Half of the edits are made elsewhere:
the manifest is gone, too, as in a folder of others. What such an edit states cannot be known to be wrong, so that only
tracebacks and messages that name no file of the folder count.
"""

import atexit
import contextlib
import hashlib
import io
import json
import random
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from faults.suite import Case, Family, Outcome

SILENT, TRACEBACK, NAMELESS = "silent changes", "tracebacks", "nameless messages"
MANIFEST = "esscher-manifest.json"
FINISHED = ("README.md", "answer.json", "report.html", MANIFEST)
BASE = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
PARTS = ("weights.safetensors", "optimizer.safetensors", "state.json", "manifest.json")
CHECKPOINT = ("checkpoints/current.json", *(f"checkpoints/step-00000002/{name}" for name in PARTS))
FILES = {  # the files of each kind of folder
    "base": (*BASE, "run.yaml", "history.jsonl", "results.json", *FINISHED),
    "features": ("config.json", *FINISHED),
    "network": ("config.json", "model.safetensors", "tilt.yaml", "history.jsonl", *FINISHED),
    "student": (*BASE, "distil.yaml", "results.json", *FINISHED),
    "gpt2": (*BASE, "esscher.json", "README.md", MANIFEST),
    "tokenizer": ("tokenizer.json", "tokenizer_config.json", MANIFEST),
    "run": ("run.yaml", "history.jsonl", *CHECKPOINT),
    "contrast": ("tilt.yaml", "history.jsonl", "made_with.json", "*.safetensors", *CHECKPOINT),
    "measured": ("answer.json", "report.html", "made_with.json", "*.safetensors", MANIFEST),
}  # fmt: skip
TINY = ("--device", "cpu", "--quiet", "--json")
TRAIN = (
    "train", "--data", "motif:101", "--data.length", "6", "--data.size", "60", "--base.kind", "lstm", "--base.width", "8",
    "--training.steps", "4", "--training.save-every", "2", "--training.evaluate-every", "2",
)  # fmt: skip
CONTRAST = (
    "tilt", "base", "--energy.kind", "unidirectional", "--training.steps", "4", "--training.save-every", "2",
    "--training.evaluate-every", "2", "--contrast.draws", "64", "--contrast.stored", "2",
)  # fmt: skip
FIT = ("tilt", "base", "--want", "contains:11=0.6", "--fit.draws", "64")
DISTIL = ("--distil.draws", "64", "--distil.candidates", "64", "--distil.evaluation-draws", "64", "--training.steps", "2")
MEASURE = ("measure", "base", "texts.txt", "--energy", "features", "--draws", "16", "--out", "measured")
USES = {  # how each kind of folder is used; the words after `esscher`
    "base": {
        "sample": ("sample", "base", "--draws", "3"), "measure": ("measure", "base", "texts.txt"),
        "tilt": (*FIT, "--out", "new"),
        "report": ("report", "base", "features"),
    },
    "features": {
        "sample": ("sample", "base", "--energy", "features", "--draws", "3"),
        "measure": ("measure", "base", "texts.txt", "--energy", "features", "--draws", "16"),
        "distil": ("distil", "base", "--energy", "features", "--out", "new", *DISTIL), "report": ("report", "base", "features"),
    },
    "network": {
        "sample": ("sample", "base", "--energy", "network", "--draws", "3"),
        "measure": ("measure", "base", "texts.txt", "--energy", "network", "--draws", "16"),
    },
    "student": {"sample": ("sample", "student", "--draws", "3"), "measure": ("measure", "student", "texts.txt")},
    "gpt2": {"sample": ("sample", "gpt2", "--draws", "3"), "measure": ("measure", "gpt2", "texts.txt")},
    "tokenizer": {"train": (*TRAIN, "--tokenizer.kind", "tokenizer", "--out", "new")},
    "run": {"resume": (*TRAIN, "--out", "run", "--resume")},
    "contrast": {"resume": (*CONTRAST, "--out", "contrast", "--resume")},
    "measured": {"resume": MEASURE, "report": ("report", "measured", "base")},
}  # fmt: skip
WRITTEN = ("new", "run", "contrast")  # folders of uses whose weights and settings must come out the same
UNFINISHED = ("run", "contrast")
PLAIN_DAMAGES = ("flip", "flip again", "truncate", "empty", "delete", "swap")
EDITS = ("number", "type", "null", "drop", "root", "not text")


def call(*arguments: str) -> tuple[int | None, str, str]:
    """Exit code and output of a call within this process; None for a traceback."""
    from esscher.cli import main

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*arguments, *(TINY if arguments[0] not in ("verify", "report") else ("--json",))])
            code: int | None = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            err.write(traceback.format_exc())
            code = None
    return code, out.getvalue(), err.getvalue()


MADE_FROM = {"features": ("base",), "network": ("base",), "student": ("base", "features"), "run": ("base",),
    "contrast": ("network",), "measured": ("base", "features")}  # fmt: skip
MADE_BY = {
    "base": (*TRAIN, "--out", "base"), "features": (*FIT, "--out", "features"), "network": (*CONTRAST, "--out", "network"),
    "student": ("distil", "base", "--energy", "features", "--out", "student", *DISTIL), "measured": MEASURE,
}  # fmt: skip


@cache
def workplace() -> Path:
    """A folder that one folder of each kind is made in, once for each process."""
    place = Path(tempfile.mkdtemp(prefix="esscher-damage-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    (place / "texts.txt").write_text("101001\n110100\n001011\n101101\n")
    return place


@cache
def prepared(kind: str) -> Path:
    """The undamaged folder of a kind."""
    for other in MADE_FROM.get(kind, ()):
        prepared(other)
    with contextlib.chdir(workplace()):
        if kind in MADE_BY:
            code, _, err = call(*MADE_BY[kind])
            assert code == 0, err
        elif kind in UNFINISHED:
            shutil.copytree(MADE_FROM[kind][0], kind)
            unfinish(Path(kind))
        elif kind == "tokenizer":
            _tokenizer().save(kind)
        else:
            _save_gpt2(kind)
    return workplace() / kind


def _tokenizer() -> Any:
    from esscher.data.tokenizers import character_tokenizer

    return character_tokenizer("01", unknown=False)


def _save_gpt2(folder: str) -> None:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    from esscher.bases.causal_lm import causal_lm
    from esscher.hub import save_base

    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = GPT2Config(vocab_size=3, n_positions=16, n_embd=8, n_layer=1, n_head=2, eos_token_id=0, bos_token_id=0)
        model = GPT2LMHeadModel(config)
    save_base(folder, causal_lm(model.eval(), max_length=8), _tokenizer())


def copy_prepared(kind: str, use: str, folder: Path) -> None:
    """Copy what a use of a kind of folder needs; finished folders without their checkpoints."""
    words = {kind, *(USES[kind][use] if use != "verify" else ())}
    for name in sorted(words & set(FILES)):
        ignored = () if name in UNFINISHED else ("checkpoints",)
        shutil.copytree(prepared(name), folder / name, ignore=shutil.ignore_patterns(*ignored))
    shutil.copy(workplace() / "texts.txt", folder)


def unfinish(folder: Path) -> None:
    """Make of a finished run one that was killed after two steps of four."""
    settings = ("run.yaml", "tilt.yaml", "history.jsonl", "made_with.json")
    for file in folder.iterdir():
        if file.is_file() and file.name not in settings:
            file.unlink()
    shutil.rmtree(folder / "checkpoints" / "step-00000004")
    shutil.rmtree(folder / "judge", ignore_errors=True)
    (folder / "checkpoints" / "current.json").write_text(json.dumps({"last": "step-00000002", "best": "step-00000002"}))


def used(folder: Path, kind: str, use: str) -> tuple[int | None, Any, str]:
    """Exit code, what came out, and the messages of a use of the folders in `folder`."""
    with contextlib.chdir(folder):
        code, out, err = call(*USES[kind][use])
        lines = out.splitlines()
        try:
            answer = json.loads(lines[-1]) if lines else None
        except ValueError:
            answer = lines[-1]
        written = {
            str(file): hashlib.sha256(file.read_bytes()).hexdigest()
            for place in WRITTEN
            for file in sorted(Path(place).rglob("*"))
            if file.name in ("config.json", "model.safetensors", "history.jsonl", "results.json", "tokenizer.json", "run.yaml")
            and "checkpoints" not in file.parts
        }
    return code, (answer, written), err


@cache
def expected(kind: str, use: str) -> Any:
    """What comes out of a use of the undamaged folders."""
    with tempfile.TemporaryDirectory() as place:
        copy_prepared(kind, use, Path(place))
        code, came, err = used(Path(place), kind, use)
    assert code == 0, err
    return came


def damage(file: Path, how: str, rng: random.Random) -> set[str]:
    """Damage a file; the names of the files whose content changed."""
    content = file.read_bytes()
    if how.startswith("flip"):
        flipped = bytearray(content)
        flipped[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(flipped)
    elif how == "truncate":
        file.write_bytes(content[: rng.randrange(len(content))])
    elif how == "empty":
        file.write_bytes(b"")
    elif how == "delete":
        file.unlink()
    elif how == "swap":
        beside = [other for other in sorted(file.parent.iterdir()) if other.is_file() and other != file]
        others = [other for other in beside or sorted(file.parent.parent.rglob("*")) if other.is_file() and other != file]
        alike = [other for other in others if other.suffix == file.suffix] or others
        other = rng.choice(alike)
        file.write_bytes(other.read_bytes())
        other.write_bytes(content)
        return {file.name, other.name}
    elif how == "not text":
        file.write_bytes(content[: len(content) // 2] + b"\xff\xfe" + content[len(content) // 2 :])
    else:
        edit(file, how, rng)
    return set() if file.is_file() and file.read_bytes() == content else {file.name}


def edit(file: Path, how: str, rng: random.Random) -> None:
    """Change one value of a JSON or YAML file, of the last line if it has one for each line."""
    text = file.read_text()
    before, text = ("", text) if file.suffix != ".jsonl" else (text[: text.rstrip().rfind("\n") + 1], text.splitlines()[-1])
    values = yaml.safe_load(text) if file.suffix == ".yaml" else json.loads(text)
    if how == "root":
        values = rng.choice([[values], 3, "word", None])
    else:
        leaves = list(_leaves(values))
        numbers = [
            leaf for leaf in leaves if isinstance(leaf[0][leaf[1]], int | float) and not isinstance(leaf[0][leaf[1]], bool)
        ]
        holder, key = rng.choice(numbers if how == "number" and numbers else leaves)
        if how == "drop":
            del holder[key]
        else:
            value = holder[key]
            numeric = isinstance(value, int | float) and not isinstance(value, bool)
            wrong: Any = {
                "null": None,
                "type": rng.choice(["word", [1], {"a": 1}, True] if numeric else [3, [1], {"a": 1}, 0.5]),
            }
            changed = value + rng.choice([1, -1, 2]) if numeric else f"{value}x"
            holder[key] = changed if how == "number" else wrong[how]
    file.write_text(before + (yaml.safe_dump(values) if file.suffix == ".yaml" else json.dumps(values)) + "\n")


def _leaves(values: Any) -> Iterator[tuple[Any, Any]]:
    for key, value in values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ():
        if isinstance(value, dict | list) and value:
            yield from _leaves(value)
        yield values, key


def attack(folder: Path, kind: str, name: str, how: str, use: str, elsewhere: bool) -> Outcome:
    """Damage a file of one folder, use it, and judge what happened."""
    came = None if use == "verify" else expected(kind, use)
    copy_prepared(kind, use, folder)
    rng = random.Random(f"{kind}/{name}/{how}/{use}")
    file = rng.choice(sorted((folder / kind).rglob(name))) if "*" in name else folder / kind / name
    if elsewhere:
        (folder / kind / MANIFEST).unlink()
    changed = damage(file, how, rng)
    if use == "verify":
        with contextlib.chdir(folder):
            code, out, err = call("verify", kind)
        after: Any = None
        silent = code == 0 and bool(changed) and file.name != MANIFEST
        said = out + err
    else:
        code, after, err = used(folder, kind, use)
        silent, said = code == 0 and after != came and not elsewhere, err
    detail = (
        f"{kind}/{file.relative_to(folder / kind)}: {how}{' elsewhere' * elsewhere}, {use}: exit code {code}\n{said[-1500:]}"
    )
    if code is None:
        return Outcome({TRACEBACK: 1}, detail)
    if silent:
        return Outcome({SILENT: 1}, f"{detail}\n{after}\n{came}")
    known = changed | ({other.name for other in (folder / kind).rglob("*")} if elsewhere else set())
    if code and not any(known_name in said for known_name in known):
        return Outcome({NAMELESS: 1}, detail)
    return Outcome()


def cases() -> Iterator[Case]:
    rng = random.Random(31)
    for kind, names in FILES.items():
        for name in names:
            structured = name.endswith((".json", ".yaml", ".jsonl"))
            for how in (*PLAIN_DAMAGES, *(EDITS if structured else ())):
                use = rng.choice([*USES[kind], *([] if kind in UNFINISHED else ["verify"])])
                elsewhere = how in EDITS and use != "verify" and MANIFEST in names and name != MANIFEST and rng.random() < 0.5
                title = f"{kind}/{name}: {how}, {use}{', elsewhere' * elsewhere}"
                yield Case(title, partial(attack, kind=kind, name=name, how=how, use=use, elsewhere=elsewhere))


FAMILY = Family("damage", "damaged files", (SILENT, TRACEBACK, NAMELESS), fewest=600, cases=cases)
