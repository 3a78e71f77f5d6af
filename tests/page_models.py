"""Small models for the pages of `docs/howto`, which begin with a model folder that the reader has: `runs/base`, a language
model of 240 sentences, and `runs/reward`, a reward model of Hugging Face that likes some of them.

Each is made once in a process, in seconds, and copied into the folder of every page.
"""

import shutil
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import mkdtemp

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2ForSequenceClassification, PreTrainedTokenizerFast

SUBJECTS = ("the cat", "the dog", "a bird", "the mouse", "a child")
VERBS = ("sleeps", "plays", "waits", "sings")
PLACES = ("at home", "in the garden", "by the river", "under the table")
TIMES = ("", " today", " every day")
SENTENCES = [f"{subject} {verb} {place}{time}" for subject, verb, place, time in product(SUBJECTS, VERBS, PLACES, TIMES)]


def page_folder(reward: bool = False) -> None:
    """Fill the current folder: runs/base, mine.txt and test.txt; with `reward` also runs/reward."""
    for name in ("base", "reward") if reward else ("base",):
        shutil.copytree(_base() if name == "base" else _reward(), Path("runs") / name)
    Path("mine.txt").write_text("\n".join(SENTENCES), encoding="utf8")
    Path("test.txt").write_text("\n".join(text for text in SENTENCES if "cat" in text or "river" in text), encoding="utf8")


@cache
def _base() -> Path:
    from esscher import DataConfig, LengthConfig, TokenizerConfig, TrainingConfig, TrainRun, train_base
    from esscher.networks.recurrent_config import LstmConfig

    folder = Path(mkdtemp())
    (folder / "mine.txt").write_text("\n".join(SENTENCES), encoding="utf8")
    train_base(
        TrainRun(
            out=str(folder / "base"),
            data=DataConfig(str(folder / "mine.txt")),
            tokenizer=TokenizerConfig("word"),
            length=LengthConfig(tokens=10),
            base=LstmConfig(width=48, layers=1),
            training=TrainingConfig(steps=100, learning_rate=0.01, evaluate_every=100),
        )
    )
    return folder / "base"


@cache
def _reward() -> Path:
    """A sequence classifier with one number, whose value is a fixed function of the words of a text."""
    folder = Path(mkdtemp()) / "reward"
    words = ["<pad>", "<unk>", *sorted({word for text in SENTENCES for word in text.split()})]
    config = GPT2Config(
        vocab_size=len(words), n_positions=16, n_embd=16, n_layer=1, n_head=2, num_labels=1, pad_token_id=0,
        id2label={0: "reward"}, label2id={"reward": 0},
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2ForSequenceClassification(config)
    model.score.weight.data *= 10
    model.eval().save_pretrained(folder)
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", pad_token="<pad>").save_pretrained(folder)
    return folder
