"""Models by their id on the hub, from a cache in Hugging Face's layout that the tests build; no network."""

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
from causal_models import tiny_model
from cli_calls import answer, call

import esscher
from esscher.core.bounded_files import RefusedError
from esscher.hub import load_base
from esscher.hub.hub_snapshot import NEVER, WANTED, hub_folder, hub_snapshot, is_complete, is_hub_id
from esscher.hub.packaged_models import resolve_model_folder

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, offline, in a folder of its own."""
    place = tmp_path / "hub"
    place.mkdir()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(place))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return place


def add_to_cache(cache: Path, repo_id: str, files: Path, branch: str = "main", commit: str = COMMIT) -> Path:
    """A snapshot as the hub's library lays it out: files by hash in `blobs`, links to them in `snapshots`."""
    repo = cache / f"models--{repo_id.replace('/', '--')}"
    snapshot = repo / "snapshots" / commit
    for folder in (repo / "blobs", repo / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (repo / "refs" / branch).write_text(commit)
    for file in files.iterdir():
        content = file.read_bytes()
        blob = repo / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / file.name).symlink_to(os.path.relpath(blob, snapshot))
    return snapshot


@pytest.fixture
def gpt2(tmp_path):
    """The folder of a small causal model of transformers."""
    folder = tmp_path / "files"
    tiny_model("gpt2").save_pretrained(str(folder))
    return folder


def test_a_cached_snapshot_is_loaded_by_its_id(cache, gpt2):
    snapshot = add_to_cache(cache, "owner/tiny", gpt2)
    assert resolve_model_folder("owner/tiny") == hub_snapshot("owner/tiny") == snapshot
    base, _ = load_base("owner/tiny")
    here, _ = load_base(gpt2)
    assert base.space == here.space


def test_a_revision_is_named_after_an_at_sign(cache, gpt2, tmp_path):
    other = "f" * 40
    add_to_cache(cache, "owner/tiny", gpt2)
    snapshot = add_to_cache(cache, "owner/tiny", gpt2, branch="v2", commit=other)
    assert hub_folder("owner/tiny@v2") == hub_folder(f"owner/tiny@{other}") == snapshot
    assert hub_folder("owner/tiny").name == COMMIT
    with pytest.raises(FileNotFoundError, match="owner/tiny@v3"):
        hub_folder("owner/tiny@v3")


def test_the_verbs_and_python_take_an_id(cache, capsys, tmp_path):
    tiny = ("--data", "motif:101", "--data.length", "6", "--data.size", "60", "--base.kind", "lstm", "--base.width", "8")
    answer(capsys, "train", "--out", str(tmp_path / "made"), *tiny, "--training.steps", "2", "--quiet", "--device", "cpu")
    files = tmp_path / "files"
    files.mkdir()
    for file in (tmp_path / "made").iterdir():
        if file.is_file():
            (files / file.name).write_bytes(file.read_bytes())
    snapshot = add_to_cache(cache, "owner/ours", files)
    before = sorted(snapshot.iterdir())
    assert len(answer(capsys, "sample", "owner/ours", "--draws", "2", "--quiet")["samples"]) == 2
    (tmp_path / "my.txt").write_text("101010\n001011\n" * 4)
    measured = answer(capsys, "measure", "owner/ours", "--data", str(tmp_path / "my.txt"), "--quiet")
    assert measured["model"] == "owner/ours" and "report" not in measured
    assert sorted(snapshot.iterdir()) == before  # nothing is written into the cache
    assert esscher.load("owner/ours").name == "owner/ours"


def test_offline_a_model_that_is_not_cached_is_an_error(cache, capsys):
    code, _, err = call(capsys, "sample", "owner/tiny")
    assert code == 1 and "There is no model folder owner/tiny" in err and "HF_HUB_OFFLINE=1" in err
    assert list(cache.iterdir()) == []


def test_a_part_of_a_snapshot_is_not_enough(cache, gpt2, tmp_path):
    config = tmp_path / "config only"
    config.mkdir()
    (config / "config.json").write_bytes((gpt2 / "config.json").read_bytes())
    snapshot = add_to_cache(cache, "owner/tiny", config)
    with pytest.raises(FileNotFoundError, match="not completely, in the cache"):
        hub_snapshot("owner/tiny")
    shards = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(shards))
    (snapshot / "model-1.safetensors").touch()
    assert not is_complete(snapshot)
    (snapshot / "model-2.safetensors").touch()
    assert is_complete(snapshot)


def test_a_link_out_of_the_cache_is_refused(cache, gpt2, tmp_path):
    snapshot = add_to_cache(cache, "owner/tiny", gpt2)
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    (snapshot / "tokenizer.json").symlink_to(secret)
    with pytest.raises(RefusedError, match="outside of its folder"):
        load_base("owner/tiny")


def test_code_in_the_settings_is_refused(cache, gpt2):
    settings = json.loads((gpt2 / "config.json").read_text())
    (gpt2 / "config.json").write_text(json.dumps({**settings, "auto_map": {"AutoModelForCausalLM": "code.Model"}}))
    add_to_cache(cache, "owner/tiny", gpt2)
    with pytest.raises(RefusedError, match="Python code"):
        load_base("owner/tiny")


def test_a_local_folder_comes_first_and_a_mistyped_path_is_no_id(cache, gpt2, tmp_path):
    add_to_cache(cache, "owner/tiny", gpt2)
    (tmp_path / "runs").mkdir()
    assert is_hub_id("owner/tiny") and is_hub_id("owner/tiny@v1.0") and not is_hub_id("runs/first")
    for name in ("tiny", "a/b/c", "/tmp/x", "../x", "owner/../x", "owner/tiny@../../x", "./x/y", "owner/", "~/x"):
        assert not is_hub_id(name)
    with pytest.raises(FileNotFoundError, match="There is no model folder runs/first"):
        resolve_model_folder("runs/first")
    (tmp_path / "owner").mkdir()
    assert not is_hub_id("owner/tiny")


class FakeHub:
    """What `snapshot_download` does online: it lists files, then puts them into the cache."""

    def __init__(self, cache: Path, files: Path, names=("config.json", "model.safetensors")):
        self.cache, self.files, self.names, self.calls = cache, files, names, []

    def __call__(self, repo_id, *, revision=None, cache_dir, local_files_only=False, dry_run=False, **patterns):
        from huggingface_hub.errors import LocalEntryNotFoundError

        self.calls.append((revision, local_files_only, dry_run, patterns))
        if local_files_only:
            raise LocalEntryNotFoundError("not cached")
        if dry_run:
            return [
                SimpleNamespace(filename=name, will_download=True, file_size=2_000_000, commit_hash=COMMIT)
                for name in self.names
            ]
        return str(add_to_cache(self.cache, repo_id, self.files))


def test_a_download_says_what_and_how_much_before_it_starts(cache, gpt2, capsys, monkeypatch):
    hub = FakeHub(cache, gpt2)
    monkeypatch.setattr("huggingface_hub.snapshot_download", hub)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    folder = hub_snapshot("owner/tiny", "v2")
    assert (folder / "config.json").is_file()
    assert capsys.readouterr().err == f"Downloading owner/tiny@v2 from the hub: 2 files, 4 MB, into {cache}\n"
    (_, _, listed, _), (commit, _, listed_again, patterns) = hub.calls[1:]
    assert listed and not listed_again and commit == COMMIT  # what was listed is what is fetched
    assert patterns == {"allow_patterns": list(WANTED), "ignore_patterns": list(NEVER)}


def test_only_safetensors_settings_and_tokenizers_are_fetched():
    from huggingface_hub.utils import filter_repo_objects

    wanted = ["config.json", "generation_config.json", "model.safetensors", "model-00001-of-00002.safetensors", "vocab.json",
              "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json", "merges.txt", "spiece.model",
              "special_tokens_map.json", "esscher.json", "esscher-manifest.json", "run.yaml"]  # fmt: skip
    others = ["pytorch_model.bin", "modeling_x.py", "tokenizer_x.py", "onnx/model.onnx", "onnx/config.json", "tf_model.h5",
              "training_args.bin", "flax_model.msgpack", "x.gguf", "README.md", "optimizer.pt"]  # fmt: skip
    fetched = filter_repo_objects([*wanted, *others], allow_patterns=list(WANTED), ignore_patterns=list(NEVER))
    assert list(fetched) == wanted


def test_a_repository_without_safetensors_is_refused(cache, gpt2, monkeypatch, capsys):
    monkeypatch.setattr("huggingface_hub.snapshot_download", FakeHub(cache, gpt2, names=("config.json",)))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(FileNotFoundError, match="no weights in safetensors"):
        hub_snapshot("owner/tiny")
    assert capsys.readouterr().err == ""


def test_a_hub_that_cannot_be_reached_is_an_error(cache, monkeypatch):
    def unreachable(repo_id, *, local_files_only=False, **rest):
        from huggingface_hub.errors import LocalEntryNotFoundError

        raise LocalEntryNotFoundError("not cached") if local_files_only else ConnectionError("no route")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(FileNotFoundError, match=r"the hub cannot be reached: no route\. Nothing was loaded"):
        hub_snapshot("owner/tiny")
