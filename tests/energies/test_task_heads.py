"""Heads on encoders: padding changes nothing, spans stay in the prompt, kernels count as by hand, what is frozen stays."""

import math
from dataclasses import replace

import pytest
import torch
from small_networks import CONFIGS, lively
from torch.nn.functional import cosine_similarity

from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space, sequences
from esscher.energies.config import TaskHeadConfig
from esscher.energies.encoders import NetworkEncoder
from esscher.energies.network import network_encoder
from esscher.energies.task_heads import KERNEL_MEANS, KERNEL_WIDTHS, LOG_SCALE, MIN_SOFT_COUNT, TaskModel, layerwise_lr_decay

X = sequences([[3, 1, 0], [2], [1, 0, 1, 2]], [[0, 2], [1, 1, 1], []])


def made(kind: str = "sequence", name: str = "xlnet", **settings) -> TaskModel:
    base = lively(CONFIGS[name], Space(4, 9))
    encoder = NetworkEncoder(base.network, 4, base.config.width, bidirectional=name.startswith("xlnet"))
    with SeededRng(2).fork_torch_rng():
        task_model = TaskModel(encoder, TaskHeadConfig(kind, **settings)).eval()
        for weight in task_model.head.parameters():
            torch.nn.init.normal_(weight)
    return task_model


@pytest.mark.parametrize("name", ["xlnet", "xlnet, local", "gru, tied", "transformer, rotary"])
@pytest.mark.parametrize(
    ("kind", "pooling"), [("sequence", "last"), ("sequence", "whole"), ("span", "last"), ("kernels", "last")]
)
def test_a_batch_is_as_one_by_one(name, kind, pooling):
    task_model = made(kind, name, pooling=pooling, outputs=1 if kind == "kernels" else 3)
    wide = Sequences(torch.nn.functional.pad(X.tokens, (0, 2), value=1), X.start, X.stop)
    together = task_model(wide)
    for row in range(len(X)):
        alone = task_model(X.rows(slice(row, row + 1)))[0]
        torch.testing.assert_close(together[row, : len(alone)], alone, atol=1e-5, rtol=1e-4)


def test_spans_are_of_the_prompt_and_the_rest_is_impossible():
    scores = made("span")(X)
    assert scores.shape == (3, 4, 2)
    assert torch.isfinite(scores).sum((1, 2)).tolist() == [6, 8, 2]  # as many tokens as prompts have, and none


@torch.no_grad()
def test_kernels_count_as_by_hand():
    task_model = made("kernels")
    x = X.rows(slice(0, 1))
    prompt, point = (task_model.encoder(sequences([item])).vectors[0, 1:] for item in ([0, 2], [3, 1, 0]))
    features = []
    for level, width in zip(KERNEL_MEANS, KERNEL_WIDTHS, strict=True):
        counts = [
            sum(math.exp(-((float(cosine_similarity(q, d, dim=0)) - level) ** 2) / (2 * width**2)) for d in point)
            for q in prompt
        ]
        features.append(LOG_SCALE * sum(math.log(max(count, MIN_SOFT_COUNT)) for count in counts))
    right = torch.tanh(task_model.head.score(torch.tensor(features)))
    torch.testing.assert_close(task_model(x)[0], right, atol=1e-5, rtol=1e-4)
    without_opening = task_model.head.counts(
        task_model.encoder(sequences([[0, 2]])), task_model.encoder(sequences([[3, 1, 0]]))
    )[0]
    assert without_opening.tolist() == pytest.approx(features, abs=1e-5)


def test_what_is_frozen_neither_learns_nor_drops():
    task_model = made(name="xlnet", frozen=True).train()
    assert not task_model.encoder.training and task_model.head.training
    task_model(X).sum().backward()
    assert all(weight.grad is None for weight in task_model.encoder.parameters())
    assert all(weight.grad is not None for weight in task_model.head.parameters())


def test_lower_layers_learn_less():
    task_model = TaskModel(network_encoder(CONFIGS["xlnet"], 4, bidirectional=True), TaskHeadConfig())
    shares = layerwise_lr_decay(task_model, 0.5)
    assert shares == {"encoder.": 0.25, "encoder.network.blocks.0.": 0.5, "encoder.network.blocks.1.": 1.0}


def test_one_layer_learns_at_the_full_rate():
    """A layer has lists of its own, such as two norms, which are no layers; nor are the tables of an adaptive embedding."""
    one = replace(CONFIGS["xlnet"], layers=1)
    task_model = TaskModel(network_encoder(one, 4, bidirectional=True), TaskHeadConfig())
    assert layerwise_lr_decay(task_model, 0.5) == {"encoder.": 0.5, "encoder.network.blocks.0.": 1.0}
    task_model.encoder.tables = torch.nn.ModuleList([torch.nn.Embedding(2, 2) for _ in range(5)])
    assert layerwise_lr_decay(task_model, 0.5) == {"encoder.": 0.5, "encoder.network.blocks.0.": 1.0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"outputs": 0}, "outputs is at least 1"), ({"dropout": 1.0}, "dropout rate")],
)
def test_what_makes_no_sense_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        TaskHeadConfig(**settings)
