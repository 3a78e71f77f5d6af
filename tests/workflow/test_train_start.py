"""Training that goes on from the folder of a base: its weights, settings and tokenizer, and what is refused."""

from dataclasses import replace

import pytest
import torch

from esscher.cli import main
from esscher.core.config import from_dict, to_dict
from esscher.core.storage import digest, module_tensors
from esscher.data.config import DataConfig, LengthConfig, TokenizerConfig
from esscher.hub import load_base
from esscher.networks.recurrent_config import AwdLstmConfig
from esscher.networks.transformer_config import DeqConfig, TransformerConfig
from esscher.training.config import TrainingConfig
from esscher.workflow.config.train import TrainRun
from esscher.workflow.train import train_base

TRAINING = TrainingConfig(steps=4, batch_size=4, evaluate_every=4, learning_rate=0.01)


@pytest.fixture(scope="module", params=["lines", "stream"])
def first(request, tmp_path_factory):
    """A run on lines, or on a stream of words."""
    root = tmp_path_factory.mktemp(request.param)
    file = root / "tales.txt"
    file.write_text("".join(f"the {n % 7} old men and {n % 5} cats\n" for n in range(300)))
    length = LengthConfig(12, stream=request.param == "stream")
    base = AwdLstmConfig(width=6, inner=8, layers=2, output="mos", components=2)
    run = TrainRun(
        str(root / "first"),
        data=DataConfig(str(file)),
        tokenizer=TokenizerConfig("word", 30),
        length=length,
        base=base,
        training=TRAINING,
    )
    return run, train_base(run)


def test_it_begins_with_the_weights_and_the_tokenizer_of_the_folder(first, tmp_path):
    run, result = first
    still = replace(TRAINING, learning_rate=1e-12, steps=1)
    again = TrainRun(str(tmp_path / "still"), data=run.data, length=run.length, training=still, start=run.out)
    actual = train_base(again)
    assert actual.base.config == result.base.config and actual.base.space == result.base.space
    assert actual.measured["perplexity per token"].value == pytest.approx(
        result.measured["perplexity per token"].value, rel=1e-6
    )
    assert load_base(again.out)[1].encode(["the 3 cats"]) == load_base(run.out)[1].encode(["the 3 cats"])
    assert from_dict(TrainRun, to_dict(again)) == again


def test_a_second_stage_averages_from_its_first_step_and_resumes(first, tmp_path):
    run, result = first
    second = replace(TRAINING, swa_start=0.0)
    stage = TrainRun(str(tmp_path / "second"), data=run.data, length=run.length, training=second, start=run.out)
    actual = train_base(stage)
    assert digest(module_tensors(actual.base)) != digest(module_tensors(result.base))
    again = train_base(replace(stage, resume=True))
    assert digest(module_tensors(again.base)) == digest(module_tensors(actual.base))


def test_what_the_folder_says_is_not_said_again(first):
    run, _ = first
    for other in ({"base": TransformerConfig(width=8)}, {"tokenizer": TokenizerConfig("word")}):
        with pytest.raises(ValueError, match="leave the settings of base and tokenizer out"):
            TrainRun("never", start=run.out, **other)


def test_tied_layers_go_on_as_their_fixed_point(first, tmp_path):
    run, _ = first
    layers = DeqConfig(width=8, heads=2, feedforward=16, memory=12, unrolled=2, tolerance=0.1, exact_tolerance=0.1)
    prefix_model = train_base(replace(run, out=str(tmp_path / "layers"), base=layers))
    solved = replace(
        run, out=str(tmp_path / "solved"), start=str(prefix_model.folder), base=DeqConfig(unrolled=0),
        tokenizer=TokenizerConfig(), training=replace(TRAINING, learning_rate=1e-12, steps=1),
    )  # fmt: skip
    actual = train_base(solved).base
    assert actual.config == replace(prefix_model.base.config, unrolled=0)
    for name, weight in module_tensors(prefix_model.base).items():
        assert torch.allclose(weight, module_tensors(actual)[name], atol=1e-6)
    with pytest.raises(ValueError, match="Only a DEQ-Transformer can be unrolled"):
        train_base(replace(solved, out=str(tmp_path / "other"), start=run.out))


def test_on_the_command_line(first, tmp_path, capsys):
    run, _ = first
    stream = ["--length.stream"] if run.length.stream else []
    words = ["--start", run.out, "--out", str(tmp_path / "by-hand"), "--data.source", run.data.source, "--training.steps", "2"]
    main(["train", *words, "--length.tokens", "12", *stream, "--training.batch-size", "4", "--quiet"])
    assert "perplexity per token" in capsys.readouterr().out
    assert (tmp_path / "by-hand" / "config.json").is_file()


def test_models_of_hugging_face_are_refused(tmp_path):
    from transformers import GPT2Config, GPT2LMHeadModel

    from esscher.data.tokenizers import train_tokenizer

    tokenizer = train_tokenizer("character", ["abc"])
    size = {"vocab_size": tokenizer.vocab_size, "n_embd": 8, "n_layer": 1, "n_head": 1, "eos_token_id": 0, "bos_token_id": 0}
    GPT2LMHeadModel(GPT2Config(**size)).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    (tmp_path / "t.txt").write_text("".join("abc"[: n % 4] * n + "\n" for n in range(300)))
    with pytest.raises(ValueError, match="holds a Hugging Face model, which is not trained further here"):
        train_base(TrainRun(str(tmp_path / "out"), data=DataConfig(str(tmp_path / "t.txt")), start=str(tmp_path)))
