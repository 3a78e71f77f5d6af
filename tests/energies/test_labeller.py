"""Heads on readers: padding changes nothing, spans stay in the prompt, kernels count as by hand, what is frozen stays."""

import math

import pytest
import torch
from networks import CONFIGS, lively
from torch.nn.functional import cosine_similarity

from esscher.energies.building import network_reader
from esscher.energies.labeller import LEAST, LEVELS, SCALE, WIDTHS, Labeller, layer_shares
from esscher.energies.labeller_config import LabellerConfig
from esscher.energies.readers import NetworkReader
from esscher.randomness import Seeded
from esscher.space import Sequences, Space, sequences

X = sequences([[3, 1, 0], [2], [1, 0, 1, 2]], [[0, 2], [1, 1, 1], []])


def made(kind: str = "sequence", name: str = "xlnet", **settings) -> Labeller:
    base = lively(CONFIGS[name], Space(4, 9))
    reader = NetworkReader(base.network, 4, base.config.width, both_sides=name.startswith("xlnet"))
    with Seeded(2).governs_torch():
        labeller = Labeller(reader, LabellerConfig(kind, **settings)).eval()
        for weight in labeller.head.parameters():
            torch.nn.init.normal_(weight)
    return labeller


@pytest.mark.parametrize("name", ["xlnet", "xlnet, local", "gru, tied", "transformer, rotary"])
@pytest.mark.parametrize(
    ("kind", "pooling"), [("sequence", "last"), ("sequence", "whole"), ("span", "last"), ("kernels", "last")]
)
def test_a_batch_is_as_one_by_one(name, kind, pooling):
    labeller = made(kind, name, pooling=pooling, outputs=1 if kind == "kernels" else 3)
    wide = Sequences(torch.nn.functional.pad(X.tokens, (0, 2), value=1), X.start, X.stop)
    together = labeller(wide)
    for row in range(len(X)):
        alone = labeller(X.rows(slice(row, row + 1)))[0]
        torch.testing.assert_close(together[row, : len(alone)], alone, atol=1e-5, rtol=1e-4)


def test_spans_are_of_the_prompt_and_the_rest_is_impossible():
    scores = made("span")(X)
    assert scores.shape == (3, 4, 2)
    assert torch.isfinite(scores).sum((1, 2)).tolist() == [6, 8, 2]  # as many tokens as prompts have, and none


@torch.no_grad()
def test_kernels_count_as_by_hand():
    labeller = made("kernels")
    x = X.rows(slice(0, 1))
    prompt, point = (labeller.reader(sequences([one])).vectors[0, 1:] for one in ([0, 2], [3, 1, 0]))
    features = []
    for level, width in zip(LEVELS, WIDTHS, strict=True):
        counts = [
            sum(math.exp(-((float(cosine_similarity(q, d, dim=0)) - level) ** 2) / (2 * width**2)) for d in point)
            for q in prompt
        ]
        features.append(SCALE * sum(math.log(max(count, LEAST)) for count in counts))
    right = torch.tanh(labeller.head.score(torch.tensor(features)))
    torch.testing.assert_close(labeller(x)[0], right, atol=1e-5, rtol=1e-4)
    without_opening = labeller.head.counts(labeller.reader(sequences([[0, 2]])), labeller.reader(sequences([[3, 1, 0]])))[0]
    assert without_opening.tolist() == pytest.approx(features, abs=1e-5)


def test_what_is_frozen_neither_learns_nor_drops():
    labeller = made(name="xlnet", frozen=True).train()
    assert not labeller.reader.training and labeller.head.training
    labeller(X).sum().backward()
    assert all(weight.grad is None for weight in labeller.reader.parameters())
    assert all(weight.grad is not None for weight in labeller.head.parameters())


def test_lower_layers_learn_less():
    labeller = Labeller(network_reader(CONFIGS["xlnet"], 4, both_sides=True), LabellerConfig())
    shares = layer_shares(labeller, 0.5)
    assert shares == {"reader.": 0.25, "reader.network.blocks.0.": 0.5, "reader.network.blocks.1.": 1.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"outputs": 0}, "one score"), ({"dropout": 1.0}, "dropout rate")],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        LabellerConfig(**settings)
