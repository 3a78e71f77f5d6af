"""Which prompt each row of a state continues: what is made of a prompt is kept once, however many rows go on from it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Owners:
    """Which prompt each row continues, and the rows arranged by it: [B, ...] to [P, N, ...] and back."""

    def __init__(self, owner: Int[Tensor, "B"], prompts: int):
        self.owner, self.prompts = owner, prompts
        counts = owner.bincount(minlength=prompts)
        self.width = int(counts.max())
        rows = torch.arange(len(owner), device=owner.device)
        order = owner.argsort(stable=True)
        rank = rows - (counts.cumsum(0) - counts)[owner[order]]
        place = torch.empty_like(owner).index_copy(0, order, owner[order] * self.width + rank)
        self.place = None if len(owner) == prompts * self.width and torch.equal(place, rows) else place

    def arrange(self, rows: Float[Tensor, "B ..."]) -> Float[Tensor, "P N ..."]:
        if self.place is not None:
            rows = rows.new_zeros(self.prompts * self.width, *rows.shape[1:]).index_copy(0, self.place, rows)
        return rows.reshape(self.prompts, self.width, *rows.shape[1:])

    def restore(self, arranged: Float[Tensor, "P N ..."]) -> Float[Tensor, "B ..."]:
        rows = arranged.flatten(0, 1)
        return rows if self.place is None else rows.index_select(0, self.place)

    def select(self, index: Int[Tensor, "K"]) -> tuple["Owners", Int[Tensor, "Q"] | None]:
        """The owners of the chosen rows; and, when a prompt has no row left, which prompts have."""
        owner = self.owner[index]
        used, numbered = torch.unique(owner, return_inverse=True)
        if len(used) == self.prompts:
            return Owners(owner, self.prompts), None
        return Owners(numbered, len(used)), used
