"""Folders of energies that are networks: they give the same energy again, refuse another base, and name what is missing."""

import json
import sys

import pytest
import torch
from causal_models import tiny_base
from energies.encoders import MAKERS, built, decode, encoder_folder, own_base
from energies.test_network import X

from esscher.core.estimate import Estimate
from esscher.core.manifest import MANIFEST
from esscher.core.randomness import SeededRng
from esscher.energies.config import EnergyConfig
from esscher.energies.network import build_energy
from esscher.energies.serialization import Origin, SavedNetworkEnergy, base_digest, load_energy, save_network_energy

LOG_Z = Estimate(-0.1, -0.2, 0.0, 0.95, 1000, "importance", "nats")


def origin(base) -> Origin:
    return Origin("runs/a", base_digest(base), LOG_Z, 3)


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_survives_its_folder(kind, tmp_path):
    base, energy = MAKERS[kind](tmp_path)
    folder = save_network_energy(tmp_path / "energy", energy, origin(base))
    saved = load_energy(folder)
    assert isinstance(saved, SavedNetworkEnergy) and saved.log_z == LOG_Z
    saved.check_base(base)
    loaded = saved.energy(decode, base)
    assert not loaded.training
    assert torch.equal(loaded(X), energy(X))
    again = load_energy(save_network_energy(tmp_path / "again", loaded, saved.origin))
    assert torch.equal(again.energy(decode, base)(X), energy(X))
    assert not list(folder.rglob("*.bin")) and "log Z = -0.1" in (folder / "README.md").read_text()


def test_another_base_is_refused(tmp_path):
    base = own_base("transformer, rotary")
    saved = load_energy(save_network_energy(tmp_path, built(base), origin(base)))
    with pytest.raises(ValueError, match=r"fitted on the base in runs/a .* fit the energy anew"):
        saved.check_base(own_base("gru, tied"))


def test_what_an_energy_needs_is_named(tmp_path):
    base = own_base("gru, tied")
    shared = save_network_energy(tmp_path / "shared", built(base, kind="shared"), origin(base))
    with pytest.raises(ValueError, match=r"reads its base.*give the base too"):
        load_energy(shared).energy(decode)
    text = built(base, kind="encoder", encoder=encoder_folder(tmp_path))
    with pytest.raises(ValueError, match=r"reads text.*give the base's decoder"):
        load_energy(save_network_energy(tmp_path / "text", text, origin(base))).energy()


def test_folders_that_were_changed(tmp_path):
    base = own_base("transformer, rotary")
    folder = save_network_energy(tmp_path, built(base), origin(base))
    (folder / MANIFEST).unlink()
    config = folder / "config.json"
    text = config.read_text()
    for wrong, message in [
        (text.replace('"seed"', '"sed"'), "has keys"),
        (text.replace('"bound": null', '"bound": -1.0'), "does not describe an energy: The bound of an energy"),
        (text.replace("bidirectional-energy", "sideways-energy"), "not an energy .esscher-log-linear, esscher-uni"),
    ]:
        config.write_text(wrong)
        with pytest.raises(ValueError, match=message):
            load_energy(folder)
    config.write_text(json.dumps(json.loads(text) | {"vocab_size": 4}))
    with pytest.raises(ValueError, match="another vocabulary or width"):
        load_energy(folder).energy()
    config.write_text(text)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])
    with pytest.raises(ValueError, match=r"model.safetensors is corrupted"):
        load_energy(folder).energy()


def test_adapters_without_peft_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"lora=2 needs the package peft, which is not installed.*pip install peft"):
        build_energy(EnergyConfig("unidirectional", lora=2), tiny_base("llama"), rng=SeededRng(0))


@pytest.mark.parametrize("kind", ["unidirectional", "encoder"])
def test_adapters_learn_beside_frozen_weights_and_are_saved_as_one(kind, tmp_path):
    pytest.importorskip("peft")
    base = tiny_base("llama")
    where = {"encoder": encoder_folder(tmp_path)} if kind == "encoder" else {}
    energy = built(base, kind=kind, lora=2, **where)
    learning = [name for name, weight in energy.named_parameters() if weight.requires_grad]
    assert learning and all("lora_" in name or name.startswith("head.") for name in learning)
    plain = built(base, kind=kind, **where)
    assert torch.allclose(energy(X), plain(X), atol=1e-5)
    with torch.no_grad():
        for name, weight in energy.named_parameters():
            if "lora_B" in name:
                weight.add_(0.3)
    assert not torch.allclose(energy(X), plain(X), atol=1e-2)
    loaded = load_energy(save_network_energy(tmp_path / "energy", energy, origin(base))).energy(decode)
    assert not any("lora" in name for name, _ in loaded.named_parameters())
    assert torch.allclose(loaded(X), energy(X), atol=1e-4)
    assert any("lora_" in name for name, _ in energy.named_parameters())
