"""Transformer-XL against outputs of the authors' own code: losses, memories and gradients, four segments in a row; and against
its attention written again plainly, which these outputs confirm, with `same_length` and `clamp_len`."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from esscher.bases.network import build_network
from esscher.core.randomness import SeededRng
from esscher.networks.relative_attention_ops import sinusoids
from esscher.networks.transformer_config import TransformerXLConfig, published_attention_span

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


def golden(name: str) -> dict[str, dict[str, torch.Tensor]]:
    tensors = load_file(GOLDEN / f"{name}.safetensors")
    return {top: {key.removeprefix(top + "/"): value for key, value in tensors.items() if key.startswith(top + "/")}
            for top in ("state", "grads", "recs")}  # fmt: skip


needs_golden = pytest.mark.skipif(not GOLDEN.is_dir(), reason="the golden tensors are not here")


@needs_golden
@pytest.mark.parametrize("name", CASES)
def test_equals_the_authors_code(name):
    parts, config = golden(name), CASES[name]
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


def published(network, segments, mem_len, *, same_length=False, clamp_len=None):
    """The hidden vectors of segments, post-norm, with the masks of the authors' PyTorch code: of K keys for L queries, key j is
    masked for query i if j > i + K - L, and with `same_length` if j <= i - L + max(0, K - mem_len)."""
    heads, width = network.config.heads, network.config.width
    (content, position), size = network.biases[0], width // heads
    memories, outputs = [torch.zeros(len(segments[0]), 0, width)] * len(network.blocks), []
    for tokens in segments:
        x, length = network.embedding(tokens) * width**0.5, tokens.shape[1]
        keys = memories[0].shape[1] + length
        i, j = torch.arange(length)[:, None], torch.arange(keys)
        masked = j > i + keys - length
        if same_length:
            masked = masked | (j <= i - length + max(0, keys - mem_len))
        distance = (i + keys - length - j).clamp(min=0, max=clamp_len)
        for number, block in enumerate(network.blocks):
            known = torch.cat([memories[number], x], 1)
            memories[number] = known[:, max(0, keys - mem_len) :]
            query = block.mixer.q_proj(x).unflatten(-1, (heads, size))
            key, value = block.mixer.kv_proj(known).unflatten(-1, (2, heads, size)).unbind(2)
            there = block.mixer.rel_pos_proj(sinusoids(distance.flatten(), width, x.dtype)).view(length, keys, heads, size)
            score = torch.einsum("bihd,bjhd->bhij", query + content, key)
            score = (score + torch.einsum("bihd,ijhd->bhij", query + position, there)) / size**0.5
            share = score.masked_fill(masked, -torch.inf).softmax(-1)
            x = block.norms[0](x + block.mixer.o_proj(torch.einsum("bhij,bjhd->bihd", share, value).flatten(2)))
            x = block.norms[1](x + block.down_proj(block.up_proj(x).relu()))
        outputs.append(x)
    return torch.cat(outputs, 1)


def read(network, segments):
    memory, outputs = network.init_memory(len(segments[0])), []
    for tokens in segments:
        hidden, memory = network.read(tokens, memory)
        outputs.append(hidden)
    return torch.cat(outputs, 1)


@needs_golden
def test_the_attention_written_plainly_is_that_of_the_authors_code():
    parts = golden("txl_base")
    network = build_network(CASES["txl_base"], 100)
    network.load_state_dict(ours(parts["state"], 3))
    hidden = published(network, [parts["recs"][f"{segment}/data"].T for segment in range(4)], 12)
    target = torch.cat([parts["recs"][f"{segment}/target"].T for segment in range(4)], 1)
    loss = -network.log_probs(hidden.flatten(0, 1), target.flatten()).view(2, 32).T
    assert torch.allclose(loss, torch.cat([parts["recs"][f"{segment}/loss"] for segment in range(4)]), atol=1e-5)


def random_network(config):
    with SeededRng(0).fork_torch_rng():
        network = build_network(config, 100)
        for weight in network.parameters():
            torch.nn.init.normal_(weight, std=0.2)
    return network


@pytest.mark.parametrize("mem_len", [5, 12])
def test_a_published_mem_len_with_same_length_counts_the_position_itself(mem_len):
    """In training and in evaluation, for segments shorter and longer than it; a span of mem_len itself is another model."""
    segments = torch.split(torch.randint(100, (2, 32), generator=torch.Generator().manual_seed(1)), 8, 1)
    network = random_network(CASES["txl_base"]).eval()
    expected, span = published(network, segments, mem_len, same_length=True), published_attention_span(mem_len)
    for attention_span, equal in ((span, True), (mem_len, False)):
        network.set_attention_span(attention_span, None)
        difference = (read(network, segments) - expected).abs()
        assert bool(difference[:, :mem_len].max() < 1e-5) and bool(difference.max() < 1e-5) is equal
    learning = random_network(replace(CASES["txl_base"], memory=span, same_length=True)).train()
    assert torch.allclose(read(learning, segments), expected, atol=1e-5)
    with pytest.raises(ValueError, match="itself among them, so mem_len is not 0"):
        published_attention_span(0)


def test_distances_are_clamped_in_training_too():
    segments = torch.split(torch.randint(100, (2, 32), generator=torch.Generator().manual_seed(1)), 8, 1)
    for clamp_len in (None, 1, 7, 100):
        network = random_network(replace(CASES["txl_base"], clamp_len=clamp_len)).train()
        expected = published(network, segments, 12, clamp_len=clamp_len)
        assert torch.allclose(read(network, segments), expected, atol=1e-5)
        free = published(network, segments, 12)
        assert torch.allclose(free, expected, atol=1e-3) is (clamp_len in (None, 100))
