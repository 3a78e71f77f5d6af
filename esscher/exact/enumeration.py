"""Every point of a small space, in one fixed order, after any prompts."""

import torch

from esscher.space import Sequences, Space, empty_prompts

LARGEST = 2**20


def count_points(space: Space) -> int:
    """How many points the space has."""
    if space.eos is None:
        return space.vocab_size**space.max_length
    symbols = space.vocab_size - 1
    return sum(symbols**length for length in range(space.max_length)) + symbols**space.max_length


def enumerate_points(space: Space, prompts: Sequences | None = None) -> Sequences:
    """All points after each prompt (by default one empty prompt), prompt-major, the same order for each.

    Points that end come first, by length; then those of full length without an end symbol.
    """
    prompts = empty_prompts(1) if prompts is None else prompts
    count = count_points(space)
    if count * len(prompts) > LARGEST:
        raise ValueError(
            f"The space has {count:,} points after each of {len(prompts)} prompts; enumeration stops at {LARGEST:,} rows. "
            f"Use fewer prompts, a shorter max_length, or an automaton, which needs no enumeration."
        )
    device = prompts.tokens.device
    points, lengths = (part.to(device) for part in _points(space))
    rows = prompts.repeat(count)
    width = int(prompts.start.max()) + space.max_length
    tokens = torch.nn.functional.pad(rows.tokens, (0, width - rows.tokens.shape[1]))
    points, lengths = points.repeat(len(prompts), 1), lengths.repeat(len(prompts))
    position = torch.arange(space.max_length, device=device)
    row, column = (position < lengths[:, None]).nonzero(as_tuple=True)
    tokens[row, rows.start[row] + column] = points[row, column]
    return Sequences(tokens, rows.start, rows.start + lengths)


def _points(space: Space) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of all points, padded, and their lengths."""
    symbols = torch.tensor([v for v in range(space.vocab_size) if v != space.eos], dtype=torch.long)
    ended = range(space.max_length) if space.eos is not None else ()
    blocks, lengths = [], []
    for length in [*ended, space.max_length]:
        number = torch.arange(len(symbols) ** length)[:, None]
        digits = number // len(symbols) ** torch.arange(length - 1, -1, -1) % max(len(symbols), 1)
        words = torch.zeros(len(number), space.max_length, dtype=torch.long)
        words[:, :length] = symbols[digits]
        if length < space.max_length:
            words[:, length] = space.eos if space.eos is not None else 0
        blocks.append(words)
        lengths.append(torch.full((len(number),), min(length + 1, space.max_length)))
    return torch.cat(blocks), torch.cat(lengths)
