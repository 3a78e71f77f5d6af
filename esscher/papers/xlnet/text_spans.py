"""Joint log-probabilities of spans of held-out text, by the permutation LM and by denoising of a study (thesis, 4.2.6).

Windows of the test text are cut side by side, and the tokens in the middle of each are the span. What permutation gains is
measured span by span, on the same windows, with an interval for other windows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from esscher.bases.network import NetworkBase
from esscher.core.estimate import Estimate
from esscher.data.tokenizers import load_tokenizer
from esscher.hub import load_base
from esscher.papers.study import Row, StudyContext, mean_estimate
from esscher.papers.xlnet.span_scores import (
    DENOISING,
    PERMUTED,
    SpanScore,
    filled_spans,
    independent_spans,
    permuted_spans,
)

if TYPE_CHECKING:
    from esscher.papers.xlnet.recipe import XLNetStudy

SIZES, BATCH = (2, 3, 4), 64
ABOUT_SPANS = (
    "Nats of the tokens in the middle of held-out windows, given the rest of the window; `gain` is what permutation saves "
    "against denoising, which predicts them independently, and `filled` is denoising one token after the other."
)
Pretrain = Callable[[StudyContext, Any, str, int], Path]


def span_rows(context: StudyContext, study: "XLNetStudy", seed: int, pretrain: Pretrain) -> list[Row]:
    """A row for each size of the span, by the networks of a seed; none if the study has not both objectives, or the test text
    is not in a file of its own."""
    if not {PERMUTED, DENOISING} <= set(study.models) or study.models[PERMUTED].data.test is None:
        return []
    run = study.models[PERMUTED]

    def make(run_dir: Path) -> list[Row]:
        (tokens,) = load_tokenizer(run.tokenizer.kind).encode([Path(str(run.data.test)).read_text(encoding="utf8")])
        window = run.length.window or run.length.tokens
        count = len(tokens) // window
        windows = torch.tensor(tokens[: count * window]).view(count, window)
        permuted, denoising = (load_base(pretrain(context, study, name, seed))[0] for name in (PERMUTED, DENOISING))
        about = {"text": study.name, "seed": seed}
        return [{**about, "tokens": size, **compare_spans(permuted, denoising, windows, size)} for size in SIZES]

    rows: list[Row] = context.row(study.name, "spans", seed, make)
    return rows


def compare_spans(permuted: Any, denoising: Any, windows: torch.Tensor, size: int) -> dict[str, Estimate]:
    """Mean nats of a span by both networks, and what the first saves."""
    nats = {
        PERMUTED: -_scores(permuted, windows, size, permuted_spans),
        DENOISING: -_scores(denoising, windows, size, independent_spans),
        "filled": -_scores(denoising, windows, size, filled_spans),
    }
    nats["gain"] = nats[DENOISING] - nats[PERMUTED]
    return {name: mean_estimate(value, method="windows of the test text", unit="nats") for name, value in nats.items()}


@torch.no_grad()
def _scores(base: NetworkBase, windows: torch.Tensor, size: int, score: SpanScore) -> torch.Tensor:
    span = torch.arange(size) + (windows.shape[1] - size) // 2
    base.eval()
    return torch.cat([score(base, rows, span.expand(len(rows), -1)) for rows in torch.split(windows, BATCH)])
