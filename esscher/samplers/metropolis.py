"""Independence Metropolis-Hastings: propose from the base, accept on the ratio of weights."""

from dataclasses import dataclass

import torch

from esscher.draws import Draws
from esscher.randomness import Rng
from esscher.samplers.importance import Importance
from esscher.space import Sequences
from esscher.target import Tilted


@dataclass(frozen=True)
class Metropolis:
    """The last state of a chain of `steps` proposals, one chain for each draw; biased until the chain forgets its start."""

    steps: int

    def __call__(self, target: Tilted, prompts: Sequences, draws: int, *, rng: Rng) -> Draws:
        length = self.steps + 1
        chains = Importance()(target, prompts, draws * length, rng=rng)  # proposals do not depend on the state
        log_weight = chains.log_weight.view(-1, length)
        at = torch.zeros(len(log_weight), dtype=torch.long, device=log_weight.device)
        moves = torch.zeros_like(at)
        for step in range(1, length):
            gain = log_weight[:, step] - log_weight.gather(1, at[:, None])[:, 0]
            accept = rng.accept(gain.nan_to_num(nan=0.0))  # both forbidden: moving costs nothing
            at, moves = torch.where(accept, step, at), moves + accept
        if bool((log_weight.gather(1, at[:, None]) == -torch.inf).any()):
            raise ValueError(
                f"A chain of {self.steps} steps never left the points that the energy forbids. The draws were dropped; "
                f"raise `steps`, or use Pool with candidates of a base that meets the constraint more often."
            )
        pick = torch.arange(len(at), device=at.device) * length + at
        shape = (len(prompts), draws)
        log_base = chains.log_base.reshape(-1)[pick].view(shape)
        info = {"acceptance": moves.view(shape) / self.steps}
        zeros = torch.zeros_like(log_base)
        return Draws(chains.x.rows(pick), zeros, log_base, estimates_z=False, independent=True, cost=chains.cost, info=info)
