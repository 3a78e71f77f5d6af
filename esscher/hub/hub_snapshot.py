"""Models of the Hugging Face hub by their id, `owner/name` or `owner/name@revision`: the snapshot folder in the cache.

A snapshot that is complete in the cache is used as it is, without a look at the network. Otherwise its files are downloaded,
after a line on standard error that says what, how large and where to, also with --quiet; with HF_HUB_OFFLINE=1 that is an error
instead. Only weights in safetensors, settings and tokenizer files are fetched, never code or pickles, and the folder is then
read with the same checks as any other (`esscher.core.model_folder`).
"""

import re
from pathlib import Path
from typing import Any

from esscher.core.console import write_line
from esscher.core.manifest import LOADED, MANIFEST
from esscher.core.reading import read_json_object

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w][\w./-]*)?")
WANTED = (*LOADED, MANIFEST)
NEVER = ("*/*", "*.py", "*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.h5", "*.msgpack", "*.gguf", "*.onnx")
CONFIG, INDEX, WEIGHTS = "config.json", "model.safetensors.index.json", "model.safetensors"


def is_hub_id(name: str) -> bool:
    """Whether a name can be an id of the hub: `owner/name`, where no folder `owner` exists here."""
    return HUB_ID.fullmatch(name) is not None and ".." not in name and not Path(name).parent.is_dir()


def hub_folder(name: str) -> Path:
    """The snapshot of `owner/name` or `owner/name@revision`."""
    repo_id, _, revision = name.partition("@")
    return hub_snapshot(repo_id, revision or None)


def hub_snapshot(repo_id: str, revision: str | None = None) -> Path:
    """The folder of a model of the hub: from the cache, or downloaded.

    Args:
        repo_id: `owner/name`.
        revision: A branch, a tag or a commit; the main branch by default.
    """
    from huggingface_hub import constants

    cache, name = Path(constants.HF_HUB_CACHE), repo_id if revision is None else f"{repo_id}@{revision}"
    cached = _cached_snapshot(repo_id, revision, cache)
    if cached is not None:
        return cached
    if constants.is_offline_mode():
        raise FileNotFoundError(
            f"There is no model folder {name}, and the model of that name is not, or not completely, in the cache {cache}; "
            f"HF_HUB_OFFLINE=1 forbids to download it. Nothing was loaded; check the path, or call once with HF_HUB_OFFLINE=0."
        )
    return _download(repo_id, revision, cache, name)


def _cached_snapshot(repo_id: str, revision: str | None, cache: Path) -> Path | None:
    """The snapshot in the cache, if all that is needed to load it is there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo_id, revision=revision, cache_dir=cache, local_files_only=True))
    except (LocalEntryNotFoundError, HfHubHTTPError):
        return None
    return folder if is_complete(folder) else None


def is_complete(folder: Path) -> bool:
    """Whether a snapshot has its settings and all files of its weights; other programs may have fetched some files only."""
    if not (folder / CONFIG).is_file():
        return False
    if (folder / WEIGHTS).is_file() or not (folder / INDEX).is_file():
        return any(folder.glob("*.safetensors"))
    named = read_json_object(folder / INDEX).get("weight_map")
    return isinstance(named, dict) and all((folder / str(file)).is_file() for file in set(named.values()))


def _download(repo_id: str, revision: str | None, cache: Path, name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    wanted: dict[str, Any] = {"cache_dir": cache, "allow_patterns": list(WANTED), "ignore_patterns": list(NEVER)}
    try:
        files = snapshot_download(repo_id, revision=revision, dry_run=True, **wanted)
        if not any(file.filename.endswith(".safetensors") for file in files):
            raise FileNotFoundError(f"{name} on the hub has no weights in safetensors. Nothing was downloaded or loaded.")
        missing = [file for file in files if file.will_download]
        size = sum(file.file_size or 0 for file in missing)
        write_line(f"Downloading {name} from the hub: {len(missing)} files, {size / 1e6:,.0f} MB, into {cache}", error=True)
        return Path(snapshot_download(repo_id, revision=files[0].commit_hash, **wanted))
    except GatedRepoError as error:
        why, then = "it is gated", "accept its terms on the hub, and log in: hf auth login"
        raise _refusal(name, why, then) from error
    except RevisionNotFoundError as error:
        raise _refusal(name, f"it has no revision {revision!r}", "name a branch, a tag or a commit of it") from error
    except RepositoryNotFoundError as error:
        raise _refusal(name, "there is none of that name, or it is private", "check the path or the name") from error
    except (HfHubHTTPError, ConnectionError, OSError) as error:
        if isinstance(error, FileNotFoundError) and "safetensors" in str(error):
            raise
        raise _refusal(name, f"the hub cannot be reached: {error}", "check the path, or the network") from error


def _refusal(name: str, why: str, then: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"There is no model folder {name}, and the hub does not give a model of that name: {why}. Nothing was loaded; {then}."
    )
