"""What sharded and whole bases do on the processes that a test starts."""

import contextlib
import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import stream_run
import torch
from tiny_run import SPACE, toy_data
from torch.distributed.fsdp import FSDPModule

from esscher.bases.causal_lm import causal_lm
from esscher.bases.fsdp import gather_in_lockstep, shard
from esscher.bases.network import build_base
from esscher.core.distributed import rank
from esscher.core.randomness import SeededRng
from esscher.core.space import prompts_of
from esscher.core.storage import local_module_tensors, module_tensors
from esscher.core.target import Tilted
from esscher.networks.recurrent_config import LstmConfig
from esscher.networks.seq2seq_config import EncoderDecoderConfig
from esscher.networks.transformer_config import TransformerConfig, TransformerXLConfig, XLNetConfig
from esscher.objectives.likelihood import Likelihood
from esscher.samplers.ancestral import draw
from esscher.training.collectives import init_process_group
from esscher.training.config import TrainingConfig
from esscher.training.trainer import Trainer

SETTINGS = TrainingConfig(
    steps=6, batch_size=8, gradient_accumulation_steps=2, learning_rate=0.02, evaluate_every=2, save_every=2, log_every=1,
    weight_decay=0.01, max_grad_norm=0.5, swa_start=0.4, seed=5,
)  # fmt: skip
CONFIGS = {
    "transformer-xl": TransformerXLConfig(width=12, layers=2, heads=2, dropout=0.0, memory=4, tied=True),
    "transformer": TransformerConfig(width=12, layers=2, heads=2, dropout=0.0, max_positions=12),
    "lstm": LstmConfig(6, 2),
    "encoder-decoder": EncoderDecoderConfig(width=12, layers=1, heads=2, dropout=0.0),
    "xlnet": XLNetConfig(width=12, layers=1, heads=2, dropout=0.0),
}


def new_base(kind, *, seed=1):
    if kind != "llama":
        return build_base(CONFIGS[kind], SPACE, rng=SeededRng(seed)).double()
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    with SeededRng(seed).fork_torch_rng():
        model = LlamaForCausalLM(LlamaConfig(vocab_size=4, bos_token_id=1, eos_token_id=0, max_position_embeddings=32, **sizes))
    return causal_lm(model.double(), max_length=SPACE.max_length)


def learn(kind, folder, settings, resume=False, wrong=None):
    """Numbers of the run, the weights in the end, and which share of them this process has."""
    if wrong == "gradients are averaged":
        FSDPModule.set_gradient_divide_factor = lambda unit, factor: None
    base, (train, held_out) = new_base(kind, seed=9 if resume else 1), toy_data()
    record = Trainer(replace(SETTINGS, **settings))(
        Likelihood(), Tilted(base), train, modules=base, validation=held_out.rows(slice(0, 21)), folder=folder, resume=resume
    )
    numbers = [[entry[key] for key in ("loss", "validation", "gradient") if key in entry] for entry in record.history]
    parts = [getattr(part, "_local_tensor", part) for part in local_module_tensors(base).values()]
    whole = module_tensors(base)
    share = sum(part.numel() for part in parts) / sum(tensor.numel() for tensor in whole.values())
    return {"numbers": numbers, "weights": [tensor.tolist() for tensor in whole.values()], "share": share}


def learn_stream(kind, settings):
    """The same numbers of a base that reads a stream with its memory, and its weights."""
    base = build_base(CONFIGS[kind], stream_run.SPACE, rng=SeededRng(1)).double()
    record = stream_run.run(base, config=replace(stream_run.SETTINGS, **settings))
    return [list(entry.values()) for entry in record.history], [tensor.tolist() for tensor in module_tensors(base).values()]


def furthest(one, other):
    """The largest difference between two lists of numbers or tensors."""
    return max(float((torch.tensor(a) - torch.tensor(b)).abs().max()) for a, b in zip(one, other, strict=True))


def draws(kind, fsdp, wrong=None):
    """Draws after prompts, more and longer ones on the second process, and their scores."""
    init_process_group(torch.device("cpu"))
    base = new_base(kind).eval()
    if fsdp:
        shard(base)
    prompts = prompts_of([[], [1], [2, 3]] if rank() == 0 else [[3, 3, 1]])
    with contextlib.nullcontext() if wrong == "nobody waits for others" else gather_in_lockstep():
        actual = [draw(base, prompts, 3, rng=SeededRng(rank(), number)) for number in range(1 + 3 * rank())]
        scores = [base.log_probs(x).detach().sum(-1) for x, _ in actual]
    rows = zip(actual, scores, strict=True)
    return [[x.tokens.tolist(), log_base.view(-1).tolist(), score.tolist()] for (x, log_base), score in rows]


def asked(folder):
    """Whether a file is made, which the first process alone has."""
    from esscher.core.distributed import rank
    from esscher.training.collectives import exists_on_main_process

    return [exists_on_main_process(Path(folder, f"of {rank()}")), exists_on_main_process(Path(folder, "of nobody"))]


def verb(*words):
    """What the first process prints of `esscher` with `--json`."""
    from esscher.cli import main

    sys.argv, said = ["esscher", *words, "--json"], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main()
    printed = said.getvalue().strip()
    return json.loads(printed.splitlines()[-1]) if printed else None


def verbs(folder, fsdp):
    """A base is trained, tilted, sampled and measured; what the verbs tell, and the files of the base."""
    place, shares, parts = Path(folder), ["--training.fsdp"] if fsdp else [], ["--fsdp"] if fsdp else []
    place.mkdir(exist_ok=True)
    base, energy, text = str(place / "base"), str(place / "energy"), str(place / "text.txt")
    Path(text).write_text("".join(f"{n * n % 97} and {n % 7}\n" for n in range(300)))
    small = ["--base.kind", "transformer-xl", "--base.width", "16", "--base.layers", "2", "--base.heads", "2", "--quiet"]
    short = ["--tokenizer.kind", "character", "--length.tokens", "12", "--training.steps", "20"]
    output = [
        verb("train", "--out", base, "--data.source", text, *small, *short, *shares),
        verb(
            "tilt", base, "--out", energy, "--training.steps", "6", "--training.evaluate-every", "3", "--contrast.draws", "100",
            "--contrast.held-out", "20", "--quiet", *shares,
        ),
        verb("sample", base, "--energy", energy, "--sampler", "sir", "--num-candidates", "8", "--draws", "3", "--quiet",
        *parts), verb("measure", base, "--energy", energy, "--data", text, "--draws", "100", "--sequences", "20", "--quiet",
        *parts),
    ]  # fmt: skip
    return output
