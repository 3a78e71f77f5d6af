"""Folders and files of an attacker, given to the command line in a process of its own.

Standard input says yes to every question. A case is a change to a good folder, or a file, and the command that meets it. Code
that runs leaves the file `ran`; what is outside of the attacker's folder holds `SECRET`, and an audit hook records whether
Python opens it. A command that succeeds where it must refuse counts as the fault that it was to prevent.
"""

import atexit
import gzip
import io
import json
import os
import pickle
import re
import resource
import shutil
import struct
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

from faults.suite import Case, Family, Outcome

SECRET = "TOP-SECRET-7f3a"
RUN, READ, WORK, TRACE, SENT = "code run", "files read outside", "unbounded work", "tracebacks", "escapes sent"
SECONDS, PATIENCE, GROWTH = 60, 300, 2 * 2**30  # of the processor, of wall time; bytes beside those of the process before
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
ESCAPES = {
    "ansi": "\x1b[2J\x1b[31mred", "title": "\x1b]0;owned\x07", "clipboard": "\x1b]52;c;aGk=\x07", "c1": "\x9b31mred",
    "bidi": "abc\u202edcba\u202c", "carriage": "good\rbad", "backspace": "bad\x08\x08\x08",
}  # fmt: skip


@cache
def store() -> Path:
    """Good folders, built once a process."""
    import datasets.packaged_modules  # so that forked processes need not load it
    import torch
    from causal_models import tiny_model
    from energies.classifiers import write_classifier
    from energies.encoders import awake

    from esscher.bases.network import build_base
    from esscher.core.estimate import Estimate
    from esscher.core.randomness import SeededRng
    from esscher.core.space import Space
    from esscher.data.tokenizers import train_tokenizer
    from esscher.energies.config import EnergyConfig
    from esscher.energies.feature_spec import parse_features
    from esscher.energies.network import build_energy
    from esscher.energies.serialization import Origin, SavedLogLinear, base_digest, save_energy, save_network_energy
    from esscher.hub import load_base, save_base
    from esscher.networks.recurrent_config import LstmConfig

    root = Path(tempfile.mkdtemp(prefix="esscher-hostile-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    assert datasets.packaged_modules and import_module("esscher.workflow.train")
    tokenizer = train_tokenizer("character", ["good cat the bad dog"])
    tiny_model("gpt2", vocab_size=tokenizer.vocab_size).save_pretrained(root / "gpt2")
    tokenizer.save(root / "gpt2")
    with torch.random.fork_rng():
        base = build_base(LstmConfig(8, layers=1), Space(tokenizer.vocab_size, 40, eos=tokenizer.eos), rng=SeededRng(0))
    save_base(root / "lstm", base, tokenizer)
    base, tokenizer = load_base(root / "lstm")
    log_z, digest = Estimate(-0.1, -0.2, 0.0, 0.95, 1000, "importance", "nats"), base_digest(base)
    write_classifier(root / "bert", head=False)
    write_classifier(root / "classifier")
    settings = EnergyConfig(kind="encoder", encoder=str(root / "bert"))
    energy = awake(build_energy(settings, base, decode=tokenizer.decode, rng=SeededRng(3)))
    save_network_energy(root / "energy", energy, Origin("lstm", digest, log_z, 3))
    features = parse_features(["contains:ab"])
    save_energy(root / "log_linear", SavedLogLinear(features, (log_z,), "lstm", digest, log_z, 3))
    return root


@dataclass(frozen=True)
class Attack:
    """Files and a command line; `fault` is what an exit code of 0 would mean, None if the command may succeed."""

    name: str
    prepare: Callable[[Path], list[str]]  # gets the folder of the attacker, returns the command line
    fault: str | None

    def run(self, place: Path) -> Outcome:
        hostile, outside, work = (place / name for name in ("hostile", "outside", "work"))
        for folder in (hostile, outside, work):
            folder.mkdir()
        (outside / "secret.txt").write_text(f"{SECRET}\n" * 40)
        (work / "secrets.env").write_text(f"PASSWORD={SECRET}\n" * 40)
        (work / "texts").mkdir()
        (work / "texts" / "secret.txt").write_text(SECRET)
        for name in ("secret.txt", "secret.json", "secret.csv", "secret.jsonl"):
            (work / name).write_text(json.dumps({"text": SECRET}) + "\n")
        arguments = self.prepare(hostile)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        status, seconds, peak = _in_child(arguments, work, place)
        said = (place / "said").read_bytes().decode(errors="surrogateescape")
        opened = (place / "opened").read_text() if (place / "opened").exists() else ""
        code = os.waitstatus_to_exitcode(status)
        ran = any(folder.joinpath("ran").exists() for folder in (hostile, outside, work, place))
        faults = {
            RUN: int(ran),
            READ: int(SECRET in said or bool(opened)),
            WORK: int(seconds > PATIENCE or peak - before > GROWTH or code < 0),
            TRACE: int("Traceback (most" in said or (code not in (0, 1, 2) and code >= 0)),
            SENT: int(CONTROLS.search(said) is not None),
        }
        if self.fault is not None and code == 0:
            faults[self.fault] = 1
        growth = max(0, peak - before) / 2**20
        detail = f"esscher {' '.join(arguments)}\nexit {code}, {seconds:.1f} s, {growth:.0f} MiB more\n{opened}{said[-2000:]!r}"
        return Outcome(faults, detail)


def _in_child(arguments: list[str], work: Path, place: Path) -> tuple[int, float, int]:
    """The status, the time and the peak of memory of the command in a forked process."""
    store()
    sys.path[:] = [path for path in sys.path if path]
    start, child = time.monotonic(), os.fork()
    if child == 0:
        try:
            _attacked(arguments, work, place)
        finally:
            os._exit(99)
    while time.monotonic() - start < PATIENCE:
        found, status, usage = os.wait4(child, os.WNOHANG)
        if found:
            return status, time.monotonic() - start, usage.ru_maxrss * 1024
        time.sleep(0.02)
    os.kill(child, 9)
    _, status, usage = os.wait4(child, 0)
    return status, time.monotonic() - start, usage.ru_maxrss * 1024


def _attacked(arguments: list[str], work: Path, place: Path) -> None:
    """In the child: say yes to everything, write what is said to a file, note what is opened, and call the command line."""
    import traceback

    out = os.open(place / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    sys.stdout, sys.stderr = (io.TextIOWrapper(os.fdopen(n, "wb", closefd=False), encoding="utf8") for n in (1, 2))
    sys.stdin = io.StringIO("y\n" * 100)
    os.chdir(work)
    limit = 4 * GROWTH + int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    spent = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(spent.ru_utime + spent.ru_stime) + SECONDS
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    opened = os.open(place / "opened", os.O_WRONLY | os.O_CREAT)
    secret = tuple(str(folder) for folder in (place / "outside", work / "secret", work / "texts"))

    def note(event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(values[0], str) and os.path.realpath(values[0]).startswith(secret):
            os.write(opened, f"opened {values[0]}\n".encode())

    sys.addaudithook(note)
    from esscher.cli import main

    code = 0
    try:
        main(arguments)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
        code = 98
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


# Changes to good folders


def good(name: str, hostile: Path) -> Path:
    """A copy of a good folder."""
    return Path(shutil.copytree(store() / name, hostile / name))


def change(file: Path, **values: Any) -> None:
    settings = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**settings, **values}))


def evil(folder: Path) -> None:
    """Code that leaves a file `ran`, in whatever way it is imported."""
    code = f"open({str(folder.parent / 'ran')!r}, 'w')\nclass M: pass\nclass C: pass\nclass T: pass\n"
    for name in ("evil.py", "modeling_evil.py", "__init__.py"):
        (folder / name).write_text(code)


class Payload:
    """A pickle that runs code."""

    def __init__(self, folder: Path):
        self.command = f"touch {folder.parent / 'ran'}"

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def nested(depth: int, brackets: str = "[]") -> str:
    return brackets[0] * depth + brackets[1] * depth


def outside(hostile: Path) -> Path:
    return hostile.parent / "outside"


def changed(model: str, file: str, settings: Any, hostile: Path, *, sub: str = "") -> list[str]:
    """The command that samples from a good folder with other settings in a file; a function gets the attacker's folder."""
    folder = good(model, hostile)
    evil(folder / sub)
    values = settings(hostile) if callable(settings) else settings
    target = folder / sub / file
    if isinstance(values, dict):
        change(target, **values)
    else:
        target.write_text(values)
    if (model == "gpt2" and file == "tokenizer_config.json") or (sub and file == "tokenizer_config.json"):
        (folder / sub / "tokenizer.json").unlink(missing_ok=True)  # else `transformers` would not read the settings
    return with_model(folder)


def with_model(folder: Path) -> list[str]:
    """The command that loads a model, or an energy of the good one."""
    energy = (folder / "config.json").is_file() and "-energy" in (folder / "config.json").read_text(errors="replace")
    if energy or folder.name in ("energy", "log_linear"):
        return ["sample", str(store() / "lstm"), "--energy", str(folder), "--draws", "2", "--quiet"]
    return ["sample", str(folder), "--draws", "2", "--quiet"]


AUTO = {
    "auto_map": {
        "AutoConfig": "evil.C",
        "AutoModel": "evil.M",
        "AutoModelForCausalLM": "evil.M",
        "AutoTokenizer": ["evil.T", None],
    }
}


def folder_settings() -> Iterator[tuple[str, str, str, str, Any, str | None]]:
    """Name, folder, folder inside, file, settings, and the fault that they aim at."""
    for folder, sub in (("gpt2", ""), ("energy", "encoder")):
        yield "auto_map, unknown type", folder, sub, "config.json", {"model_type": "strange", **AUTO}, RUN
        yield "auto_map, known type", folder, sub, "config.json", AUTO, RUN
        yield "auto_map inside", folder, sub, "config.json", {"text_config": {"model_type": "strange", **AUTO}}, RUN
        yield "auto_map of the tokenizer", folder, sub, "tokenizer_config.json", {"tokenizer_class": "Strange", **AUTO}, RUN
        yield "a kernel", folder, sub, "config.json", {"_attn_implementation": "evil/kernel"}, RUN
        yield "a backbone", folder, sub, "config.json", {"use_pretrained_backbone": True, "backbone": "evil"}, READ
        yield "vocabulary outside", folder, sub, "tokenizer_config.json", vocabulary_outside, READ
        aims = {"tokenizer_class": "BertTokenizer", "init_inputs": ["secret.txt"]}
        yield "inputs outside", folder, sub, "tokenizer_config.json", aims, READ
        yield "nested config", folder, sub, "config.json", nested(200_000), WORK
        yield "nested object", folder, sub, "config.json", '{"a":' * 100_000 + "1" + "}" * 100_000, WORK
        yield "a number of a million digits", folder, sub, "config.json", '{"model_type": ' + "9" * 10**6 + "}", WORK
        yield "no object", folder, sub, "config.json", "[1]", WORK
        yield "no type", folder, sub, "config.json", {"model_type": None}, WORK
    sizes = {
        "gpt2": ("n_layer", "n_embd", "vocab_size", "n_positions"),
        "energy": ("num_hidden_layers", "hidden_size", "vocab_size"),
    }
    for folder, names in sizes.items():
        for key in names:
            for size in (10**7, 10**13):
                yield f"{key} {size:.0e}", folder, "encoder" * (folder == "energy"), "config.json", {key: size}, WORK
    for key, size in (("layers", 10**7), ("width", 10**9), ("width", 10**18), ("layers", 10**30)):
        base = {"kind": "lstm", "width": 8, "layers": 1, key: size}
        yield f"{key} {size:.0e}", "lstm", "", "config.json", {"base": base}, WORK
    long = {"vocab_size": 12, "max_length": 10**12, "eos": 0}
    yield "endless texts", "lstm", "", "config.json", {"space": long}, None
    base = {"kind": "trellisnet", "layers": 10**7}
    yield "tied layers", "lstm", "", "config.json", {"model_type": "esscher-trellisnet", "base": base}, WORK
    yield "vocabulary", "lstm", "", "config.json", {"space": {"vocab_size": 10**12, "max_length": 8, "eos": 0}}, WORK
    yield "kind os:system", "lstm", "", "config.json", {"model_type": "esscher-os:system", "base": {"kind": "os:system"}}, RUN
    yield "python tag", "lstm", "", "run.yaml", "!!python/object/apply:os.system ['touch ../hostile/ran']", RUN
    yield "aliases", "lstm", "", "run.yaml", aliases(), WORK
    yield "nested run", "lstm", "", "run.yaml", nested(3000), WORK
    yield "nested energy", "log_linear", "", "config.json", nested(200_000), WORK
    yield "feature outside", "log_linear", "", "config.json", feature_outside, READ
    yield "feature with code", "log_linear", "", "config.json", feature_with_code, RUN
    yield "nested codec", "lstm", "", "codec.json", nested(200_000), WORK
    yield "nested tokenizer", "lstm", "", "tokenizer.json", nested(200_000), WORK
    yield "nested sidecar", "gpt2", "", "esscher.json", nested(200_000), WORK
    yield "generation code", "gpt2", "", "generation_config.json", {"custom_generate": "evil"}, RUN
    yield "adapter", "gpt2", "", "adapter_config.json", adapter, READ


def aliases() -> str:
    """Nine aliases of nine aliases of …, nine deep."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
    return "\n".join(lines)


def adapter(hostile: Path) -> dict[str, Any]:
    base = outside(hostile) / "base"
    shutil.copytree(store() / "gpt2", base)
    return {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 1, "target_modules": ["c_attn"]}


def vocabulary_outside(hostile: Path) -> dict[str, Any]:
    return {"tokenizer_class": "BertTokenizer", "vocab_file": str(outside(hostile) / "secret.txt")}


def feature_outside(hostile: Path) -> dict[str, Any]:
    return {"features": [{"kind": "word-list", "file": str(outside(hostile) / "secret.txt")}]}


def feature_with_code(hostile: Path) -> dict[str, Any]:
    from esscher.energies.text_scorers import content_digest

    folder = good("classifier", hostile)
    evil(folder)
    change(folder / "config.json", **AUTO)
    feature = {"kind": "classifier", "value": str(folder), "label": "good", "digest": content_digest(folder)}
    return {"features": [feature]}


def weights(kind: str, hostile: Path) -> list[str]:
    """A model whose weights are something else, or elsewhere."""
    folder, away = good("gpt2", hostile), outside(hostile)
    file = folder / "model.safetensors"
    index = {"metadata": {}, "weight_map": {"transformer.wte.weight": "model.safetensors"}}
    if kind.startswith("pickled"):
        name = kind.split()[1]
        (folder / name).write_bytes(pickle.dumps(Payload(folder)))
        if name != "model.safetensors":
            file.unlink()
    elif kind.startswith("link"):
        name = kind.split()[1]
        shutil.move(folder / name, away / name)
        (folder / name).symlink_to(away / name)
    elif kind == "header of an exabyte":
        file.write_bytes(struct.pack("<Q", 10**18) + b"{}")
    elif kind == "nested header":
        header = nested(100_000).encode()
        file.write_bytes(struct.pack("<Q", len(header)) + header)
    elif kind == "tensor of a terabyte":
        header = json.dumps({"a": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
        file.write_bytes(struct.pack("<Q", len(header)) + header)
    else:
        names = {"index .bin": "pytorch_model.bin", "index ..": "../../outside/model.safetensors",
                 "index /": str(away / "model.safetensors"), "index link": "shard.safetensors"}  # fmt: skip
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(folder)))
        shutil.copy(file, away / "model.safetensors")
        if kind == "index link":
            (folder / "shard.safetensors").symlink_to(away / "model.safetensors")
        if kind != "index .bin":
            file.unlink()
            (folder / "other.safetensors").write_bytes((away / "model.safetensors").read_bytes())
        else:
            file.rename(folder / "other.safetensors")
        index["weight_map"] = dict.fromkeys(index["weight_map"], names[kind])
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return with_model(folder)


WEIGHTS = {
    "pickled pytorch_model.bin": RUN, "pickled model.pt": RUN, "pickled model.safetensors": RUN, "link model.safetensors": READ,
    "link config.json": READ, "link tokenizer.json": READ, "header of an exabyte": WORK, "nested header": WORK,
    "tensor of a terabyte": WORK, "index .bin": RUN, "index ..": READ, "index /": READ, "index link": READ,
}  # fmt: skip


# Data


def data(make: Callable[[Path], str], hostile: Path) -> list[str]:
    source = make(hostile)
    images = Path(source).suffix in (".npz", ".png") or "idx" in source
    kind = ["--base.kind", "pixelcnn", "--base.width", "8", "--base.layers", "1"] if images else ["--base.kind", "lstm"]
    return ["train", "--data", source, "--out", str(hostile / "out"), *kind, "--training.steps", "1", "--quiet"]


def gz_bomb(name: str, begin: bytes, hostile: Path) -> str:
    """4 GB in 4 MB: one piece of zeros, over and over."""
    file = hostile / name
    file.write_bytes(gzip.compress(begin) + gzip.compress(b"a" * 2**24) * 256)
    return str(file)


def npz(kind: str, hostile: Path) -> str:
    import numpy as np

    file = hostile / "images.npz"
    if kind == "objects":
        np.savez(file, images=np.array([Payload(hostile)], dtype=object))
        return str(file)
    header = io.BytesIO()
    shape = (2 * 10**4, 100, 100) if kind == "bomb" else (10**6, 1000, 1000)
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", header.getvalue() + bytes(2 * 10**8 if kind == "bomb" else 100))
    return str(file)


def png(side: int, hostile: Path) -> str:
    from PIL import Image

    Image.new("1", (side, side)).save(hostile / "sheet.png")
    return str(hostile / "sheet.png")


def idx(content: bytes, hostile: Path) -> str:
    (hostile / "train-images-idx3-ubyte").write_bytes(content)
    return str(hostile / "train-images-idx3-ubyte")


def parquet(hostile: Path) -> str:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    column = pa.DictionaryArray.from_arrays(np.zeros(2_000_000, np.int8), ["x" * 10_000])
    pq.write_table(pa.table({"text": column}), hostile / "data.parquet")
    return str(hostile / "data.parquet")


def text_file(name: str, content: bytes, hostile: Path) -> str:
    (hostile / name).write_bytes(content)
    return str(hostile / name)


def linked_folder(hostile: Path) -> str:
    (hostile / "texts").mkdir()
    (hostile / "texts" / "a.txt").symlink_to(outside(hostile) / "secret.txt")
    return str(hostile / "texts")


def zipped(hostile: Path) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"a" * 10**8)
    return content.getvalue()


def named(source: str, _: Path) -> str:
    return source


READERS = (
    "text", "json", "csv", "parquet", "arrow", "imagefolder", "webdataset", "pandas", "xml", "text:default", "json:x:train",
    "texts:default", "../work:default",
)  # fmt: skip
DATA: dict[str, tuple[Callable[[Path], str], str]] = {
    **{f"reader {name}": (partial(named, name), READ) for name in READERS},
    "bomb .txt.gz": (partial(gz_bomb, "data.txt.gz", b"a\n"), WORK),
    "bomb .jsonl.gz": (partial(gz_bomb, "data.jsonl.gz", b'{"text": "a"}\n'), WORK),
    "bomb .gz of idx": (partial(gz_bomb, "train-images-idx3-ubyte.gz", b"\0\0\x08\x03" + bytes(12)), WORK),
    "bomb named .md": (partial(gz_bomb, "data.md", b"a\n"), WORK),
    "zip named .text": (lambda hostile: text_file("data.text", zipped(hostile), hostile), WORK),
    "bomb .npz": (partial(npz, "bomb"), WORK),
    "npz that states more": (partial(npz, "lies"), WORK),
    "npz of objects": (partial(npz, "objects"), RUN),
    "png of 25000": (partial(png, 25_000), WORK),
    "png of 10000": (partial(png, 10_000), WORK),
    "idx of 255 dimensions": (partial(idx, b"\0\0\x08\xff" + bytes(20)), WORK),
    "idx of a terabyte": (partial(idx, b"\0\0\x08\x03" + struct.pack(">3I", 10**9, 10**9, 10**9)), WORK),
    "parquet of 20 GB": (parquet, WORK),
    "nested jsonl": (partial(text_file, "data.jsonl", ('{"text": ' + nested(100_000) + "}\n").encode()), WORK),
    "broken gzip": (partial(text_file, "data.txt.gz", gzip.compress(b"abc\n" * 1000)[:-20]), WORK),
    "a folder of links": (linked_folder, READ),
}  # fmt: skip


# Settings, lists and the terminal


def settings_file(content: str, hostile: Path) -> list[str]:
    (hostile / "settings.yaml").write_text(content)
    return ["train", "--out", str(hostile / "out"), "--config", str(hostile / "settings.yaml"), "--quiet"]


def features_file(content: str, hostile: Path) -> list[str]:
    (hostile / "features.yaml").write_text(content)
    return ["tilt", str(store() / "lstm"), "--features", str(hostile / "features.yaml"), "--out", str(hostile / "out")]


def lists(content: bytes, name: str, hostile: Path) -> list[str]:
    (hostile / name).write_bytes(content)
    return ["rescore", str(hostile / name), "--quiet"]


def list_bomb(hostile: Path) -> list[str]:
    gz_bomb("lists.jsonl.gz", b"", hostile)
    return ["rescore", str(hostile / "lists.jsonl.gz"), "--quiet"]


def spoken(text: str, hostile: Path) -> list[str]:
    """A model whose tokens are escapes."""
    folder = good("lstm", hostile)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    kept = [token for token in vocabulary if token.startswith("<") or token == "\ufffd"]
    tokenizer["model"]["vocab"] = {
        token if token in kept else f"{text}{number}": number for token, number in vocabulary.items()
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return ["sample", str(folder), "--draws", "4", "--quiet"]


def score(text: str, _: Path) -> list[str]:
    return ["score", str(store() / "lstm"), text]


def nowhere(text: str, _: Path) -> list[str]:
    return ["sample", f"nowhere{text}"]


def others() -> Iterator[tuple[str, Callable[[Path], list[str]], str | None]]:
    """Name, command, and the fault of a command that succeeds."""
    tag = "base: !!python/object/apply:os.system ['touch ../hostile/ran']"
    deep = "base: {kind: transformer, layers: 10000000}\ndata: {source: 'motif:101'}"
    yield "settings with a python tag", partial(settings_file, tag), RUN
    yield "settings with aliases", partial(settings_file, aliases()), WORK
    yield "settings that contain themselves", partial(settings_file, "data: &a [*a]"), WORK
    yield "nested settings", partial(settings_file, "data: " + nested(3000)), WORK
    yield "settings of 10^7 layers", partial(settings_file, deep), WORK
    yield "features with aliases", partial(features_file, aliases()), WORK
    yield "bomb of lists", list_bomb, WORK
    yield "nested list", partial(lists, nested(100_000).encode(), "lists.jsonl"), WORK
    for name, text in ESCAPES.items():
        listed = json.dumps({"id": text, "candidates": [{"text": text, "score": 1}], text: 1})
        yield f"{name} in a key", partial(settings_file, json.dumps({f"data{text}": 1})), WORK
        yield f"{name} in a text", partial(score, text), None
        yield f"{name} in a path", partial(nowhere, text), WORK
        yield f"{name} in a list", partial(lists, listed.encode(), "lists.jsonl"), WORK
        yield f"{name} in a vocabulary", partial(spoken, text), None


def attacks() -> Iterator[Attack]:
    for name, folder, sub, file, settings, fault in folder_settings():
        yield Attack(f"{folder}: {name}", partial(changed, folder, file, settings, sub=sub), fault)
    for kind, aim in WEIGHTS.items():
        yield Attack(f"weights: {kind}", partial(weights, kind), aim)
    for name, (make, aim) in DATA.items():
        yield Attack(f"data: {name}", partial(data, make), aim)
    for name, make_arguments, possible in others():
        yield Attack(name, make_arguments, possible)


def cases() -> Iterator[Case]:
    for attack in attacks():
        yield Case(attack.name, attack.run)


FAMILY = Family("hostile", "hostile folders and files", (RUN, READ, WORK, TRACE, SENT), 60, cases, sample=14)
