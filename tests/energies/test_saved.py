import pytest
import torch

from esscher.energies.declared import Declared
from esscher.energies.saved import SavedEnergy, load_energy, save_energy
from esscher.estimate import Estimate
from esscher.space import sequences


def some_energy() -> SavedEnergy:
    weights = (Estimate(1.5, 1.0, 2.0, 0.95, 100, "Newton"), Estimate(-0.5, -0.6, -0.4, 0.95, 100, "Newton"))
    features = (Declared("contains", "é|x", name="odd <one>"), Declared("characters"))
    return SavedEnergy(features, weights, "runs/a", "abc", Estimate.exact(0.25, unit="nats"), 3)


def test_an_energy_survives_its_folder(tmp_path):
    saved = some_energy()
    loaded = load_energy(save_energy(tmp_path / "energy", saved))
    assert loaded == saved
    energy = loaded.energy(lambda points: ["é|x" if 1 in point else "a" for point in points])
    assert torch.allclose(energy(sequences([[1], [2]])), torch.tensor([-1.5 + 1.5, 0.5], dtype=torch.float64))
    with pytest.raises(ValueError, match=r"fitted on the base in runs/a .* fit it anew"):
        loaded.check_base("def")


def test_folders_that_hold_no_energy(tmp_path):
    with pytest.raises(FileNotFoundError, match="no energy in"):
        load_energy(tmp_path)
    folder = save_energy(tmp_path, some_energy())
    config = folder / "config.json"
    text = config.read_text()
    for wrong, message in [
        (text[:40], "does not describe"),
        (text.replace("log-linear", "lstm"), "not an energy"),
        (text.replace('"seed"', '"sed"'), "has keys"),
    ]:
        config.write_text(wrong)
        with pytest.raises(ValueError, match=message):
            load_energy(folder)
