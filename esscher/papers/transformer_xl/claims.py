"""What the thesis claims of a memory (chapter 3), as comparisons of the rows of the recipe."""

from collections.abc import Mapping, Sequence

from esscher.papers.stream_effects import Comparison, Side
from esscher.papers.streams import EvaluationMode, StreamStudy

NO_MEMORY, XL, LSTM = "no memory", "Transformer-XL", "LSTM"


def claims_of(studies: Sequence[StreamStudy]) -> list[Comparison]:
    """The claims on every study that has a stack with and without a memory."""
    return [
        claim
        for study in studies
        if {NO_MEMORY, XL} <= set(study.models)
        for claim in memory_claims(study.name, study.evaluation_modes, recurrent=LSTM in study.models)
    ]


def memory_claims(study: str, modes: Mapping[str, Sequence[EvaluationMode]], *, recurrent: bool = False) -> list[Comparison]:
    """A memory against segments that stand alone, also when these are read with a window; a longer one at evaluation; and,
    where the study has it, against a recurrent network of as many parameters."""
    alone, memory = Side(study, NO_MEMORY), Side(study, XL)
    claims = [Comparison(f"{study}: a memory helps", memory, alone, thesis="1.11 → 1.06 (enwik8), 1.13 → 1.08 (text8)")]
    for mode in modes.get(NO_MEMORY, ()):
        window = Side(study, NO_MEMORY, mode.name)
        claims.append(Comparison(f"{study}: a memory beats a window of {mode.name}", memory, window))
    for mode in modes.get(XL, ()):
        longer = Side(study, XL, mode.name)
        claims.append(Comparison(f"{study}: a memory of {mode.name} at evaluation helps", longer, memory, thesis="helps"))
    if recurrent:
        claims.append(
            Comparison(f"{study}: Transformer-XL beats an LSTM", memory, Side(study, LSTM), thesis="1.24 → 1.06 (enwik8)")
        )
    return claims
