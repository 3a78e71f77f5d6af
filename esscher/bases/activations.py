"""What recurrent networks do to their activations in training: dropout that stays over time, and penalties.

Letters beside those of `esscher.space`: L positions of a segment, D width of a vector.
"""

from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import dropout


def locked(vectors: Float[Tensor, "B L D"], rate: float, training: bool) -> Float[Tensor, "B L D"]:
    """In training, the same of all positions of a row is dropped."""
    if not training or not rate:
        return vectors
    return vectors * dropout(vectors.new_ones(len(vectors), 1, vectors.shape[2]), rate)


def activation_penalty(
    outputs: Float[Tensor, "B L D"],
    dropped: Float[Tensor, "B L D"],
    inside: Bool[Tensor, "B L"],
    alpha: float,
    beta: float,
) -> Float[Tensor, ""]:
    """Of what is inside: `alpha` times the mean square of outputs as dropped, and `beta` times that of changes of outputs."""
    change = _mean_square(outputs[:, 1:] - outputs[:, :-1], inside[:, 1:])
    return _mean_square(dropped, inside) * alpha + change * beta


def _mean_square(vectors: Float[Tensor, "B L D"], inside: Bool[Tensor, "B L"]) -> Float[Tensor, ""]:
    """Over what is inside; 0 where nothing is."""
    return vectors.square().mean(-1).mul(inside).sum() / inside.sum().clamp(min=1)
