"""A Transformer-XL in the layout of the published PyTorch code, written again for comparison: the peer of `transformer_xl`.

Time first; queries, keys and values by one product of memory and segment together, the memory's queries thrown away; scores
[query, key, row, head] with the softmax over the second axis; the shift by a zero column and a copy; all logits in one tensor.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int):
        super().__init__()
        self.heads, self.each = heads, width // heads
        self.qkv, self.place, self.mix = (nn.Linear(width, size * width, bias=False) for size in (3, 1, 1))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))

    def forward(self, x: Tensor, memory: Tensor, place: Tensor, u: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        both = torch.cat([memory, x])
        (queries, rows), keys = x.shape[:2], len(both)
        q, k, w = (part.view(-1, rows, self.heads, self.each) for part in self.qkv(both).chunk(3, -1))
        r = self.place(place).view(keys, self.heads, self.each)
        q = q[-queries:]
        content = torch.einsum("ibnd,jbnd->ijbn", q + u, k)
        position = torch.einsum("ibnd,jnd->ijbn", q + v, r)
        padded = torch.cat([position.new_zeros(queries, 1, rows, self.heads), position], 1)
        position = padded.view(keys + 1, queries, rows, self.heads)[1:].view_as(position)
        score = (content + position) * self.each**-0.5
        share = score.float().masked_fill(mask[:, :, None, None], -torch.inf).softmax(1)
        seen = torch.einsum("ijbn,jbnd->ibnd", share, w).flatten(2)
        x = self.first(x + self.mix(seen))
        return self.second(x + self.inner(x))


class PublishedLayout(nn.Module):
    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, inner: int, memory: int):
        super().__init__()
        self.width, self.memory = width, memory
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList([Layer(width, heads, inner) for _ in range(layers)])
        self.u, self.v = (nn.Parameter(torch.zeros(heads, width // heads)) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.register_buffer("wavelength", 10_000 ** (torch.arange(0, width, 2) / width))
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, tokens: Tensor, target: Tensor, past: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean loss of a segment [time, row], and the memory after it."""
        x, kept = self.embedding(tokens) * self.width**0.5, []
        queries, before = len(tokens), len(past[0])
        keys = before + queries
        position = torch.arange(keys - 1, -1, -1.0, device=x.device)[:, None] / self.wavelength
        place = torch.cat([position.sin(), position.cos()], -1)
        mask = torch.ones(queries, keys, dtype=torch.bool, device=x.device).triu(1 + before)
        for layer, memory in zip(self.layers, past, strict=True):
            kept.append(torch.cat([memory, x])[-self.memory :].detach())
            x = layer(x, memory, place, self.u, self.v, mask)
        logits = linear(x, self.embedding.weight, self.bias)
        return cross_entropy(logits.view(-1, logits.shape[-1]), target.flatten()), kept
