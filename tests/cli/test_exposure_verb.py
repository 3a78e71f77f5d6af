"""esscher analyse exposure on texts, chunks, streams and Hugging Face models; and the energy `self` wherever one is named."""

import json
import sys

import pytest
import torch
from cli_calls import answer, call
from small_networks import lively

from esscher.bases.causal_lm import causal_lm
from esscher.cli import main
from esscher.core.estimate import Estimate
from esscher.core.space import Space
from esscher.data.tokenizers import train_tokenizer
from esscher.hub import save_base
from esscher.networks.recurrent_config import GruConfig

SMALL = ("--sequences", "30", "--draws", "2", "--quiet")
TINY = ("--data", "motif:101", "--data.length", "6", "--data.size", "60", "--base.kind", "lstm", "--base.width", "8",
        "--training.steps", "4")  # fmt: skip
BYTES = ("--tokenizer.kind", "byte", "--base.kind", "gru", "--base.width", "8", "--training.steps", "3",
 "--training.batch-size", "4")  # fmt: skip


def made(*arguments: str) -> None:
    main([*arguments, "--quiet", "--json"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two models of strings, one of chunks, one of a stream, and texts."""
    root = tmp_path_factory.mktemp("exposure")
    (root / "book.txt").write_text("".join(f"day {n}: a rainy day\n" for n in range(300)))
    (root / "bits.txt").write_text("\n".join(f"{number:06b}" for number in range(64)) + "\n")
    for name, seed in (("one", "1"), ("two", "2")):
        made("train", "--out", str(root / name), *TINY, "--training.seed", seed)
    book = ("--data", str(root / "book.txt"), *BYTES)
    made(
        "train", "--out", str(root / "chunks"), *book, "--length.tokens", "12", "--length.chunks", "--length.prompt-tokens", "4"
    )
    for name, seed in (("stream", "1"), ("other stream", "2")):
        made("train", "--out", str(root / name), *book, "--length.tokens", "8", "--length.stream", "--training.seed", seed)
    return root


@pytest.mark.slow
def test_texts_against_a_baseline(capsys, folder, tmp_path):
    plot = tmp_path / "exposure.png"
    names = (str(folder / "one"), "--against", str(folder / "two"), "--data", str(folder / "bits.txt"))
    output = answer(capsys, "analyse", "exposure", *names, *SMALL, "--plot", str(plot), "--seed", "3")
    rows = output["by_position"]
    assert [row["position"] for row in rows] == list(range(1, 8)) and rows[0]["sequences"] == 30 and rows[0]["draws"] == 60
    assert set(rows[0]) == {"position", "sequences", "draws", "bound", "of baseline", "ratio"} and output["seed"] == 3
    assert Estimate(**output["bound"]).unit == "nats" and 0 <= output["ratio"]["low"] <= output["ratio"]["high"] <= 1
    assert plot.read_bytes()[:4] == b"\x89PNG" and output["decode"] == "greedy"
    assert answer(capsys, "analyse", "exposure", *names, *SMALL, "--seed", "3")["by_position"] == rows
    sampled = answer(capsys, "analyse", "exposure", *names, *SMALL, "--seed", "3", "--decode", "sampled", "--longest", "3")
    assert [row["position"] for row in sampled["by_position"]] == [1, 2, 3] and "sampled" in sampled["ratio"]["method"]
    assert sampled["by_position"][0]["bound"]["value"] == pytest.approx(rows[0]["bound"]["value"])
    code, out, _ = call(capsys, "analyse", "exposure", str(folder / "one"), *SMALL)
    assert code == 0 and "held out" in out and "never trained" in " ".join(out.split()) and "ratio" not in out


def test_chunks_go_on_from_their_prompts(capsys, folder):
    output = answer(capsys, "analyse", "exposure", str(folder / "chunks"), "--data", str(folder / "book.txt"), *SMALL)
    assert [row["position"] for row in output["by_position"]] == list(range(1, 9))
    assert "replicates of the data" in output["bound"]["method"] and output["by_position"][0]["sequences"] == 30


def test_streams_go_on_from_their_memory(capsys, folder):
    names = (str(folder / "stream"), "--against", str(folder / "other stream"), "--warmup", "20")
    output = answer(capsys, "analyse", "exposure", *names, *SMALL)
    assert "held out" in output["measured_on"] and "23 places of 8 tokens, each after 20" in output["measured_on"]
    assert [row["position"] for row in output["by_position"]] == list(range(1, 9))
    assert "23 replicates of the data, 23 of the draws" in output["bound"]["method"]
    other = answer(capsys, "analyse", "exposure", *names, "--data", str(folder / "book.txt"), *SMALL)
    assert "book.txt" in other["measured_on"] and other["by_position"] != output["by_position"]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A tiny model of Hugging Face that speaks bytes."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder, tokenizer = tmp_path_factory.mktemp("hugging") / "gpt2", train_tokenizer("byte", [])
    size = tokenizer.vocab_size
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=size, n_positions=64, n_embd=8, n_layer=1, n_head=2, bos_token_id=size - 1, eos_token_id=size - 1
            )
        )
    save_base(folder, causal_lm(model.eval(), max_length=16), tokenizer)
    return folder


def test_a_model_of_hugging_face(capsys, folder, gpt2):
    data = ("--data", str(folder / "book.txt"))
    output = answer(capsys, "analyse", "exposure", str(gpt2), *data, *SMALL, "--max-length", "6")
    assert [row["position"] for row in output["by_position"]] == [1, 2, 3, 4, 5, 6]
    chunks = answer(
        capsys,
        "analyse",
        "exposure",
        str(gpt2),
        "--against",
        str(gpt2),
        *data,
        *SMALL,
        "--prompt-tokens",
        "5",
        "--longest",
        "4",
    )
    assert chunks["ratio"]["value"] == 0.5 and len(chunks["by_position"]) == 4
    measured = answer(capsys, "measure", str(gpt2), *data, "--energy", "self", "--draws", "20", "--sequences", "5", "--quiet")
    assert measured["energy"] == "self" and measured["log_z"]["value"] > 0
    drawn = answer(
        capsys,
        "sample",
        str(gpt2),
        "--energy",
        "self",
        "--draws",
        "3",
        "--max-length",
        "4",
        "--sampler.kind",
        "sir",
        "--sampler.num-candidates",
        "8",
    )
    assert len(drawn["samples"]) == 3 and drawn["samples"][0]["energy"] < 0


def test_errors_say_what_to_do(capsys, folder, gpt2, tmp_path):
    item, stream = str(folder / "one"), str(folder / "stream")
    for arguments, message in (
        ([item, "--against", str(folder / "chunks"), "--data", str(folder / "bits.txt"), *SMALL], "different tokens"),
        ([str(gpt2), *SMALL], "give --data"),
        ([item, "--data", str(tmp_path / "none.txt"), *SMALL], "none.txt"),
        ([item, "--data", str(folder / "bits.txt"), "--sequences", "1"], "sequences is at least 2"),
        ([item, "--data", str(folder / "bits.txt"), "--sequences", "5", "--draws", "1", "--quiet"], "No position is reached"),
        ([stream, "--against", str(gpt2), *SMALL], "different tokens"),
    ):
        code, _, err = call(capsys, "analyse", "exposure", *arguments)
        assert code == 1 and message in " ".join(err.split()), (arguments, err)


def test_self_is_an_energy_wherever_one_is_named(capsys, folder, tmp_path):
    base, data = str(folder / "one"), ("--data", str(folder / "bits.txt"))
    output = answer(capsys, "measure", base, *data, "--energy", "self", "--draws", "50", "--quiet")
    assert output["energy"] == "self" and {"base", "tilted"} <= {row["model"] for row in output["perplexities"]}
    samplers = {name: ("--sampler.kind", name) for name in ("adaptive-sir", "particles", "importance")}
    for sampler in samplers:
        drawn = answer(capsys, "sample", base, "--energy", "self", "--draws", "10", *samplers[sampler])
        assert len(drawn["samples"]) == 10 and drawn["sampler"] == sampler
    analysed = answer(
        capsys, "analyse", "energies", base, "--energy", "self", *data, "--sequences", "10", "--draws", "4", "--quiet"
    )
    assert len(analysed["energies"]) == 3
    held_out = answer(capsys, "analyse", "n-grams", base, "--energy", "self", "--sequences", "4", "--draws", "4", "--quiet")
    assert "held out" in held_out["data"]
    few = ("--training.steps", "2", "--distil.draws", "64", "--distil.evaluation-draws", "64", "--quiet")
    student = answer(capsys, "distil", base, "--energy", "self", "--out", str(tmp_path / "student"), *few)
    assert student["energy"] == "self" and "its own logsumexp" in (tmp_path / "student" / "README.md").read_text()


def test_self_rescores_candidates(capsys, tmp_path):
    from esscher.workflow.rescore import score_candidates

    lists = tmp_path / "lists.jsonl"
    rows = [
        {"id": str(n), "reference": "ab", "candidates": [{"text": t, "scores": {"s": 0.0}} for t in ("ab", "ba")]}
        for n in range(4)
    ]
    lists.write_text("".join(json.dumps(row) + "\n" for row in rows))
    from esscher.data.nbest import read_nbest

    tokenizer = train_tokenizer("byte", [])
    base = save_base(tmp_path / "base", lively(GruConfig(8, 1), Space(tokenizer.vocab_size, 8, eos=tokenizer.eos)), tokenizer)
    scored = score_candidates(read_nbest(lists), base, "self", out=tmp_path / "scored.jsonl")
    assert all("log_weight" in item.names and item.scored_by["log_weight"].startswith("self ") for item in scored)
    assert score_candidates(read_nbest(lists), base, "self", out=tmp_path / "scored.jsonl") == scored


def test_help_imports_no_torch(capsys):
    code, out, _ = call(capsys, "analyse", "exposure", "--help")
    assert code == 0 and "Example: esscher analyse exposure" in " ".join(out.split())
    import subprocess

    script = "import sys; from esscher.cli import main\ntry: main(['analyse', 'exposure', '--help'])\nexcept SystemExit: pass\n"
    done = subprocess.run(
        [sys.executable, "-c", script + "assert 'torch' not in sys.modules"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
