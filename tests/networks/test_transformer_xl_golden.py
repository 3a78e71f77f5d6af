"""Transformer-XL against outputs of the authors' own code: losses, memories and gradients, four segments in a row."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from esscher.bases.network import build_network
from esscher.networks.transformer_config import TransformerXLConfig

GOLDEN = Path(__file__).parents[3] / "shared" / "golden"
CONFIG = {"width": 32, "layers": 3, "heads": 4, "feedforward": 64, "memory": 12}
CASES = {
    "txl_base": TransformerXLConfig(**CONFIG),
    "txl_prelnorm": TransformerXLConfig(**CONFIG, norm="pre"),
    "txl_adapt_div1": TransformerXLConfig(**CONFIG, cutoffs=(20, 50)),
}
LAYER = {
    "mixer.rel_pos_proj.weight": "dec_attn.r_net.weight",
    "mixer.o_proj.weight": "dec_attn.o_net.weight",
    "norms.0.weight": "dec_attn.layer_norm.weight",
    "norms.0.bias": "dec_attn.layer_norm.bias",
    "up_proj.weight": "pos_ff.CoreNet.0.weight",
    "up_proj.bias": "pos_ff.CoreNet.0.bias",
    "down_proj.weight": "pos_ff.CoreNet.3.weight",
    "down_proj.bias": "pos_ff.CoreNet.3.bias",
    "norms.1.weight": "pos_ff.layer_norm.weight",
    "norms.1.bias": "pos_ff.layer_norm.bias",
}


def ours(theirs: dict[str, torch.Tensor], layers: int) -> dict[str, torch.Tensor]:
    """Tensors under the authors' names, weights or gradients, under ours."""
    actual = {
        "biases": torch.stack([theirs["r_w_bias"], theirs["r_r_bias"]])[None],
        "head.bias": theirs["crit.out_layers.0.bias"],
    }
    table = theirs["word_emb.emb_layers.0.weight"]
    table = torch.cat([table, torch.zeros(1, table.shape[1])])  # they have no BOS symbol
    if "crit.cluster_weight" in theirs:  # they have the clusters' symbols in the opposite order
        actual["embedding.tables.0.weight"] = table
        actual |= {f"head.cluster_{kind}": theirs[f"crit.cluster_{kind}"].flip(0) for kind in ("weight", "bias")}
    else:
        actual["embedding.weight"] = table
    for number in range(layers):
        for mine, other in LAYER.items():
            actual[f"blocks.{number}.{mine}"] = theirs[f"layers.{number}.{other}"]
        q_proj, key, value = theirs[f"layers.{number}.dec_attn.qkv_net.weight"].chunk(3)
        actual[f"blocks.{number}.mixer.q_proj.weight"] = q_proj
        actual[f"blocks.{number}.mixer.kv_proj.weight"] = torch.cat([key, value])
    return actual


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden tensors are not here")
@pytest.mark.parametrize("name", CASES)
def test_equals_the_authors_code(name):
    tensors, config = load_file(GOLDEN / f"{name}.safetensors"), CASES[name]
    parts = {top: {key.removeprefix(top + "/"): value for key, value in tensors.items() if key.startswith(top + "/")}
             for top in ("state", "grads", "recs")}  # fmt: skip
    network = build_network(config, 100).train()
    network.load_state_dict(ours(parts["state"], config.layers))
    memory = network.init_memory(2)
    for segment in range(4):
        record = {key.split("/", 1)[1]: value for key, value in parts["recs"].items() if key.startswith(f"{segment}/")}
        hidden, memory = network.read(record["data"].T, memory)
        loss = -network.log_probs(hidden.flatten(0, 1), record["target"].T.flatten()).view(2, 8).T
        if config.cutoffs:  # theirs stand in the order of clusters
            assert torch.allclose(loss.mean(), record["loss"].mean(), atol=1e-5)
        else:
            assert torch.allclose(loss, record["loss"], atol=1e-5)
        for layer in range(config.layers):
            assert torch.allclose(memory[1 + layer].transpose(0, 1), record[f"mems/{layer}"], atol=1e-5)
    loss.mean().backward()
    expected = ours(parts["grads"], config.layers)
    for key, weight in network.named_parameters():
        assert torch.allclose(weight.grad, expected[key], atol=1e-5), key
