"""One reader each for JSON, YAML and safetensors, whose errors name the file; and nothing in the package reads past them."""

import ast
from pathlib import Path

import pytest

import esscher
from esscher.core.bounded_files import RefusedError
from esscher.core.reading import (
    describing,
    read_json,
    read_json_lines,
    read_json_object,
    read_text,
    read_yaml,
    read_yaml_mapping,
)
from esscher.core.storage import read_tensors

PACKAGE = Path(esscher.__file__).parent
READERS = {"json": ("load", "loads"), "yaml": ("load", "safe_load", "full_load", "unsafe_load"), "torch": ("load",)}
ALLOWED = {  # the readers themselves, and texts that are in no file
    "core/reading.py", "core/storage.py", "serving/requests.py", "explorer/page_app.py",
    "training/collectives.py", "hub/network_folder.py",
}  # fmt: skip


def readers_in(file: Path) -> set[str]:
    """Calls in a module that read JSON, YAML, safetensors or pickles."""
    found: set[str] = set()
    if not any(name in file.read_text(encoding="utf8") for name in (*READERS, "safetensors")):
        return found
    for node in ast.walk(ast.parse(file.read_text(encoding="utf8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in READERS.get(node.value.id, ()):
            found.add(f"{node.value.id}.{node.attr}")
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {alias.name for alias in node.names}
            if node.module.startswith("safetensors"):
                found |= names & {"safe_open", "load_file", "load"}
            found |= names & set(READERS.get(node.module, ()))
    return found


def test_nothing_reads_past_the_readers():
    files = {file.relative_to(PACKAGE).as_posix(): readers_in(file) for file in PACKAGE.rglob("*.py")}
    assert {name: found for name, found in files.items() if found and name not in ALLOWED} == {}
    assert readers_in(PACKAGE / "core/reading.py") == {"json.loads", "yaml.safe_load"}
    assert readers_in(PACKAGE / "core/storage.py") == {"safe_open"}


DAMAGED = [b"", b"{", b"\xff\xfe", b"[" * 3000, b"[1, 2]", b"word", b"3", b"null", b'{"a": ' + b"9" * 5000 + b"}"]


@pytest.mark.parametrize("read", [read_json_object, read_yaml_mapping])
@pytest.mark.parametrize("content", DAMAGED)
def test_whatever_is_wrong_with_a_file_names_it(tmp_path, read, content):
    file = tmp_path / "settings.any"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"(?s)settings\.any.* Nothing was loaded; restore the file\.") as caught:
        read(file)
    assert type(caught.value) in (ValueError, RefusedError)  # not UnicodeDecodeError, whose message has another form


@pytest.mark.parametrize(
    "content", [b"a: 2001-99-99", b"{[1]: 2}", b"a: !!python/object:os.system x", b"a: &b [*b]\n- c", b"0b"]
)
def test_yaml_that_its_library_fails_on(tmp_path, content):
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"run\.yaml"):
        read_yaml_mapping(file)


@pytest.mark.parametrize("read", [read_text, read_json, read_yaml, read_json_lines, read_tensors])
def test_missing_files_and_folders_in_their_place(tmp_path, read):
    with pytest.raises(FileNotFoundError, match=r"no file .*nothing"):
        read(tmp_path / "nothing")
    (tmp_path / "folder").mkdir()
    with pytest.raises((ValueError, FileNotFoundError), match="folder"):
        read(tmp_path / "folder")


def test_lines_and_what_values_describe(tmp_path):
    file = tmp_path / "history.jsonl"
    file.write_text('{"a": 1}\n\n{"a": 2}\n{"a": ')
    assert read_json_lines(file) == [{"a": 1}, {"a": 2}]
    file.write_text('{"a": 1}\n{"a" 2}\n')
    with pytest.raises(ValueError, match=r"history\.jsonl, line 2 is not valid JSON"):
        read_json_lines(file)
    with (
        pytest.raises(ValueError, match=r"history\.jsonl does not describe a run: there is no 'b'\. Nothing"),
        describing(file, "a run"),
    ):
        {"a": 1}["b"]
