"""Manifests: what was written is what is loaded, or an error says what differs and what to do."""

import json
import shutil
from pathlib import Path

import pytest
from cli_calls import call
from safetensors.torch import load_file, save_file

from esscher.bases.network import build_base
from esscher.core.estimate import Estimate
from esscher.core.manifest import MANIFEST, check_manifest, compare_with_manifest, write_manifest
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.data.tokenizers import character_tokenizer, load_tokenizer
from esscher.energies.feature_spec import FeatureSpec
from esscher.energies.serialization import SavedLogLinear, load_energy, save_energy
from esscher.hub import load_base, save_base
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.transformer_config import TransformerConfig

TOKENIZER = character_tokenizer("ab", unknown=False)
SPACE = Space(3, 5, eos=0)


@pytest.fixture
def folder(tmp_path):
    base = build_base(LstmConfig(width=4), SPACE, rng=SeededRng(0))
    return save_base(tmp_path / "model", base, TOKENIZER)


def edited(folder, file="config.json", accept=True, **values):
    """Change keys of a file, dotted with double underscores; with the manifest written anew, as after a deliberate edit."""
    content = json.loads((folder / file).read_text())
    for key, value in values.items():
        *path, last = key.split("__")
        holder = content
        for name in path:
            holder = holder[name]
        holder[last] = value
    (folder / file).write_text(json.dumps(content))
    if accept:
        write_manifest(folder)


def test_every_file_is_recorded_and_an_untouched_folder_loads(folder):
    records = json.loads((folder / MANIFEST).read_text())
    assert set(records) == {file.name for file in folder.iterdir()} - {MANIFEST}
    assert all(record["bytes"] == (folder / name).stat().st_size for name, record in records.items())
    assert not compare_with_manifest(folder)
    load_base(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"])
def test_a_changed_or_missing_file_is_refused_by_name(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    with pytest.raises(ValueError, match=rf"{name} is not what was written: it has \d+ bytes.*says.*verify .* --accept"):
        load_base(folder)
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"There is no file .*{name}; {MANIFEST} says \d+ bytes.*restore"):
        load_base(folder)


def test_weights_of_another_training_are_refused_although_they_fit(folder):
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor + 1e-3 for name, tensor in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors is not what was written"):
        load_base(folder)


def test_a_file_that_came_later_is_refused_if_loading_reads_it(folder):
    (folder / "notes.txt").write_text("mine")
    (folder / "README.md").write_text("a better card")
    load_base(folder)
    (folder / "special_tokens_map.json").write_text('{"eos_token": "b"}')
    with pytest.raises(ValueError, match=r"special_tokens_map\.json is not in esscher-manifest\.json"):
        load_base(folder)


def test_a_folder_from_elsewhere_loads_without_a_word(folder, capsys):
    (folder / MANIFEST).unlink()
    load_base(folder)
    assert capsys.readouterr() == ("", "")
    (folder / "manifest.json").write_text("not ours")
    load_base(folder)


@pytest.mark.parametrize(
    "content", ["", "[]", '{"config.json": 3}', '{"../x": {"bytes": 1, "sha256": ""}}', '{"config.json": {}}']
)
def test_a_damaged_manifest_is_an_error_that_names_it(folder, content):
    (folder / MANIFEST).write_text(content)
    with pytest.raises(ValueError, match=rf"{MANIFEST}.*--accept"):
        load_base(folder)


def test_the_weight_of_a_feature(tmp_path):
    weights, log_z = (Estimate.exact(1.5),), Estimate.exact(0.25)
    save_energy(tmp_path, SavedLogLinear((FeatureSpec("contains", "a"),), weights, "base", "digest", log_z, 0))
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace("1.5", "2.5"))
    with pytest.raises(ValueError, match=r"config\.json is not what was written"):
        load_energy(tmp_path)
    for wrong, message in [
        (text.replace('"low": 1.5', '"low": "1.5"'), "weights.low"),
        (text.replace('"weights"', '"wights"'), "has keys"),
    ]:
        (tmp_path / "config.json").write_text(wrong)
        write_manifest(tmp_path)
        with pytest.raises(ValueError, match=rf"config\.json .*{message}"):
            load_energy(tmp_path)


def test_a_tokenizer_alone(tmp_path):
    TOKENIZER.save(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text()
    (tmp_path / "tokenizer.json").write_text(text.replace('"a": 1', '"b": 1').replace('"b": 2', '"a": 2'))
    with pytest.raises(ValueError, match=r"tokenizer\.json is not what was written"):
        load_tokenizer(tmp_path)


def test_only_named_files_are_recorded_anew(folder):
    (folder / "config.json").write_text("{}")
    (folder / "results.json").write_text("{}")
    write_manifest(folder, ["results.json", "nothing"])
    assert compare_with_manifest(folder).changed == ("config.json",)
    check_manifest(folder, ["results.json"])


def test_consistency_of_what_was_accepted(folder):
    """Edits that were accepted, or made elsewhere, still must fit each other."""
    for values, message in [
        ({"eos_token_id": 1}, r"config\.json does not describe a base: eos_token_id is 1, and by its Space\(.* it is 0"),
        ({"space__eos": 2, "eos_token_id": 2}, r"tokenizer_config\.json is token 0, and space\.eos in .*config\.json is 2"),
        ({"vocab_size": 9}, r"config\.json .* vocab_size is 9"),
        ({"space__max_length": "5"}, r"config\.json .*'space\.max_length' is '5', of type str, not int"),
        ({"base__width": 6}, r"model\.safetensors does not fit the model"),
    ]:
        copy = Path(shutil.copytree(folder, folder.parent / "copy", dirs_exist_ok=True))
        edited(copy, **values)
        with pytest.raises(ValueError, match=message):
            load_base(copy)


def test_longer_points_than_the_weights_have_positions(tmp_path):
    config = TransformerConfig(width=4, heads=1, layers=1, max_positions=5)
    folder = save_base(tmp_path, build_base(config, SPACE, rng=SeededRng(0)), TOKENIZER)
    edited(folder, space__max_length=6)
    with pytest.raises(ValueError, match=r"max_length in .*config\.json is 6, and the weights in .* have 5 positions"):
        load_base(folder)
    assert load_base(folder, max_length=4)[0].space.max_length == 4
    with pytest.raises(ValueError, match=r"max_length in the settings is 7"):
        load_base(folder, max_length=7)


def test_verify_says_what_differs_and_accepts_it(folder, capsys):
    assert call(capsys, "verify", str(folder))[0] == 0
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    (folder / "tokenizer.json").unlink()
    (folder / "new.json").write_text("{}")
    code, out, _ = call(capsys, "verify", str(folder), "--json")
    rows = {Path(row["file"]).name: row["what"] for row in json.loads(out.splitlines()[-1])["differences"]}
    assert (code, rows) == (1, {"tokenizer.json": "missing", "config.json": "changed", "new.json": "added"})
    assert call(capsys, "verify", str(folder), "--accept")[0] == 0
    assert call(capsys, "verify", str(folder))[0] == 0
    (folder / MANIFEST).unlink()
    code, _, err = call(capsys, "verify", str(folder))
    assert code == 1 and "is from elsewhere or unfinished. Nothing was compared" in err
    code, _, err = call(capsys, "verify", str(folder / "nothing"))
    assert code == 1 and "There is no folder" in err


def test_a_link_out_of_the_folder_is_refused_before_it_is_read(tmp_path):
    folder, outside = tmp_path / "model", tmp_path / "secret.json"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    write_manifest(folder)
    outside.write_text("secret")
    outside.chmod(0)  # reading it would be an error of its own, unless for root
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").symlink_to(outside)
    with pytest.raises(ValueError, match=r"is a link to .*secret\.json, outside of its folder. Nothing was read"):
        check_manifest(folder)
