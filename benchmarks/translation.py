"""Beam search and draws of an encoder-decoder model against `generate` of `transformers`, and our own network beside Marian.

64 sources of 12 tokens, targets of 20 without an end symbol, so that all do as much: beams of 5, and 16 draws of each source,
of a T5, a BART and a Marian of `transformers` (3 + 3 layers, width 256, 4 heads, vocabulary 4,000) by `generate` and by ours,
whose best beams must be as probable (the gap is by how much `generate` was better, a token); beams of 5 of our encoder-decoder
of the same size beside Marian's by `generate`; and a step of likelihood, forward and backward, of ours and of Marian's, on 128
pairs.
"""

import torch
import transformers
from torch import nn

from benchmarks._device import on_device
from benchmarks._drawing import drawn
from benchmarks._timing import Row, Run, Table, time_runs, versus
from esscher.bases.network import NetworkBase, build_base
from esscher.bases.seq2seq_lm import Seq2SeqLM, seq2seq_lm
from esscher.core.randomness import SeededRng
from esscher.core.space import Space, prompts_of, sequences
from esscher.core.target import Base
from esscher.decoding.beam_search import beam_search
from esscher.networks.seq2seq_config import EncoderDecoderConfig

REPEATS = 3
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
    with SeededRng(0).fork_torch_rng():
        return {
            "T5": on_device(transformers.T5ForConditionalGeneration(t5).eval()),
            "BART": on_device(transformers.BartForConditionalGeneration(bart).eval()),
            "Marian": on_device(transformers.MarianMTModel(marian).eval()),
        }


def ours() -> NetworkBase:
    config = EncoderDecoderConfig(width=WIDTH, layers=LAYERS, heads=HEADS, feedforward=INNER, dropout=0.0)
    return on_device(build_base(config, Space(VOCAB, TOKENS), rng=SeededRng(0)).eval())


def sources(count: int = SOURCES) -> list[list[int]]:
    return (1 + SeededRng(1).categorical(torch.zeros(count, VOCAB - 1), LENGTH)).tolist()


def generated(model: nn.Module, **how: object) -> Run:
    ids = on_device(torch.tensor(sources()))

    def run() -> None:
        with torch.no_grad():
            actual = model.generate(
                ids, attention_mask=torch.ones_like(ids), min_new_tokens=TOKENS, max_new_tokens=TOKENS, use_cache=True, **how
            )  # fmt: skip
        if actual.shape[1] != 1 + TOKENS:
            raise RuntimeError(f"generate gave {tuple(actual.shape)}: the comparison is void.")

    return run


def searched(base: Base) -> Run:
    prompts = prompts_of(sources())

    def run() -> None:
        actual = beam_search(base, prompts, BEAMS)
        if int(actual.x.lengths.min()) != TOKENS:
            raise RuntimeError("beam_search gave shorter targets: the comparison is void.")

    return run


def gap(model: nn.Module, base: Seq2SeqLM) -> float:
    """By how much the best beam of `generate` is above ours in log-probability per token, at most over sources."""
    ids = on_device(torch.tensor(sources()))
    with torch.no_grad():
        actual = model.generate(
            ids, attention_mask=torch.ones_like(ids), num_beams=BEAMS, min_new_tokens=TOKENS, max_new_tokens=TOKENS,
        )  # fmt: skip
        theirs = base.log_probs(on_device(sequences(actual[:, 1:].tolist(), sources()))).sum(-1).cpu() / TOKENS
    return float((theirs.double() - beam_search(base, prompts_of(sources()), BEAMS).score[:, 0]).max())


def beam_rows(repeats: int) -> list[Row]:
    rows = []
    for name, model in models().items():
        base = seq2seq_lm(model, max_length=TOKENS, eos=None)
        seconds = time_runs({"generate": generated(model, num_beams=BEAMS), "beam_search": searched(base)}, repeats)
        actual = versus(seconds, "beam_search", "generate")
        rows.append({"work": f"{BEAMS} beams, {name}", **actual, "gap, nats": gap(model, base)})
    return rows


def draw_rows(repeats: int) -> list[Row]:
    rows = []
    for name, model in models().items():
        peer = generated(model, do_sample=True, top_k=0, num_return_sequences=DRAWS)
        mine = drawn(seq2seq_lm(model, max_length=TOKENS, eos=None), prompts_of(sources()), DRAWS)
        actual = versus(time_runs({"generate": peer, "draw": mine}, repeats), "draw", "generate")
        rows.append({"work": f"{DRAWS} draws, {name}", **actual})
    return rows


def own_row(repeats: int) -> Row:
    peer = generated(models()["Marian"], num_beams=BEAMS)
    seconds = time_runs({"generate, Marian": peer, "beam_search, our network": searched(ours())}, repeats)
    return {"work": f"{BEAMS} beams", **versus(seconds, "beam_search, our network", "generate, Marian")}


def train_row(repeats: int) -> Row:
    marian, base = models()["Marian"].train(), ours().train()
    given, said = sources(PAIRS), [row + row[: TOKENS - LENGTH] for row in sources(PAIRS)]
    ids, labels, x = on_device((torch.tensor(given), torch.tensor(said), sequences(said, given)))

    def theirs() -> None:
        marian.zero_grad()
        marian(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss.backward()

    def own() -> None:
        base.zero_grad()
        (-base.log_probs(x).sum() / labels.numel()).backward()

    seconds = time_runs({"Marian": theirs, "our network": own}, repeats)
    return {"work": f"a step on {PAIRS} pairs", **versus(seconds, "our network", "Marian")}


def tables(repeats: int) -> list[Table]:
    rows = [*beam_rows(repeats), *draw_rows(repeats), own_row(repeats), train_row(repeats)]
    return [Table(f"{SOURCES} sources of {LENGTH} tokens, targets of {TOKENS}", rows)]
