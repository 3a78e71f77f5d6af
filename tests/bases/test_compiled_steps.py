"""Compiled decoding steps: the same draws, one graph without a break, and no new graph for another position."""

import json
import os
import re
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import run_and_get_code

from esscher.bases import network as networks
from esscher.bases.network import build_base, compile_steps
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of
from esscher.networks.recurrent_config import EnasConfig, GruConfig, LstmConfig
from esscher.networks.transformer_config import DeqConfig, TransformerConfig, TransformerXLConfig
from esscher.samplers.ancestral import draw

ATTENTION = {"width": 8, "layers": 2, "heads": 2, "feedforward": 8}
CONFIGS = {
    "transformer": TransformerConfig(max_positions=128, **ATTENTION),
    "transformer, learned positions": TransformerConfig(max_positions=128, positions="learned", **ATTENTION),
    "transformer-xl": TransformerXLConfig(**ATTENTION),
    "mixers": TransformerXLConfig(mixers=("local", "dynamicconv"), spans=(8, 4), **ATTENTION),
    "lstm": LstmConfig(width=8),
    "gru": GruConfig(width=8),
    "enas": EnasConfig(width=8),
}


def compare(name: str) -> dict[str, int]:
    """Whether compiled steps draw the same, twice; graphs, and breaks of graphs."""
    base, prompts = build_base(CONFIGS[name], Space(9, 70), rng=SeededRng(0)).eval(), prompts_of([[1, 2, 3], [4]])
    expected, log_base = draw(base, prompts, 3, rng=SeededRng(1))
    torch._dynamo.reset()
    counters.clear()
    same = compile_steps(base, "on", backend="eager")
    for _ in range(2):
        actual, log_prob = draw(base, prompts, 3, rng=SeededRng(1))
        same = same and actual.points() == expected.points() and torch.allclose(log_prob, log_base, atol=1e-4)
    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    return {"same": int(same), "graphs": graphs, "breaks": breaks}


def copy_draws_by_its_own_weights() -> bool:
    """Whether a copy of a compiled base, with other weights, draws as a base with these."""
    base, other = (build_base(CONFIGS["gru"], Space(9, 6), rng=SeededRng(seed)).eval() for seed in (0, 1))
    compile_steps(base, "on", backend="eager")
    copied = deepcopy(base)
    copied.load_state_dict(other.state_dict())
    actual, expected = (draw(part, prompts_of([[1]]), 8, rng=SeededRng(2))[0].points() for part in (copied, other))
    return actual == expected


def runs_uncompiled_where_compiling_fails() -> bool:
    """Whether a base on a device that cannot compile draws the same; what it says is on standard error."""
    base = build_base(CONFIGS["gru"], Space(9, 6), rng=SeededRng(0)).eval()
    expected = draw(base, prompts_of([[1]]), 8, rng=SeededRng(2))[0].points()
    networks.device_of, networks.find_spec = lambda base: torch.device("cuda"), lambda name: True

    def broken(graph, inputs):
        raise RuntimeError("no such GPU")

    compile_steps(base, backend=broken)
    assert base.network.compiled_step is not None
    return draw(base, prompts_of([[1]]), 8, rng=SeededRng(2))[0].points() == expected and base.network.compiled_step is None


def in_process(expression: str) -> tuple[object, str]:
    """What an expression gives in a process of its own, because the checks of shapes under pytest are graphs, too; and what it
    says."""
    folder = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{folder}:{folder.parents[1]}"}
    call = f"import json, test_compiled_steps as t; print(json.dumps({expression}))"
    run = subprocess.run([sys.executable, "-c", call], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1]), run.stderr


def kernels(name: str) -> dict[str, int]:
    """Whether steps of 12 layers (LSTM: 2) compiled by inductor draw the same, and the kernels of a step."""
    config = CONFIGS[name] if name == "lstm" else replace(CONFIGS[name], layers=12)
    base, prompts = build_base(config, Space(9, 40), rng=SeededRng(0)).eval(), prompts_of([[1, 2, 3], [4]])
    expected, _ = draw(base, prompts, 3, rng=SeededRng(1))
    compile_steps(base, "on")
    (actual, _), codes = run_and_get_code(lambda: draw(base, prompts, 3, rng=SeededRng(1)))
    code = codes[-1][codes[-1].index("def call(") :]
    return {
        "same": actual.points() == expected.points(),
        "kernels": len(re.findall(r"^ +(?:cpp_fused|extern_kernels)", code, re.M)),
    }


@pytest.mark.slow
def test_compiled_steps_have_few_kernels():
    results, _ = in_process('{name: t.kernels(name) for name in ("lstm", "transformer")}')
    assert results["lstm"]["same"] and results["lstm"]["kernels"] <= 8
    assert results["transformer"]["same"] and results["transformer"]["kernels"] <= 105  # 9 a layer, 211 uncompiled at first


FAST = ("transformer", "mixers", "gru")


def test_the_same_draws_from_one_graph_and_copies_and_failures():
    call = f"[t.copy_draws_by_its_own_weights(), {{name: t.compare(name) for name in {FAST}}}, "
    (copied, results, uncompiled), said = in_process(call + "t.runs_uncompiled_where_compiling_fails()]")
    check_graphs(results)
    assert copied and uncompiled and "no such GPU" in said and "kernel by kernel" in said


@pytest.mark.slow
def test_every_network_draws_the_same_from_one_graph():
    results, _ = in_process("{name: t.compare(name) for name in t.CONFIGS}")
    check_graphs(results)


def check_graphs(results):
    """73 positions are two windows of slots; where attention is local, a third graph has the first slot that is read as a
    variable."""
    for name, result in results.items():
        assert result["same"] == 1 and result["breaks"] == 0, (name, result)
        assert 1 <= result["graphs"] <= (3 if isinstance(CONFIGS[name], TransformerXLConfig) else 2), (name, result)


def test_what_is_compiled():
    space, deq = Space(9, 4), DeqConfig(width=8, heads=2, feedforward=8)
    base, deq_base = (build_base(config, space, rng=SeededRng(0)).eval() for config in (CONFIGS["lstm"], deq))
    assert not compile_steps(base) and not compile_steps(base, "off") and not base.network.static_steps
    with pytest.raises(ValueError, match="cannot be captured"):
        compile_steps(deq_base, "on")
