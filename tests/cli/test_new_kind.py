"""A new kind of network is a module with its config and network, and one entry in the registry: nothing else has to know it."""

import json
import sys

import pytest
import torch
from cli_calls import answer, call

from esscher.bases.network import build_base
from esscher.core.config import Kind
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.hub import load_base
from esscher.networks.registry import NETWORKS
from esscher.testing import check_base

CONFIG = '''
"""Settings of the mean of the embeddings so far."""

from dataclasses import dataclass

from esscher.heads.config import LayeredConfig


@dataclass(frozen=True)
class ToyConfig(LayeredConfig):
    """The mean of the embeddings so far, times a factor."""

    width: int = 8
    layers: int = 1
    factor: float = 1.0
    """Factor of the mean."""
'''
NETWORK = '''
"""The mean of the embeddings so far."""

import torch
from torch import nn

from esscher.heads.build import build_embedding, build_head
from esscher.heads.head import NetworkWithHead
from esscher.networks.incremental_decoding import UncachedDecoding
from esscher.networks.network import prepend_bos


class ToyNetwork(NetworkWithHead):
    """Hidden vectors are means of embeddings; steps are whole passes."""

    max_positions = None

    def __init__(self, config, vocab_size):
        super().__init__()
        self.config, self.bos = config, vocab_size
        self.embedding = build_embedding(config, vocab_size, config.width)
        self.head = build_head(config, vocab_size, config.width, None)

    def hidden(self, x):
        vectors = self.embedding(prepend_bos(x, self.bos)[:, :-1])
        count = torch.arange(1, vectors.shape[1] + 1, device=vectors.device)
        return self.config.factor * vectors.cumsum(1) / count[:, None]

    def begin(self, prompts, max_new_tokens):
        return UncachedDecoding(self).begin(prompts, max_new_tokens)

    def advance(self, state, token):
        return UncachedDecoding(self).advance(state, token)

    def select(self, state, index):
        return UncachedDecoding(self).select(state, index)
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The kind `toy`, registered for one test."""
    for name, text in (("toy_config", CONFIG), ("toy_network", NETWORK)):
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    NETWORKS.register("toy", Kind("toy_config:ToyConfig", "toy_network:ToyNetwork"))
    yield
    del NETWORKS["toy"]
    for name in ("toy_config", "toy_network"):
        sys.modules.pop(name, None)


def test_a_registered_kind_is_trained_saved_loaded_and_sampled(toy, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    page = call(capsys, "train", "--base.kind", "toy", "--help")[1]
    assert "--base.factor" in page and "Factor of the mean." in page and "--base.heads" not in page
    assert "toy" in call(capsys, "train", "--help")[1]
    folder = str(tmp_path / "run")
    trained = answer(
        capsys, "train", "--out", folder, "--data", "motif:101", "--data.length", "6", "--data.size", "60",
        "--base.kind", "toy", "--base.factor", "2", "--training.steps", "4", "--quiet",
    )  # fmt: skip
    assert trained["steps"] == 4
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    assert saved["model_type"] == "esscher-toy" and saved["base"]["factor"] == 2.0
    base, _ = load_base(folder)
    assert type(base.config).__name__ == "ToyConfig" and (base.config.factor, base.config.width) == (2.0, 8)
    drawn = answer(capsys, "sample", folder, "--prompt", "1", "--draws", "3")
    assert [row["prompt"] for row in drawn["samples"]] == ["1"] * 3
    assert all(row["log_base"] < 0 for row in drawn["samples"])


def test_its_network_obeys_the_laws_of_a_base(toy):
    """As its line in the laws' list would check."""
    config = NETWORKS.from_dict({"kind": "toy", "width": 4})
    base = build_base(config, Space(3, 4, eos=0), rng=SeededRng(1)).double().eval()
    check_base(base, prompts=[[], [1], [2, 1, 1]])
    assert NETWORKS.kind_of(config) == "toy" and torch.is_grad_enabled()


def test_a_name_that_is_taken_is_refused(toy):
    with pytest.raises(ValueError, match="There is a kind of network 'lstm' already"):
        NETWORKS.register("lstm", Kind("toy_config:ToyConfig", "toy_network:ToyNetwork"))
