import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from energies.classifiers import write_classifier

from esscher.bases.network import build_base
from esscher.core.estimate import Estimate
from esscher.core.manifest import MANIFEST
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, sequences
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.serialization import SavedLogLinear, base_digest, load_energy, save_energy
from esscher.networks.recurrent_config import LstmConfig


def some_energy() -> SavedLogLinear:
    weights = (Estimate(1.5, 1.0, 2.0, 0.95, 100, "Newton"), Estimate(-0.5, -0.6, -0.4, 0.95, 100, "Newton"))
    features = (FeatureSpec("contains", "é|x", name="odd <one>"), FeatureSpec("characters"))
    return SavedLogLinear(features, weights, "runs/a", "abc", Estimate.exact(0.25, unit="nats"), 3)


def test_an_energy_survives_its_folder(tmp_path):
    saved = some_energy()
    loaded = load_energy(save_energy(tmp_path / "energy", saved))
    assert loaded == saved
    energy = loaded.energy(lambda points: ["é|x" if 1 in point else "a" for point in points])
    assert torch.allclose(energy(sequences([[1], [2]])), torch.tensor([-1.5 + 1.5, 0.5], dtype=torch.float64))


def test_an_energy_knows_its_base_by_weights_and_space():
    base = build_base(LstmConfig(width=4, layers=1), Space(3, 5, eos=0), rng=SeededRng(0))
    fitted = replace(some_energy(), base_digest=base_digest(base))
    fitted.check_base(base)
    other = build_base(LstmConfig(width=4, layers=1), Space(3, 5, eos=0), rng=SeededRng(1))
    longer = build_base(LstmConfig(width=4, layers=1), Space(3, 6, eos=0), rng=SeededRng(0))
    endless = build_base(LstmConfig(width=4, layers=1), Space(3, 5), rng=SeededRng(0))
    for wrong in (other, longer, endless):
        with pytest.raises(ValueError, match=r"fitted on the base in runs/a .* fit the energy anew"):
            fitted.check_base(wrong)


def test_folders_that_hold_no_energy(tmp_path):
    with pytest.raises(FileNotFoundError, match="no energy in"):
        load_energy(tmp_path)
    folder = save_energy(tmp_path, some_energy())
    (folder / MANIFEST).unlink()
    config = folder / "config.json"
    text = config.read_text()
    for wrong, message in [
        (text[:40], "config.json is not valid JSON"),
        (text.replace("log-linear", "lstm"), "not an energy"),
        (text.replace('"seed"', '"sed"'), "has keys"),
    ]:
        config.write_text(wrong)
        with pytest.raises(ValueError, match=message):
            load_energy(folder)


def test_folders_written_before_are_read_as_before(tmp_path):
    folder = save_energy(tmp_path, some_energy())
    features = [{"kind": "contains", "value": "é|x", "name": "odd <one>"}, {"kind": "characters", "value": "", "name": ""}]
    config = json.loads((folder / "config.json").read_text())
    assert config["features"] == [features[0], {"kind": "characters"}]
    (folder / "config.json").write_text(json.dumps(config | {"features": features}))
    (folder / MANIFEST).unlink()
    assert load_energy(folder) == some_energy()


def test_every_setting_survives_the_folder(tmp_path):
    features = (
        FeatureSpec("lacks", "1 0 1", "m", "tokens"),
        FeatureSpec("starts-with", "0", "d0", "tokens", negated=True),
        FeatureSpec("words", at_least=3.0),
        FeatureSpec("word-list", "happy,glad", measure="count"),
        FeatureSpec("ngram-overlap", "a b", n=2),
    )
    saved = replace(some_energy(), features=features, weights=(Estimate.exact(1.0),) * 5)
    loaded = load_energy(save_energy(tmp_path, saved))
    assert loaded == saved
    energy = loaded.energy(lambda points: ["a b glad"] * len(points))
    assert energy(sequences([[0, 1], [1, 0, 1]])).tolist() == [-(1 + 0 + 1 + 1 + 0.5), -(0 + 1 + 1 + 1 + 0.5)]
    tokens = replace(saved, features=features[:2], weights=saved.weights[:2])
    assert tokens.energy()(sequences([[0, 1]])).tolist() == [-1]


def test_files_that_features_read_are_known_by_their_content(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("happy\n")
    write_classifier(tmp_path / "mood")
    features = (FeatureSpec("word-list", file="list.txt"), FeatureSpec("classifier", "mood", label="good"))
    saved = load_energy(save_energy(tmp_path / "energy", replace(some_energy(), features=features)))
    assert [feature.title for feature in saved.features] == [feature.title for feature in features]
    assert [len(feature.digest) for feature in saved.features] == [32, 32]
    assert load_energy(save_energy(tmp_path / "again", saved)) == saved
    monkeypatch.chdir("/")
    before = saved.energy(lambda points: ["happy cat"])(sequences([[1]]))
    (tmp_path / "mood" / "README.md").write_text("a page says nothing about scores")
    assert torch.equal(saved.energy(lambda points: ["happy cat"])(sequences([[1]])), before)
    write_classifier(tmp_path / "mood", seed=1)
    with pytest.raises(ValueError, match=r"'classifier good mood' was declared with another .*mood: .* digest .* fit anew"):
        saved.energy(lambda points: [""])
    with pytest.raises(ValueError, match="declared with another"):
        save_energy(tmp_path / "energy", saved)
    Path(tmp_path / "list.txt").write_text("happy\nglad\n")
    with pytest.raises(ValueError, match=r"'word-list list.txt' was declared with another .*restore the file, or fit anew"):
        saved.energy(lambda points: [""])
    Path(tmp_path / "list.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"reads the file .*list.txt, which is not there"):
        saved.energy(lambda points: [""])


def test_a_feature_that_cannot_be_used_names_the_file(tmp_path):
    config = save_energy(tmp_path, some_energy()) / "config.json"
    config.write_text(config.read_text().replace('"contains"', '"holds"'))
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(ValueError, match=r"config.json does not describe an energy: No feature of kind 'holds'"):
        load_energy(tmp_path)
