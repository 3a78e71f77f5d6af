"""Every verb on `auto`, which is the GPU here, and on `cpu`: it runs to its end, says where, and gives the CPU's numbers."""

import json

import pytest
import torch
from cli_calls import answer
from marks import slow_except
from small_networks import CONFIGS, lively
from transformers import GPT2Config, GPT2LMHeadModel

from esscher.bases.causal_lm import causal_lm
from esscher.core.space import Space
from esscher.data.tokenizers import train_tokenizer
from esscher.hub import save_base

FLOAT32 = ("--training.precision", "float32")
FEW_STEPS = ("--training.steps", "3", "--training.batch-size", "10", *FLOAT32)
SMALL_BASE = ("--base.kind", "transformer", "--base.width", "8", "--base.layers", "1", "--base.heads", "2",
              "--base.feedforward", "16")  # fmt: skip
SMALL_ENERGY = ("--energy.network.kind", "transformer", "--energy.network.width", "8", "--energy.network.heads", "2",
                "--energy.network.feedforward", "16")  # fmt: skip
TILTED = ("{run}/base", "--energy", "{run}/energy")
TEXTS = ("--data", "{run}/bits.txt")
BOOK = ("--data", "{run}/book.txt", "--tokenizer.kind", "byte", "--base.width", "8", *FEW_STEPS)
VERBS = {  # in an order in which each finds what it reads
    "train": ("train", "--out", "{run}/base", "--data", "motif:101", "--data.length", "12", "--data.size", "100", *SMALL_BASE,
              *FEW_STEPS),
    "train, resumed": ("train", "--out", "{run}/base", "--data", "motif:101", "--data.length", "12", "--data.size", "100",
                       *SMALL_BASE, *FEW_STEPS, "--resume"),
    "train by E-Forcing": ("train", "--out", "{run}/forced", "--data", "motif:101", "--data.length", "12", "--data.size", "100",
                           "--base.kind", "lstm", "--base.width", "8", "--objective.kind", "eforcing", *FEW_STEPS),
    "train a stream": ("train", "--out", "{run}/stream", *BOOK, "--base.kind", "transformer-xl", "--base.layers", "1",
                       "--base.heads", "2", "--base.memory", "8", "--length.tokens", "8", "--length.stream"),
    "train permutations": ("train", "--out", "{run}/xlnet", *BOOK, "--base.kind", "xlnet", "--base.layers", "1", "--base.heads",
                           "2", "--objective.kind", "permutation-lm", "--length.tokens", "16"),
    "tilt": ("tilt", "{run}/base", "--out", "{run}/energy", *SMALL_ENERGY, *FEW_STEPS,
             "--contrast.draws", "100", "--contrast.held-out", "20"),
    "tilt, shared hidden vectors": ("tilt", "{run}/base", "--out", "{run}/shared", "--energy.kind", "shared", *FEW_STEPS,
                                    "--contrast.draws", "100", "--contrast.held-out", "20", "--contrast.stored", "4"),
    "tilt by features": ("tilt", "{run}/base", "--out", "{run}/features", "--want", "contains:101=0.5", "--fit.draws", "500"),
    "distil": ("distil", *TILTED, "--out", "{run}/plain", "--distil.draws", "40", "--distil.candidates", "60",
               "--distil.evaluation-draws", "20", "--training.steps", "3", *FLOAT32),
    "distil features": ("distil", "{run}/base", "--energy", "{run}/features", "--out", "{run}/plain2", "--distil.draws", "40",
                        "--distil.candidates", "60", "--distil.evaluation-draws", "20", "--training.steps", "3", *FLOAT32,
                        "--distil.method", "policy-gradient"),
    "sample": ("sample", *TILTED, "--draws", "3"),
    "sample, importance": ("sample", *TILTED, "--draws", "3", "--sampler.kind", "importance"),
    "sample, metropolis": ("sample", *TILTED, "--draws", "3", "--sampler.kind", "metropolis", "--sampler.steps", "5"),
    "sample, particles": ("sample", *TILTED, "--draws", "3", "--sampler.kind", "particles", "--sampler.num-candidates", "8",
                          "--sampler.block", "2", "--sampler.pruning-rounds", "1"),
    "sample, self": ("sample", "{run}/base", "--energy", "self", "--draws", "3", "--prompts", "10"),
    "score": ("score", *TILTED, "--texts", "10110000"),
    "measure": ("measure", *TILTED, *TEXTS, "--draws", "50", "--positions", "3", "--position-draws", "4"),
    "measure a stream": ("measure", "{run}/stream", "--data", "{run}/short.txt", "--stream.segment", "8"),
    "measure, dynamic evaluation": ("measure", "{run}/stream", "--data", "{run}/short.txt", "--dynamic", "--adapt.batches",
                                    "2"),
    "measure, Hugging Face": ("measure", "{run}/gpt2", *TEXTS, "--max-length", "8"),
    "sample, Hugging Face": ("sample", "{run}/gpt2", "--draws", "3", "--max-length", "8", "--prompts", "10"),
    "risk": ("risk", "{run}/gpt2", "--event", "contains:1111111", "--draws", "1000", "--max-length", "8", "--prompt", "10",
             "--prompt", "0"),
    "risk, by a score": ("risk", "{run}/gpt2", "--event", "matches:0000000$", "--draws", "1000", "--max-length", "8", "--runs",
                         "4"),
    "rescore": ("rescore", "{run}/lists.jsonl", "--base", "{run}/base", "--energy", "{run}/energy", "--out",
                "{run}/scored.jsonl"),
    "translate": ("translate", "{run}/translator", "abc", "cab ba"),
    "analyse energies": ("analyse", "energies", *TILTED, *TEXTS, "--sequences", "20", "--draws", "4"),
    "analyse next-token": ("analyse", "next-token", *TILTED, "--prompt", "", "--draws", "16"),
    "analyse n-grams": ("analyse", "n-grams", *TILTED, *TEXTS, "--sequences", "20", "--draws", "4"),
    "analyse discriminate": ("analyse", "discriminate", *TILTED, *TEXTS, "--sequences", "30", "--draws", "2", *FEW_STEPS,
                             "--classifier.network.kind", "gru", "--classifier.network.width", "8"),
    "analyse context": ("analyse", "context", "{run}/stream", "--data", "{run}/book.txt", "--step", "4", "--longest", "8",
                        "--positions", "20"),
    "analyse rank": ("analyse", "rank", "{run}/stream", "--data", "{run}/book.txt", "--contexts", "20", "--length", "4"),
    "analyse exposure": ("analyse", "exposure", "{run}/base", "--against", "{run}/plain", *TEXTS, "--sequences", "20",
                         "--draws", "2"),
    "analyse exposure of a stream": ("analyse", "exposure", "{run}/stream", "--data", "{run}/book.txt", "--sequences", "12",
                                     "--draws", "2", "--longest", "4", "--warmup", "8"),
    "finetune": ("finetune", "{run}/xlnet", "--out", "{run}/classes", "--data", "{run}/classes.csv", "--longest", "16",
                 *FEW_STEPS),
    "predict": ("predict", "{run}/classes", "abc", "gh"),
}  # fmt: skip


def files(run):
    """What the verbs read besides each other's folders."""
    (run / "bits.txt").write_text("\n".join(f"{number:08b}" for number in range(40)) + "\n")
    (run / "book.txt").write_text("".join(f"day {number}: a rainy day\n" for number in range(200)))
    (run / "short.txt").write_text("".join(f"day {number}: a rainy day\n" for number in range(12)))
    lists = [
        {"id": f"list {number}", "candidates": [{"text": f"{number:08b}", "scores": {"score": -1.0}},
         {"text": f"{255 - number:08b}", "scores": {"score": -0.5}}], "reference": f"{number:08b}"}
        for number in range(8)
    ]  # fmt: skip
    (run / "lists.jsonl").write_text("".join(json.dumps(item) + "\n" for item in lists))
    (run / "classes.csv").write_text(
        "text,label\n" + "".join(f"{'ab' if number % 2 else 'gh'} {number},{number % 2}\n" for number in range(40))
    )
    letters, bits = train_tokenizer("character", ["abc "]), train_tokenizer("character", ["01"])
    space = Space(letters.vocab_size, 8, eos=letters.eos)
    save_base(run / "translator", lively(CONFIGS["encoder-decoder"], space, seed=7), letters)
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=bits.vocab_size, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=bits.eos,
                        eos_token_id=bits.eos, pad_token_id=None)  # fmt: skip
    save_base(run / "gpt2", causal_lm(GPT2LMHeadModel(config).eval(), max_length=8, eos=bits.eos), bits)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of each device's chain of verbs."""
    folders = {device: tmp_path_factory.mktemp(device) for device in ("cpu", "auto")}
    for folder in folders.values():
        files(folder)
    return folders


def numbers(value):
    """All numbers of an answer, without paths, times and the device."""
    if isinstance(value, dict):
        return {
            key: numbers(item)
            for key, item in value.items()
            if "second" not in key and key not in ("device", "kept", "seconds")
        }
    if isinstance(value, list):
        return [numbers(item) for item in value]
    return value if isinstance(value, int | float) else None


def assert_close(actual, expected, where=""):
    """Equal but for rounding: a real GPU sums in another order."""
    if isinstance(expected, dict):
        assert set(actual) == set(expected), where
        for key, value in expected.items():
            assert_close(actual[key], value, f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(actual) == len(expected), where
        for place, value in enumerate(expected):
            assert_close(actual[place], value, f"{where}[{place}]")
    elif expected is not None:
        assert actual == pytest.approx(expected, rel=1e-3, abs=1e-5, nan_ok=True), f"{where}: {actual}, {expected}"


FAST = ["train", "tilt", "distil", "sample", "score", "measure", "sample, Hugging Face", "risk"]


@pytest.mark.parametrize("verb", slow_except(FAST, VERBS))
def test_a_verb_on_every_device(capsys, runs, verb):
    answers = {
        device: json.loads(
            json.dumps(answer(capsys, *(part.format(run=run) for part in VERBS[verb]), "--device", device, "--quiet")).replace(
                str(run), "run"
            )
        )
        for device, run in runs.items()
    }
    assert_close(numbers(answers["auto"]), numbers(answers["cpu"]))
    assert answers["auto"]["device"].startswith("cuda:0") and answers["cpu"]["device"].startswith("cpu")
