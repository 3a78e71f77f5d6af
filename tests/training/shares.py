"""What sharded and whole bases do on the processes that a test starts."""

from dataclasses import replace
from pathlib import Path

from toys import SPACE, toy_data

from esscher.bases.causal_lm import causal_lm
from esscher.bases.config import EncoderDecoderConfig, RecurrentConfig, TransformerConfig, TransformerXLConfig, XLNetConfig
from esscher.bases.network import build_base
from esscher.bases.sharding import shard
from esscher.bases.turns import in_turns
from esscher.launch import rank
from esscher.objectives.likelihood import Likelihood
from esscher.randomness import Seeded
from esscher.samplers.ancestral import draw
from esscher.space import prompts_of
from esscher.storage import module_tensors
from esscher.target import Tilted
from esscher.training.config import TrainingConfig
from esscher.training.processes import join
from esscher.training.trainer import Trainer

SETTINGS = TrainingConfig(
    steps=6, batch_size=8, accumulate=2, learning_rate=0.02, evaluate_every=2, save_every=2, log_every=1, weight_decay=0.01,
    clip=0.5, average=0.4, seed=5,
)  # fmt: skip
CONFIGS = {
    "transformer-xl": TransformerXLConfig(width=12, layers=2, heads=2, dropout=0.0, memory=4, tied=True),
    "transformer": TransformerConfig(width=12, layers=2, heads=2, dropout=0.0, max_positions=12),
    "lstm": RecurrentConfig("lstm", 6, 2),
    "encoder-decoder": EncoderDecoderConfig(width=12, layers=1, heads=2, dropout=0.0),
    "xlnet": XLNetConfig(width=12, layers=1, heads=2, dropout=0.0),
}


def new_base(kind, *, seed=1):
    if kind != "llama":
        return build_base(CONFIGS[kind], SPACE, rng=Seeded(seed)).double()
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    with Seeded(seed).governs_torch():
        model = LlamaForCausalLM(LlamaConfig(vocab_size=4, bos_token_id=1, eos_token_id=0, max_position_embeddings=32, **sizes))
    return causal_lm(model.double(), max_length=SPACE.max_length)


def learn(kind, folder, settings, resume=False):
    """Losses, evaluations and the weights in the end; checkpoints in the folder, if there is one."""
    base, (train, held_out) = new_base(kind, seed=9 if resume else 1), toy_data()
    record = Trainer(replace(SETTINGS, **settings), quiet=True)(
        Likelihood(), Tilted(base), train, modules=base, validation=held_out.rows(slice(0, 21)), folder=folder, resume=resume
    )
    numbers = [{key: entry[key] for key in entry if key in ("loss", "validation", "gradient")} for entry in record.history]
    parts = sum(getattr(weight, "_local_tensor", weight).numel() for weight in base.parameters())
    weights = {name: tensor.tolist() for name, tensor in module_tensors(base).items()}
    whole = sum(weight.numel() for weight in base.parameters())
    return {"history": numbers, "weights": weights, "share": parts / whole, "files": _files(folder)}


def _files(folder):
    return sorted(file.name for file in Path(folder).rglob("*.*")) if folder else []


def draws(kind, sharded):
    """Draws after prompts, more and longer ones on the second process, and their scores."""
    join(cpu=True)
    base = new_base(kind).eval()
    if sharded:
        shard(base)
    prompts = prompts_of([[], [1], [2, 3]] if rank() == 0 else [[3, 3, 1]])
    with in_turns():
        found = [draw(base, prompts, 3, rng=Seeded(rank(), number)) for number in range(1 + rank())]
        scores = [base.log_probs(x).detach().sum(-1) for x, _ in found]
    return [
        [x.tokens.tolist(), log_base.view(-1).tolist(), score.tolist()]
        for (x, log_base), score in zip(found, scores, strict=True)
    ]
