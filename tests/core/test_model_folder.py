"""The door to models of `transformers`: the only caller of what loads them, and what a folder may not name."""

import ast
import json
from pathlib import Path

import pytest
import torch
from causal_models import tiny_model
from energies.classifiers import write_classifier

import esscher
from esscher.core.memory import machine_memory
from esscher.core.model_folder import check_folder, load_pretrained, model_from_config
from esscher.core.randomness import SeededRng
from esscher.core.space import Space
from esscher.energies.encoders import load_encoder
from esscher.energies.pretrained import read_tokenizer
from esscher.hub import load_base

PACKAGE = Path(esscher.__file__).parent
DOORS = {  # what is called, and the files that may
    "from_pretrained": {"core/model_folder.py"},
    "from_config": {"core/model_folder.py"},
    "load_dataset": {"data/sources.py"},
    "load_from_disk": set(),
    "torch.load": set(),
    "np.load": {"data/images.py"},
    "pickle.load": set(),
    "pickle.loads": set(),
    "yaml.load": set(),
    "yaml.safe_load": {"core/reading.py"},
    "gzip.open": {"core/bounded_files.py"},
    "gzip.decompress": set(),
    "zipfile.ZipFile": {"core/bounded_files.py", "papers/eforcing/translation.py"},  # there of the project's own data
    "Console": {"core/console.py"},
    "print": {"core/console.py", "explorer/config.py"},  # there its own address
    "eval": {"cli/binding.py"},  # of the package's own annotations
    "exec": set(),
}


def calls() -> list[tuple[str, str, int]]:
    """The name of every call in the package, with its file and line."""
    found = []
    for file in sorted(PACKAGE.rglob("*.py")):
        source = file.read_text(encoding="utf8")
        if not any(f"{name.rpartition('.')[2]}(" in source for name in DOORS):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                found.append((ast.unparse(node.func), file.relative_to(PACKAGE).as_posix(), node.lineno))
    return found


def test_nothing_loads_or_prints_beside_the_doors():
    beside = []
    for name, file, line in calls():
        door = name if name in DOORS else name.rpartition(".")[2] if name.rpartition(".")[2] in list(DOORS)[:4] else None
        if door is not None and file not in DOORS[door]:
            beside.append(f"{file}:{line} calls {name}")
    assert not beside, "\n".join(beside)


@pytest.fixture
def folder(tmp_path):
    tiny_model("gpt2", vocab_size=8).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change(file: Path, **values) -> None:
    settings = json.loads(file.read_text()) if file.is_file() else {}
    file.write_text(json.dumps({**settings, **values}))


@pytest.mark.parametrize("model_type", ["gpt2", "strange"])
def test_code_is_refused_before_a_question_is_asked(folder, monkeypatch, model_type):
    (folder / "evil.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    change(folder / "config.json", model_type=model_type, auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M"})
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    for load in (load_base, load_encoder, lambda where: read_tokenizer(where, "encoder")):
        with pytest.raises(ValueError, match=r"config.json has 'auto_map': .* Nothing was loaded or run"):
            load(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.T", None]}}, "has 'auto_map'"),
        ("config.json", {"text_config": {"auto_map": {"AutoConfig": "evil.C"}}}, "has 'auto_map'"),
        ("config.json", {"_attn_implementation": "someone/kernel"}, "names compiled code"),
        ("config.json", {"use_pretrained_backbone": True, "backbone": "other"}, "another model would be loaded"),
        ("adapter_config.json", {"base_model_name_or_path": "/other/base"}, "adapter.*'/other/base'"),
    ],
)
def test_other_code_and_other_models(folder, name, settings, message):
    change(folder / name, **settings)
    with pytest.raises(ValueError, match=message):
        load_base(folder)


@pytest.mark.parametrize("named", ["pytorch_model.bin", "../other.safetensors", "/other.safetensors", "sub/model.safetensors"])
def test_an_index_names_safetensors_of_its_folder(folder, named):
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    change(folder / "model.safetensors.index.json", metadata={}, weight_map={"a": "model-1.safetensors", "b": named})
    with pytest.raises(ValueError, match=f"names the weights '{named}'"):
        load_base(folder)


def test_files_and_links_outside(folder, tmp_path, monkeypatch):
    secret = tmp_path / "secret.json"
    secret.write_text("{}")
    change(folder / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer", vocab_file=str(secret))
    with pytest.raises(ValueError, match=r"names the file .*secret.json' \(vocab_file\), outside"):
        load_pretrained("AutoTokenizer", folder)
    monkeypatch.chdir(tmp_path)
    change(folder / "tokenizer_config.json", vocab_file=None, init_inputs=["secret.json"])
    with pytest.raises(ValueError, match=r"names the file 'secret.json' \(init_inputs\)"):
        load_pretrained("AutoTokenizer", folder)
    (folder / "tokenizer_config.json").unlink()
    (folder / "vocab.json").symlink_to(secret)
    with pytest.raises(ValueError, match=r"vocab.json is a link to .*secret.json, outside of its folder"):
        load_base(folder)


def test_a_snapshot_in_the_cache_is_links(tmp_path):
    snapshot, blobs = tmp_path / "models--x/snapshots/abc", tmp_path / "models--x/blobs"
    tiny_model("gpt2", vocab_size=8).save_pretrained(blobs)
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(f"../../blobs/{file.name}")
    assert load_base(snapshot)[0].space.vocab_size == 8
    check_folder(snapshot)


def test_weights_that_no_machine_holds(folder, tmp_path):
    change(folder / "config.json", n_layer=10**7)
    with pytest.raises(ValueError, match=r"has 1,\d+ tensors of weights or more"):
        load_base(folder)
    change(folder / "config.json", n_layer=2, vocab_size=10**12)
    with pytest.raises(ValueError, match=r"needs more than .* GiB for its weights, and this machine has"):
        load_base(folder)
    write_classifier(tmp_path / "bert", head=False)
    config = load_pretrained("AutoConfig", tmp_path / "bert")
    state = torch.random.get_rng_state()
    config.hidden_size = 10**9
    with pytest.raises(ValueError, match="GiB"):
        model_from_config("AutoModel", config)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("settings", [{"layers": 10**7}, {"width": 10**9}, {"kind": "trellisnet", "layers": 10**7}])
def test_networks_that_no_machine_holds(settings):
    from esscher.bases.network import build_base
    from esscher.networks.registry import NETWORKS

    with pytest.raises(ValueError, match=r"A network of kind \w+ (needs|has) .* Nothing was built"):
        build_base(NETWORKS.from_dict(settings), Space(5, 4, eos=0), rng=SeededRng(0))
    assert machine_memory() > 2**28
