"""Beam search and draws of an encoder-decoder model against `generate` of `transformers`, and our own network beside Marian.

    python benchmarks/translation.py [--repeats 3] [--threads 2] [--parts beam draws own train] [--json]

All sides take turns in this process. 64 sources of 12 tokens, targets of 20 without an end symbol, so that all do as much:

beam    a T5, a BART and a Marian of `transformers` (3 + 3 layers, width 256, 4 heads, vocabulary 4,000): beams of 5 by
        `generate` and by `beam_search`, whose log-probabilities must agree
draws   16 draws of each source by `generate` and by `draw`, from the same models
own     beams of 5 of our encoder-decoder of the same size, beside Marian's by `generate`
train   a step of likelihood, forward and backward, of ours and of Marian's, on 128 pairs

Medians, with the smallest and the largest of the repeats; ratios are taken within each repeat.
"""

import argparse
import json
import os
import platform
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from _turns import Run, faster, in_turns
from rich.console import Console
from rich.table import Table
from torch import nn

from esscher.bases.config import EncoderDecoderConfig
from esscher.bases.network import NetworkBase, build_base
from esscher.bases.seq2seq_lm import Seq2SeqLM, seq2seq_lm
from esscher.decoding.beam import beam_search
from esscher.randomness import Seeded
from esscher.samplers.ancestral import draw
from esscher.space import Sequences, Space, prompts_of, sequences
from esscher.target import Base

VOCAB, WIDTH, LAYERS, HEADS, INNER = 4_000, 256, 3, 4, 1_024
SOURCES, LENGTH, TOKENS, BEAMS, DRAWS, PAIRS = 64, 12, 20, 5, 16, 128
PAD = 0


def models() -> dict[str, nn.Module]:
    common = {"vocab_size": VOCAB, "pad_token_id": PAD, "decoder_start_token_id": PAD, "eos_token_id": None}
    sizes = {
        "d_model": WIDTH, "encoder_layers": LAYERS, "decoder_layers": LAYERS, "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS, "encoder_ffn_dim": INNER, "decoder_ffn_dim": INNER, "forced_eos_token_id": None,
    }  # fmt: skip
    t5 = transformers.T5Config(d_model=WIDTH, d_kv=WIDTH // HEADS, d_ff=INNER, num_layers=LAYERS, num_heads=HEADS, **common)
    bart = transformers.BartConfig(**sizes, **common, bos_token_id=None)
    marian = transformers.MarianConfig(**sizes, **common, bos_token_id=None)
    with Seeded(0).governs_torch():
        return {
            "T5": transformers.T5ForConditionalGeneration(t5).eval(),
            "BART": transformers.BartForConditionalGeneration(bart).eval(),
            "Marian": transformers.MarianMTModel(marian).eval(),
        }


def ours() -> NetworkBase:
    config = EncoderDecoderConfig(WIDTH, LAYERS, None, HEADS, INNER, 0.0)
    return build_base(config, Space(VOCAB, TOKENS), rng=Seeded(0)).eval()


def sources(count: int = SOURCES) -> list[list[int]]:
    return (1 + Seeded(1).categorical(torch.zeros(count, VOCAB - 1), LENGTH)).tolist()


def generated(model: nn.Module, **how: object) -> Run:
    ids = torch.tensor(sources())

    def run() -> None:
        with torch.no_grad():
            found = model.generate(
                ids, attention_mask=torch.ones_like(ids), min_new_tokens=TOKENS, max_new_tokens=TOKENS, use_cache=True, **how
            )  # fmt: skip
        if found.shape[1] != 1 + TOKENS:
            raise RuntimeError(f"generate gave {tuple(found.shape)}: the comparison is void.")

    return run


def searched(base: Base) -> Run:
    prompts = prompts_of(sources())

    def run() -> None:
        found = beam_search(base, prompts, BEAMS)
        if int(found.x.lengths.min()) != TOKENS:
            raise RuntimeError("beam_search gave shorter targets: the comparison is void.")

    return run


def drawn(base: Base) -> Run:
    prompts, rng = prompts_of(sources()), Seeded(2)
    return lambda: _void(draw(base, prompts, DRAWS, rng=rng)[0])


def _void(x: Sequences) -> None:
    if int(x.lengths.min()) != TOKENS:
        raise RuntimeError("draw gave shorter targets: the comparison is void.")


def gap(model: nn.Module, base: Seq2SeqLM) -> float:
    """By how much the best beam of `generate` is above ours in log-probability per token, at most over sources."""
    ids = torch.tensor(sources())
    with torch.no_grad():
        found = model.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=BEAMS, min_new_tokens=TOKENS, max_new_tokens=TOKENS,
        )  # fmt: skip
        theirs = base.log_probs(sequences(found[:, 1:].tolist(), sources())).sum(-1) / TOKENS
    return float((theirs.double() - beam_search(base, prompts_of(sources()), BEAMS).score[:, 0]).max())


def beam_rows(repeats: int) -> list[dict[str, object]]:
    rows = []
    for name, model in models().items():
        base = seq2seq_lm(model, max_length=TOKENS, eos=None)
        runs = {"generate": generated(model, num_beams=BEAMS), "beam_search": searched(base)}
        found = faster(in_turns(runs, repeats))
        rows += [
            {"work": f"{BEAMS} beams, {name}", **row, "worst gap, nats a token": round(gap(model, base), 6)} for row in found
        ]
    return rows


def draw_rows(repeats: int) -> list[dict[str, object]]:
    rows = []
    for name, model in models().items():
        runs = {
            "generate": generated(model, do_sample=True, top_k=0, num_return_sequences=DRAWS),
            "draw": drawn(seq2seq_lm(model, max_length=TOKENS, eos=None)),
        }
        rows += [{"work": f"{DRAWS} draws, {name}", **row} for row in faster(in_turns(runs, repeats))]
    return rows


def own_rows(repeats: int) -> list[dict[str, object]]:
    runs = {"generate, Marian": generated(models()["Marian"], num_beams=BEAMS), "beam_search, ours": searched(ours())}
    return [{"work": f"{BEAMS} beams", **row} for row in faster(in_turns(runs, repeats))]


def train_rows(repeats: int) -> list[dict[str, object]]:
    marian, base = models()["Marian"].train(), ours().train()
    given, said = sources(PAIRS), [row + row[: TOKENS - LENGTH] for row in sources(PAIRS)]
    ids, labels, x = torch.tensor(given), torch.tensor(said), sequences(said, given)

    def theirs() -> None:
        marian.zero_grad()
        marian(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss.backward()

    def own() -> None:
        base.zero_grad()
        (-base.log_probs(x).sum() / labels.numel()).backward()

    return [{"work": f"a step on {PAIRS} pairs", **row} for row in faster(in_turns({"Marian": theirs, "ours": own}, repeats))]


PARTS = {"beam": beam_rows, "draws": draw_rows, "own": own_rows, "train": train_rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    rows = [row for part in options.parts for row in PARTS[part](options.repeats)]
    table = Table(*dict.fromkeys(key for row in rows for key in row))
    for row in rows:
        table.add_row(*(str(row.get(column.header, "")) for column in table.columns))
    Console(width=140).print(table)
    if options.json:
        versions = {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
        machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {options.threads} threads"
        print(json.dumps({"machine": machine, "versions": versions, "rows": rows}))


if __name__ == "__main__":
    main()
