"""Transformer-XL (Dai et al., 2019), and beside it Local-XL and convolutions (thesis of Dai, 2020; Wu et al., 2019).

The last study trains longer, with a recurrent network beside the others, and has their relative effective context length and a
long sample. `transformer_xl.json` and `local_xl.json` keep what is made.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch

from esscher.bases.network import NetworkBase, with_attention_span
from esscher.core.randomness import SeededRng
from esscher.estimators.intervals import ratio_of_sums
from esscher.estimators.long_context import HARDEST_SHARES, ContextLosses, context_losses, spread_places
from esscher.hub import load_base
from esscher.papers.stream_effects import BITS, effects, keep, levels
from esscher.papers.streams import StreamStudy, over_seeds, rows_by_model, run_for_seed, save_over_seeds, stream_sections
from esscher.papers.study import Row, Rows, StudyContext, cached_json, table_rows
from esscher.papers.transformer_xl.claims import LSTM, NO_MEMORY, XL, claims_of
from esscher.papers.transformer_xl.generation import continue_stream
from esscher.papers.transformer_xl.studies import StreamStudies, local_studies, longer_studies, memory_studies
from esscher.reports.document import Section, Table
from esscher.workflow.processors import prepare_stream_data

PAPER = table_rows(
    ("text", "model", "result"),
    ("enwik8", "12 layers, 41M", "1.06 bits per byte"), ("enwik8", "18 layers, 88M", "1.03 bits per byte"),
    ("enwik8", "24 layers, 277M", "0.99 bits per byte"), ("text8", "24 layers, 277M", "1.08 bits per character"),
    ("WikiText-103", "16 layers, 151M", "24.0 perplexity"), ("WikiText-103", "18 layers, 257M", "18.3 perplexity"),
    ("One Billion Word", "base, 0.46B", "23.5 perplexity"), ("One Billion Word", "large, 0.8B", "21.8 perplexity"),
    ("Penn Treebank", "24M", "54.5 perplexity"),
)  # fmt: skip
LOCAL_XL_PAPER = [
    {"task": "fine-tuning with chunks of 64", "result": "about 2 times faster"},
    {"task": "classification", "result": "unchanged"},
    {"task": "SQuAD", "result": "1 point lower"},
]
PROMPT, SAMPLE = 200, 500  # tokens of the long sample


def run_transformer_xl(context: StudyContext) -> dict[str, Any]:
    """Models with and without a memory on every text of the scale, and how far back each of the longest trained ones looks."""
    studies, missing = memory_studies(context.scale)
    studies = [*studies, *longer_studies(context.scale)]
    return _run(context, "Transformer-XL: what a memory is worth", "transformer_xl", (studies, missing), PAPER)


def run_local_xl(context: StudyContext) -> dict[str, Any]:
    """Full attention, local attention and convolutions in one stack."""
    return _run(context, "What a layer mixes positions by", "local_xl", local_studies(context.scale), LOCAL_XL_PAPER)


def _run(context: StudyContext, title: str, name: str, made_of: StreamStudies, paper: Rows) -> dict[str, Any]:
    studies, missing = made_of
    rows: list[Row] = []
    lengths: list[Row] = []
    samples: list[Row] = []
    keep_results(context, name, studies, rows, lengths, samples)
    for study, model, seed, of_model in rows_by_model(context, studies):
        rows += of_model
        if LSTM in study.models and model == XL:
            samples.append(sample_row(context, study, seed))
        if LSTM in study.models and model == study.names_for_seed(seed)[-1]:
            lengths += context_rows(context, study, seed)
        keep_results(context, name, studies, rows, lengths, samples)
    about = "Networks of one size that learn one long text in order, in as many updates, and are measured on the rest of it."
    found = effects(claims_of(studies), rows)
    tables = {
        "rows": rows, "over seeds": over_seeds(rows), "effects": found, "context lengths": lengths, "samples": samples,
        "paper": paper,
    }  # fmt: skip
    sections = [
        Section("Claims", "Bits saved, over seeds.", [Table("Effects over seeds", found)]),
        *stream_sections(rows),
        Section("Relative effective context length", ABOUT_CONTEXT, [Table("Lengths", lengths)]),
        Section("Samples", ABOUT_SAMPLES, [Table("Samples", samples)]),
    ]
    return context.publish(title, about, sections, tables, missing)


def keep_results(
    context: StudyContext, name: str, studies: Sequence[StreamStudy], rows: Rows, lengths: Rows, samples: Rows
) -> None:
    """Write what is made so far to a file of this name, and the figure of what has two seeds."""
    made = {(row["text"], row["model"], row["seed"]) for row in rows}
    planned = sum(len(context.names(study)) for study in studies)
    tables = {
        "levels": levels(rows, (BITS,)), "effects": effects(claims_of(studies), rows), "context lengths": lengths,
        "samples": samples, "rows": rows,
    }  # fmt: skip
    keep(context.out / f"{name}.json", planned - len(made), tables)
    save_over_seeds(over_seeds(rows), context.out / f"{name}.png")


ABOUT_CONTEXT = (
    "The longest context at which more of it still lowers the perplexity beyond the best of the group by 1 %, on the tokens "
    "that are hardest for the group. The model without a memory reads a segment, Transformer-XL four segments back in each "
    "layer."
)
ABOUT_SAMPLES = "Transformer-XL after a prompt from the start of the test text, with its memory, as in training."


def context_rows(context: StudyContext, study: StreamStudy, seed: int) -> list[Row]:
    """The relative effective context length of the models of a study with a seed, in tokens."""
    positions, step, longest = (40, 8, 24) if context.scale == "smoke" else (2_000, 32, 384)

    def measure() -> list[Row]:
        splits = prepare_stream_data(run_for_seed(context, study, XL, seed))
        tokens, lengths, losses = splits.test.tokens, tuple(range(step, longest + 1, step)), {}
        for model in study.models:
            base, _ = load_base(context.run_dir(study.name, model, seed))
            assert isinstance(base, NetworkBase)
            segment = base.space.max_length
            if model == XL:
                base = with_attention_span(base, attention_span=4 * segment)
            places, most = spread_places(positions, len(tokens), longest), segment - 1 if model == NO_MEMORY else None
            losses[model] = context_losses(base.eval(), tokens, places, lengths, max_context=most)
        group = ContextLosses(lengths, losses)
        return [
            {"text": study.name, "seed": seed, "model": model}
            | {
                f"hardest {share:g}": group.effective_length(model, share, rng=SeededRng(seed, "places"))
                for share in HARDEST_SHARES
            }
            for model in losses
        ]

    return list(cached_json(context.run_dir(study.name, XL, seed) / "context.json", measure))


def sample_row(context: StudyContext, study: StreamStudy, seed: int) -> Row:
    """What Transformer-XL continues the start of the test text with, and the bits of each character under itself."""
    run_dir = context.run_dir(study.name, XL, seed)

    def make() -> Row:
        splits = prepare_stream_data(run_for_seed(context, study, XL, seed))
        base, _ = load_base(run_dir)
        assert isinstance(base, NetworkBase)
        prompt = splits.test.tokens[:PROMPT]
        sample = continue_stream(base.eval(), prompt, SAMPLE, rng=SeededRng(seed, "sample"))
        texts = [splits.tokenizer.decode([tokens.tolist()])[0] for tokens in (prompt, sample.tokens)]
        bits = -sample.log_probs.double() / math.log(2)
        own = ratio_of_sums(bits, torch.ones_like(bits), confidence=0.95, unit="bits per token")
        return {"text": study.name, "model": XL, "seed": seed, "prompt": texts[0], "sample": texts[1], "own bits": own}

    return dict(cached_json(run_dir / "sample.json", make))
