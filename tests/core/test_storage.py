"""Files are whole or not there; tensors are what was written."""

import errno
import os

import pytest
import torch
from torch import nn

from esscher.core.storage import (
    SavingError,
    digest,
    load_module_tensors,
    module_tensors,
    read_tensors,
    write_file,
    write_json,
    write_tensors,
)

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(True), "empty": torch.zeros(0, 2)}


class Tied(nn.Module):
    def __init__(self, vocabulary: int = 4):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 3)
        self.output = nn.Linear(3, vocabulary, bias=False)
        self.output.weight = self.embedding.weight
        self.register_buffer("seen", torch.tensor(2))


def test_tensors_come_back(tmp_path):
    write_tensors(tmp_path / "x" / "t.safetensors", {**TENSORS, "view": TENSORS["a"].T})
    actual = read_tensors(tmp_path / "x" / "t.safetensors")
    assert digest(actual) == digest({**TENSORS, "view": TENSORS["a"].T})
    assert os.listdir(tmp_path / "x") == ["t.safetensors"]


def test_digest_of_one_element_ignores_its_stride():
    """A slice of one column and one row keeps the stride of the tensor that it comes from."""
    assert digest({"x": torch.as_strided(torch.arange(100), (1,), (61,))}) == digest({"x": torch.zeros(1, dtype=torch.long)})


def test_digest_tells_bits_shapes_and_names_apart():
    others = [
        {"a": torch.zeros(2)},
        {"b": torch.zeros(2)},
        {"a": torch.zeros(2, 1)},
        {"a": torch.zeros(1)},
        {"a": -torch.zeros(2)},
    ]
    assert len({digest(other) for other in others}) == len(others)


def test_damage(tmp_path):
    file = tmp_path / "t.safetensors"
    write_tensors(file, TENSORS)
    content = bytearray(file.read_bytes())
    content[-1] ^= 4
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"t.safetensors is corrupted: its content has changed"):
        read_tensors(file)
    file.write_bytes(content[:-7])
    with pytest.raises(ValueError, match=r"t.safetensors is corrupted"):
        read_tensors(file)
    with pytest.raises(FileNotFoundError, match="There is no file"):
        read_tensors(tmp_path / "u.safetensors")


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    write_json(file, {"x": 1})

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SavingError, match=r"Could not write .*a.json \(3 bytes; .* free\): No space left on device"):
        write_file(file, b"new")
    assert file.read_text() == '{\n  "x": 1\n}\n' and os.listdir(tmp_path) == ["a.json"]


def test_tied_weights_are_written_once_and_filled_together(tmp_path):
    first, second = Tied(), Tied()
    assert sorted(module_tensors(first)) == ["embedding.weight", "seen"]
    load_module_tensors(second, module_tensors(first), tmp_path)
    assert second.output.weight.equal(first.embedding.weight)


def test_what_does_not_fit_is_named_and_changes_nothing(tmp_path):
    model = Tied()
    before = digest(module_tensors(model))
    with pytest.raises(ValueError, match=r"'embedding.weight' has shape \(5, 3\) in the file and \(4, 3\) in the model"):
        load_module_tensors(model, module_tensors(Tied(5)), tmp_path)
    with pytest.raises(ValueError, match="'seen' is not in the file"):
        load_module_tensors(model, {"embedding.weight": torch.zeros(4, 3)}, tmp_path)
    with pytest.raises(ValueError, match="'more' is not part of the model"):
        load_module_tensors(model, {**module_tensors(model), "more": torch.zeros(1)}, tmp_path)
    assert digest(module_tensors(model)) == before
