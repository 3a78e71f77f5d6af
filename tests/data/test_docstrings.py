"""The embedded corpus: parsed, not imported; cleaned; split for good."""

import sys

import pytest

from esscher.data import docstrings
from esscher.data.docstrings import docstring_splits, read_docstrings

SOURCE = '''"""A module that counts sheep."""
raise SystemExit("never run")
def count(flock):
    """Return the number of sheep.

    >>> count([1, 2])
    2

    Black   ones count too.
    """
class Flock:
    """A module that counts sheep."""
    def a(self): "Short."
'''


def test_docstrings_are_cleaned_deduplicated_and_never_imported(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "sheep.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("def (:")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "x.py").write_text('"""A test module of the library."""')
    assert read_docstrings(tmp_path).texts == (
        "A module that counts sheep.",
        "Return the number of sheep.\n\nBlack   ones count too.",
    )


def test_what_was_found_is_kept_until_a_source_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "sources" / "sheep.py"
    source.parent.mkdir()
    source.write_text(SOURCE)
    actual = read_docstrings.__wrapped__(source.parent)
    (kept,) = (tmp_path / "cache" / "esscher").iterdir()
    monkeypatch.setattr(docstrings, "_docstrings", lambda file: pytest.fail(f"{file} was parsed again"))
    assert read_docstrings.__wrapped__(source.parent) == actual
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept.write_text("[half a fi")
    assert read_docstrings.__wrapped__(source.parent) == actual
    source.write_text(SOURCE.replace("sheep", "goats"))
    assert read_docstrings.__wrapped__(source.parent).texts[0] == "A module that counts goats."
    assert list((tmp_path / "cache" / "esscher").iterdir()) == [kept]  # what is no longer so is not kept beside it
    (tmp_path / "no folder").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no folder"))
    assert read_docstrings.__wrapped__(source.parent).texts[0] == "A module that counts goats."


def test_corpus_of_this_python():
    modules = set(sys.modules)
    splits = docstring_splits()
    assert not {name for name in set(sys.modules) - modules if name.startswith(("turtle", "idlelib", "antigravity"))}
    parts = [splits.train.texts, splits.validation.texts, splits.test.texts]
    texts = [text for part in parts for text in part]
    assert len(set(texts)) == len(texts) > 5000
    assert 1.2e6 < sum(len(text.encode()) for text in texts) < 2.5e6
    assert all(0.03 < len(part) / len(texts) < 0.07 for part in parts[1:])
    assert not any(">>>" in text for text in texts if text.lstrip().startswith(">>>"))
