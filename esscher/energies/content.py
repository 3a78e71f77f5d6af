"""The files that a declaration points to: read, and known by a digest of their content. Without torch.

Weights fitted with one word list, reference or classifier mean nothing with another, so an energy's folder keeps the
digest, and a file that changed since is refused. Of a classifier's folder the files that decide its scores count
(settings, weights, tokenizer), not its page or its logs.
"""

import hashlib
import os
from dataclasses import replace
from pathlib import Path

from esscher.energies.declaration import Declared

DECIDING = (".json", ".safetensors", ".bin", ".txt", ".model")


def content_digest(path: str | Path) -> str:
    """One name for the content of a file, or of the deciding files of a folder."""
    found, path = hashlib.blake2b(digest_size=16), Path(path)
    files = sorted(one for one in path.iterdir() if one.is_file() and one.suffix in DECIDING) if path.is_dir() else [path]
    for file in files:
        if path.is_dir():
            found.update(repr((file.name, file.stat().st_size)).encode())
        with file.open("rb") as stream:
            while piece := stream.read(2**20):
                found.update(piece)
    return found.hexdigest()


def pinned(declared: Declared) -> Declared:
    """The declaration with the whole path of what it reads, and the digest of its content; others stay as they are."""
    if not declared.source:
        return declared
    check_content(declared)
    path = os.path.abspath(declared.source)
    digest = declared.digest or content_digest(path)
    if declared.kind == "classifier":
        return replace(declared, value=path, digest=digest)
    return replace(declared, file=path, digest=digest)


def check_content(declared: Declared) -> None:
    """Refuse a source that is missing, or that changed since its digest was taken."""
    path, what = Path(declared.source), "folder" if declared.kind == "classifier" else "file"
    if not (path.is_dir() if what == "folder" else path.is_file()):
        raise FileNotFoundError(
            f"Feature {declared.title!r} reads the {what} {path}, which is not there. Nothing was computed; bring it back, or "
            f"change the path where the feature is declared."
        )
    found = content_digest(path) if declared.digest else ""
    if found != declared.digest:
        raise ValueError(
            f"Feature {declared.title!r} was declared with another {path}: its content had digest {declared.digest[:12]} and "
            f"now has {found[:12]}, so weights fitted before mean nothing now. Nothing was computed; restore the {what}, or "
            f"fit anew."
        )


def content(declared: Declared) -> str:
    """The value of a word list or a reference, from its file if it has one."""
    if not declared.file:
        return declared.value
    check_content(declared)
    try:
        return Path(declared.file).read_text(encoding="utf8")
    except UnicodeDecodeError as error:
        raise ValueError(f"The file {declared.file} of feature {declared.title!r} is no text in UTF-8: {error}.") from error
