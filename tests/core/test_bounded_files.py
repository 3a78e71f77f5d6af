"""Files of others: what they may expand to, and errors that name them."""

import gzip
import json
from pathlib import Path

import pytest

from esscher.core.bounded_files import (
    FREE_BYTES,
    bounded_rows,
    check_compressed,
    check_json_lines,
    open_bytes,
    read_bytes,
    refuse_link_outside,
)
from esscher.core.reading import read_json, read_yaml
from esscher.data.images import read_images
from esscher.data.sources import read_texts


@pytest.fixture
def bomb(tmp_path):
    """A gzip file of 128 MiB in 128 KiB."""
    file = tmp_path / "data.txt.gz"
    file.write_bytes(gzip.compress(b"a" * 2**24) * 8)
    return file


def test_gzip_is_bounded(bomb, tmp_path):
    for read in (read_bytes, check_compressed, lambda file: read_texts(str(file), unit="document")):
        with pytest.raises(ValueError, match=r"data.txt.gz has 130,\d+ bytes and expands to more than 67,108,864"):
            read(bomb)
    plain = tmp_path / "plain.gz"
    content = b"ab\n" * (FREE_BYTES // 64)
    plain.write_bytes(gzip.compress(content))
    assert read_bytes(plain) == content  # a high ratio alone is no reason
    with open_bytes(plain) as lines:
        assert next(iter(lines)) == b"ab\n"
    plain.write_bytes(plain.read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"plain.gz is no gzip file, or cut short"):
        read_bytes(plain)


def test_compressed_content_under_another_name(bomb):
    with pytest.raises(ValueError, match=r"data.md is compressed \(gzip\), and its name does not say so"):
        read_texts(str(bomb.rename(bomb.with_name("data.md"))))


def test_rows_are_bounded(tmp_path):
    file = tmp_path / "few.parquet"
    file.write_bytes(b"0123")
    assert len(list(bounded_rows([{"text": "a"}] * 9, file))) == 9
    with pytest.raises(ValueError, match="expands to more than"):
        list(bounded_rows(({"text": "a" * 2**20} for _ in range(99)), file))


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a":' * 10**5, "[" * 10**5 + "]" * 10**5, "9" * 10**5, "{", "\x00"])
def test_json_that_nobody_writes(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a.json is (nested too deeply|not valid JSON)"):
        read_json(tmp_path / "a.json")


def test_lines_of_json_are_bounded(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps({"text": "[" * 9999, "more": [[]] * 600}) + "\n")  # in strings, and side by side
    check_json_lines(file)
    assert read_texts(str(file)).texts == ("[" * 9999,)
    file.write_text('{"text": "a"}\n{"text": ' + "[" * 600 + "]" * 600 + "}\n")
    with pytest.raises(ValueError, match=r"Line 2 of .*a.jsonl is nested more than 500 deep"):
        read_texts(str(file))


def test_aliases_of_yaml(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("a: &a {x: 1}\nb: *a\nc: [*a, *a]\n")
    assert read_yaml(file) == {"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}] * 2}
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    file.write_text("\n".join(lines + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]))
    with pytest.raises(ValueError, match=r"a.yaml stands for more than 200,000 values by its aliases"):
        read_yaml(file)
    for text, message in [("a: &a [*a]", "contains itself"), ("[" * 600, "nested too deeply"), ("a: [", "not valid YAML")]:
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_yaml(file)
    file.write_text("")
    assert read_yaml(file) is None


def test_archives_and_images_are_bounded(tmp_path):
    import numpy as np
    from PIL import Image

    np.savez_compressed(tmp_path / "a.npz", images=np.zeros((8000, 100, 100), np.uint8))
    with pytest.raises(ValueError, match=r"a.npz has .* expands to more than"):
        read_images(str(tmp_path / "a.npz"))
    np.savez(tmp_path / "b.npz", images=np.array([{}], dtype=object))
    with pytest.raises(ValueError, match=r"b.npz has arrays that cannot be read"):
        read_images(str(tmp_path / "b.npz"))
    Image.new("1", (9000, 9000)).save(tmp_path / "c.png")
    with pytest.raises(ValueError, match=r"c.png has .* expands to more than"):
        read_images(str(tmp_path / "c.png"))


def test_links_out_of_a_folder(tmp_path):
    folder, other = tmp_path / "a", tmp_path / "b"
    folder.mkdir()
    other.mkdir()
    (other / "secret.txt").write_text("secret")
    (folder / "x.txt").write_text("fine")
    (folder / "y.txt").symlink_to("x.txt")
    assert read_texts(str(folder)).texts == ("fine", "fine")
    (folder / "z.txt").symlink_to("../b/secret.txt")
    with pytest.raises(ValueError, match=r"z.txt is a link to .*secret.txt, outside of its folder"):
        read_texts(str(folder))
    refuse_link_outside(Path(folder / "y.txt"), folder)


@pytest.mark.parametrize("name", ["text", "json", "csv", "parquet:default", "imagefolder", "texts:default"])
def test_names_of_readers_are_no_data(tmp_path, monkeypatch, name):
    (tmp_path / "texts").mkdir()
    for file in ("secrets.env", "secrets.txt", "secrets.json", "texts/a.txt"):
        (tmp_path / file).write_text('{"text": "secret"}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError, match=rf"'{name}' names no data: .* Nothing was read; name files by their path"):
        read_texts(name)
