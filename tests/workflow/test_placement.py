"""Where a model computes and in what precision: an energy belongs to a base, not to a dtype; what learns is float32."""

import pytest
import torch
from marks import slow
from small_networks import lively
from transformers import LlamaConfig, LlamaForCausalLM

import esscher
from esscher.bases.causal_lm import causal_lm
from esscher.core.device import device_of, place, resolve_device
from esscher.core.space import Space
from esscher.data.tokenizers import train_tokenizer
from esscher.energies.config import EnergyConfig
from esscher.hub import load_base, save_base
from esscher.networks.recurrent_config import GruConfig
from esscher.networks.transformer_config import TransformerConfig
from esscher.training.config import DistilConfig
from esscher.workflow.config.distil import DistilTraining
from esscher.workflow.config.tilt import ContrastConfig, ContrastTraining

ENERGY = {"energy": EnergyConfig(network=GruConfig(8, 1)), "training": ContrastTraining(steps=3, batch_size=8),
          "contrast": ContrastConfig(draws=64, held_out=8)}  # fmt: skip


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "bits.txt"
    file.write_text("\n".join(f"{number:06b}" for number in range(60)) + "\n")
    return str(file)


def network_folder(folder):
    tokenizer = train_tokenizer("character", ["01"])
    return str(
        save_base(
            folder,
            lively(TransformerConfig(16, 1, 2, 16, max_positions=16), Space(tokenizer.vocab_size, 8, eos=tokenizer.eos)),
            tokenizer,
        )
    )


def llama_folder(folder, dtype):
    tokenizer = train_tokenizer("character", ["01"])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=tokenizer.vocab_size, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=32, bos_token_id=tokenizer.eos, eos_token_id=tokenizer.eos,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    base = causal_lm(model, max_length=8, eos=tokenizer.eos)
    return str(save_base(folder, place(base, "cpu", dtype), tokenizer))


@pytest.mark.parametrize(
    ("fitted", "used"), [("bfloat16", "float32"), slow("float32", "bfloat16"), slow("float16", "bfloat16")]
)
def test_an_energy_of_one_dtype_tilts_the_base_in_another(tmp_path, texts, fitted, used):
    folder = network_folder(tmp_path / "base")
    tilted = esscher.load(folder, device="cpu", dtype=fitted).tilt(data=texts, out=str(tmp_path / "energy"), **ENERGY)
    assert tilted.dtype == getattr(torch, fitted)
    again = esscher.load(folder, str(tmp_path / "energy"), device="cpu", dtype=used)
    assert again.dtype == getattr(torch, used) and again.base_digest == esscher.load(folder, device="cpu").base_digest
    assert {weight.dtype for weight in again.target.energy.parameters()} == {torch.float32}
    assert len(again.sample(draws=3).texts) == 3


def test_another_base_is_refused_in_every_dtype(tmp_path, texts):
    folder = network_folder(tmp_path / "base")
    esscher.load(folder, device="cpu").tilt(data=texts, out=str(tmp_path / "energy"), **ENERGY)
    tokenizer = train_tokenizer("character", ["01"])
    space = Space(tokenizer.vocab_size, 8, eos=tokenizer.eos)
    other = str(
        save_base(tmp_path / "other", lively(TransformerConfig(16, 1, 2, 16, max_positions=16), space, seed=9), tokenizer)
    )
    for dtype in ("auto", "bfloat16"):
        with pytest.raises(ValueError, match="meaningless there"):
            esscher.load(other, str(tmp_path / "energy"), device="cpu", dtype=dtype)


def test_a_student_of_a_rounded_model_learns_in_float32(tmp_path):
    model = esscher.load(network_folder(tmp_path / "base"), device="cpu", dtype="bfloat16")
    tilted = model.tilt(want=["contains:11=0.5"], out=str(tmp_path / "energy"))
    student = tilted.distil(
        out=str(tmp_path / "plain"), training=DistilTraining(steps=2, batch_size=8),
        distil=DistilConfig(draws=30, candidates=40, evaluation_draws=10),
    )  # fmt: skip
    assert student.dtype == torch.float32 and student.device == model.device
    assert model.dtype == torch.bfloat16


def test_a_saved_bfloat16_model_is_float32_on_a_cpu_and_keeps_its_frequencies(tmp_path):
    folder = llama_folder(tmp_path / "llama", torch.bfloat16)
    model = esscher.load(folder, device="cpu")
    assert model.dtype == torch.float32
    rounded = esscher.load(folder, device="cpu", dtype="bfloat16")
    assert rounded.dtype == torch.bfloat16 and rounded.base_digest == model.base_digest
    inside = dict(rounded.base.named_buffers())
    assert {buffer.dtype for name, buffer in inside.items() if "inv_freq" in name} == {torch.float32}
    assert load_base(folder)[0].model.dtype == torch.float32


def test_reports_say_where(tmp_path):
    folder = network_folder(tmp_path / "base")
    for dtype in ("float32", "bfloat16"):
        assert esscher.load(folder, device="cpu", dtype=dtype).sample(draws=1).report.facts["device"] == f"cpu, {dtype}"


@pytest.mark.parametrize("name", ["hexagon", "cuda:99", "cuda:-1"])
def test_a_device_that_is_not_there_is_named(name):
    with pytest.raises(ValueError, match=f"There is no device '{name}'"):
        resolve_device(name)


def test_a_part_is_moved_with_all_that_it_holds():
    base = lively(TransformerConfig(16, 1, 2, 16, max_positions=16), Space(3, 4, eos=0))
    assert device_of(base) == torch.device("cpu") and device_of(3, "text", None) is None
    assert device_of(place((base, torch.zeros(2)), "meta")[1]) == torch.device("meta")
    assert device_of(base) == torch.device("meta")  # networks are moved in place
