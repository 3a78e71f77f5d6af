"""Transformer-XL (Dai et al., 2019), and Local-XL and convolutions beside it (thesis of Dai, 2020, chapter 5; Wu et al., 2019).

`transformer-xl` trains a stack with and without a memory for as many steps and reads the rest of the text as a stream, also
with a longer attention span than in training. `local-xl` compares what the layers of one stack mix positions by.
"""

from typing import Any

from esscher.papers.streams import over_seeds, stream_rows, stream_sections
from esscher.papers.study import Rows, StudyContext
from esscher.papers.transformer_xl.studies import StreamStudies, local_studies, memory_studies

PAPER = [
    dict(zip(("text", "model", "result"), row, strict=True))
    for row in (
        ("enwik8", "12 layers, 41M", "1.06 bits per byte"),
        ("enwik8", "18 layers, 88M", "1.03 bits per byte"),
        ("enwik8", "24 layers, 277M", "0.99 bits per byte"),
        ("text8", "24 layers, 277M", "1.08 bits per character"),
        ("WikiText-103", "16 layers, 151M", "24.0 perplexity"),
        ("WikiText-103", "18 layers, 257M", "18.3 perplexity"),
        ("One Billion Word", "base, 0.46B", "23.5 perplexity"),
        ("One Billion Word", "large, 0.8B", "21.8 perplexity"),
        ("Penn Treebank", "24M", "54.5 perplexity"),
    )
]
LOCAL_XL_PAPER = [
    {"task": "fine-tuning with chunks of 64", "result": "about 2 times faster"},
    {"task": "classification", "result": "unchanged"},
    {"task": "SQuAD", "result": "1 point lower"},
]


def run_transformer_xl(context: StudyContext) -> dict[str, Any]:
    """Models with and without a memory on every text of the scale."""
    return _run(context, "Transformer-XL: what a memory is worth", memory_studies(context.scale), PAPER)


def run_local_xl(context: StudyContext) -> dict[str, Any]:
    """Full attention, local attention and convolutions in one stack."""
    return _run(context, "What a layer mixes positions by", local_studies(context.scale), LOCAL_XL_PAPER)


def _run(context: StudyContext, title: str, studies: StreamStudies, paper: Rows) -> dict[str, Any]:
    rows = stream_rows(context, studies[0])
    about = "Networks of one size that learn one long text in order, in as many updates, and are measured on the rest of it."
    tables = {"rows": rows, "over seeds": over_seeds(rows), "paper": paper}
    return context.publish(title, about, stream_sections(rows), tables, studies[1])
