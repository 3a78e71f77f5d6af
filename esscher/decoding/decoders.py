"""The `Decoder` protocol, and decoders that choose among draws: a random one, the best of n, or the one of minimum Bayes risk,
the distinct draw y with the highest weighted mean of the utility u(y, z) over the draws z (Kumar & Byrne 2004)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from esscher.core.config import check_at_least
from esscher.core.draws import Draws, Sampler
from esscher.core.randomness import Rng
from esscher.core.space import Sequences
from esscher.core.target import Tilted, flat
from esscher.samplers.ancestral import Ancestral
from esscher.samplers.importance import Importance
from esscher.samplers.sir import SIR

NOT_DECODED = " Nothing was decoded."


@dataclass(frozen=True)
class DecoderOutput:
    """The chosen sequence of each prompt, its log a(x), and the score it was chosen by."""

    x: Sequences
    log_base: Float[Tensor, "P"]
    score: Float[Tensor, "P"]


@runtime_checkable
class Decoder(Protocol):
    """Chooses one sequence of the target after each prompt."""

    def __call__(self, target: Tilted, prompts: Sequences, *, rng: Rng) -> DecoderOutput: ...


PairwiseUtility = Callable[[Sequences], Tensor]
"""u between all pairs of K sequences: `Sequences -> Float[Tensor, "K K"]`, the truth in the columns."""


@dataclass(frozen=True)
class RandomDraw:
    """One random draw of the target."""

    sampler: Sampler | None = None
    """A sampler whose draws have equal weights; None is `Ancestral()`, and SIR for a tilted target."""
    num_candidates: int = 10
    """Candidates of SIR for a tilted target."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_candidates", note=NOT_DECODED)

    def __call__(self, target: Tilted, prompts: Sequences, *, rng: Rng) -> DecoderOutput:
        default = Ancestral() if target.energy is flat else SIR(self.num_candidates)
        draws = (self.sampler or default)(target, prompts, 1, rng=rng)
        if bool((draws.log_weight != 0).any()):
            raise ValueError("These draws are weighted, so one of them is no draw of the target. Nothing was decoded; use SIR.")
        return _pick_draws(draws, torch.zeros(len(prompts), dtype=torch.long), draws.log_base)


@dataclass(frozen=True)
class BestOfN:
    """The draw of the base with the highest log a(x) / length^length_penalty - E(x)."""

    draws: int = 32
    """Draws to choose from."""
    length_penalty: float = 1.0
    """The power of the length that log-probabilities are divided by; 0 leaves them."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "draws", note=NOT_DECODED)
        check_at_least(self, 0, "length_penalty", note=NOT_DECODED)

    def __call__(self, target: Tilted, prompts: Sequences, *, rng: Rng) -> DecoderOutput:
        draws = Importance()(target, prompts, self.draws, rng=rng)
        length = draws.x.lengths.view(draws.log_base.shape).cpu()
        score = draws.log_base / length.double() ** self.length_penalty + draws.log_weight
        return _pick_draws(draws, score.argmax(1), score)


@dataclass(frozen=True)
class MinimumBayesRisk:
    """The draw with the highest mean utility, over all draws by their weight as the truth."""

    draws: int = 32
    """Draws to choose from."""
    utility: Literal["chrf", "bleu"] = "chrf"
    """How good a text is if another is the truth."""
    gain: PairwiseUtility | None = None
    """The utility as a function of sequences, which needs a tokenizer: `texts_utility(utility, decode)`, or one of your own."""
    sampler: Sampler | None = None
    """The sampler of the draws; None is `Importance()`."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "draws", note=NOT_DECODED)

    def __call__(self, target: Tilted, prompts: Sequences, *, rng: Rng) -> DecoderOutput:
        if self.gain is None:
            raise ValueError(
                "MinimumBayesRisk needs `gain` to compare sequences. Nothing was decoded; pass "
                "gain=texts_utility(utility, decode), with the function that decodes sequences to texts."
            )
        draws = (self.sampler or Importance())(target, prompts, self.draws, rng=rng)
        share = torch.softmax(draws.log_weight, -1)
        groups = [draws.x.rows(slice(row * self.draws, (row + 1) * self.draws)) for row in range(len(prompts))]
        score = torch.stack([_mean_gain(self.gain, x, share[row]) for row, x in enumerate(groups)])
        return _pick_draws(draws, score.argmax(1), score)


def texts_utility(utility: str, decode: Callable[[Sequences], Sequence[str]]) -> PairwiseUtility:
    """The utility of that name between the texts of sequences."""
    from esscher.metrics.utility import pairwise

    return lambda x: pairwise(utility, decode(x))


def _mean_gain(gain: PairwiseUtility, x: Sequences, share: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    """The mean gain of each draw of a prompt, over the distinct draws by their weight."""
    keys: dict[tuple[int, ...], int] = {}
    which = torch.tensor([keys.setdefault(tuple(point), len(keys)) for point in x.points()])
    first = torch.tensor([which.tolist().index(number) for number in range(len(keys))])
    weight = torch.zeros(len(keys), dtype=share.dtype).index_add(0, which, share)
    return (gain(x.rows(first.to(x.tokens.device))).to(weight) @ weight)[which]


def _pick_draws(draws: Draws, pick: Int[Tensor, "P"], score: Float[Tensor, "P N"]) -> DecoderOutput:
    """The picked draw of each prompt."""
    prompts, count = draws.log_base.shape
    rows = torch.arange(prompts)
    x = draws.x.rows((rows * count + pick).to(draws.x.tokens.device))
    return DecoderOutput(x, draws.log_base[rows, pick], score[rows, pick])
