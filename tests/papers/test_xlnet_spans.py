"""Spans of a known process: exact conditionals and the cost of independence against brute force, scores of spans that are
normalised, and the recipe at its smallest."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch

from esscher.bases.network import build_base, infilling_order, with_factorization_order
from esscher.core.estimate import Estimate
from esscher.core.randomness import SeededRng
from esscher.core.space import Sequences, Space
from esscher.networks.transformer_config import XLNetConfig
from esscher.papers import find_recipe
from esscher.papers.study import OPEN, REFUTED, REPRODUCED
from esscher.papers.xlnet import spans
from esscher.papers.xlnet.span_scores import filled_spans, independent_spans, permuted_spans

SMALL = XLNetConfig(width=8, layers=2, heads=2, feedforward=16, memory=0)


def lively(vocab_size=3, length=4):
    """A network whose predictions depend much on what it sees."""
    base = build_base(SMALL, Space(vocab_size, length), rng=SeededRng(3)).double().eval()
    with torch.no_grad():
        for weight in base.parameters():
            weight.mul_(1.0 if weight.ndim < 2 else 20.0)
    return base


@torch.no_grad()
@pytest.mark.parametrize("score", [permuted_spans, independent_spans, filled_spans])
def test_scores_of_spans_are_normalised(score):
    base, span = lively(), torch.tensor([1, 2])
    rows = torch.tensor([[2, *middle, 1] for middle in itertools.product(range(3), repeat=2)])
    log_probs = score(base, rows, span.expand(len(rows), -1))
    assert float(log_probs.exp().sum()) == pytest.approx(1, abs=1e-6)
    table = log_probs.exp().view(3, 3)
    product = table.sum(1)[:, None] * table.sum(0)
    assert torch.allclose(table, product, atol=1e-6) == (score is independent_spans)


@torch.no_grad()
def test_a_permuted_score_is_that_of_the_infilling_order():
    """For a network of one layer: known tokens see each other in a whole window, and only earlier ones in an order."""
    config, row, order = replace(SMALL, layers=1), torch.tensor([[2, 0, 1, 1]]), infilling_order(4, [1, 2])
    base = build_base(config, Space(3, 4), rng=SeededRng(3)).eval()
    in_order = Sequences(row[:, order], torch.tensor([2]), torch.tensor([4]))
    expected = float(with_factorization_order(base, order).log_probs(in_order).sum())
    assert float(permuted_spans(base, row, torch.tensor([[1, 2]]))) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("process", spans.PROCESSES)
def test_conditionals_and_the_cost_of_independence_by_hand(process):
    truth = spans.truth_of(process, 4)
    assert float(truth.prob.sum()) == pytest.approx(1)
    strings = {tuple(row): float(p) for row, p in zip(truth.tokens.tolist(), truth.prob, strict=True)}

    def brute(row, hidden, shown):
        agree = lambda other, free: all(a == b for i, (a, b) in enumerate(zip(row, other, strict=True)) if i not in free)  # noqa: E731
        above = sum(p for other, p in strings.items() if agree(other, set(hidden) - set(shown)))
        return math.log(above / sum(p for other, p in strings.items() if agree(other, hidden)))

    for hidden, shown in (([1, 2], [1, 2]), ([1, 2], [2]), ([0, 1, 2], [0])):
        expected = [brute(row, hidden, shown) for row in strings]
        assert torch.allclose(truth.conditional(hidden, shown), torch.tensor(expected).double(), atol=1e-6)
    entropy, floor = spans.independence(truth, 2)
    by_hand = [
        sum(p * (brute(row, hidden, hidden) - sum(brute(row, hidden, [t]) for t in hidden)) for row, p in strings.items())
        for hidden in spans.span_places(truth, 2)
    ]
    assert floor == pytest.approx(sum(by_hand) / 3, abs=1e-9) and entropy > 0 and floor > 0.05


def test_no_network_that_predicts_independently_is_below_the_floor():
    truth, base = spans.truth_of("phrases", 4), lively(5, 4)
    _, floor = spans.independence(truth, 2)
    assert spans.span_divergence(base, truth, 2, independent_spans) >= floor
    positions = spans.span_places(truth, 2)

    def ideal(score_base, rows, span):
        hidden = span[0].tolist()
        return torch.stack([truth.conditional(hidden, [t]) for t in hidden]).sum(0)

    assert len(positions) == 3 and spans.span_divergence(base, truth, 2, ideal) == pytest.approx(floor)


def test_the_smallest_run(tmp_path):
    result = find_recipe("xlnet-spans").run(scale="smoke", out=tmp_path, seeds=2)
    assert [(row["model"], row["seed"]) for row in result["rows"][:4]] == [
        (spans.PERMUTED, 0), (spans.DENOISING, 0), (spans.PERMUTED, 1), (spans.DENOISING, 1),
    ]  # fmt: skip
    for row in result["rows"]:
        assert row["KL"] > (row["independence"] if row["model"] == spans.DENOISING else 0)
    assert {row["process"] for row in result["effects"]} == set(spans.PROCESSES)
    kept = json.loads((tmp_path / "spans.json").read_text())
    assert kept["effects"][0]["saved"]["n"] == 2 and (tmp_path / "xlnet_spans.png").exists()


def test_a_verdict_needs_seeds_that_agree():
    def rows(saved):
        about = {"process": "phrases", "span": 2, "entropy": 1.0, "independence": 0.5}
        ours = [{**about, "model": spans.PERMUTED, "seed": seed, "KL": 0.1} for seed in range(len(saved))]
        theirs = [
            {**about, "model": spans.DENOISING, "seed": s, "KL": 0.1 + more, "filled": 0.2} for s, more in enumerate(saved)
        ]
        return [*ours, *theirs]

    cases = [([0.5, 0.52, 0.51], REPRODUCED), ([-0.5, -0.52, -0.51], REFUTED)]
    for saved, verdict in (*cases, ([0.5, -0.5, 0.1], OPEN), ([0.5], OPEN)):
        (effect,) = spans.compare(rows(saved))
        assert effect["verdict"] == verdict and isinstance(effect["saved"], Estimate)
