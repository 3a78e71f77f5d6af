"""The opening symbol of our networks, for readers of `transformers`.

A network of ours reads an opening symbol before the first token. It is no token of the space, and has the number after the
last one. In a folder it is a special token of the tokenizer all the same, begin symbol and padding symbol in one: no text
becomes it, and `AutoTokenizer` puts it before every text, as it does for other models. Our own `Tokenizer` leaves it out.
"""

import json
from dataclasses import replace
from typing import Any

import tokenizers

from esscher.data.tokenizers import Tokenizer
from esscher.space import Space

BEGIN = "<bos>"


def opening_symbol(space: Space) -> int:
    """The number after the last token."""
    return space.vocab_size


def with_opening(tokenizer: Tokenizer, space: Space) -> Tokenizer:
    """The tokenizer with the opening symbol of a network on this space, as it is kept in a folder."""
    number = opening_symbol(space)
    backend = tokenizers.Tokenizer.from_str(tokenizer.backend.to_str())
    if backend.id_to_token(number) is None:
        missing = range(backend.get_vocab_size(), number)  # a vocabulary that was rounded up has numbers without a symbol
        backend.add_special_tokens([*(f"<unused{one}>" for one in missing), _unused(backend, BEGIN)])
    symbol = backend.id_to_token(number)
    if symbol is None:
        raise ValueError(
            f"The tokenizer has no room for an opening symbol after its {number} tokens: their numbers have gaps. Nothing was "
            f"saved; save the base without it, or number the tokens from 0 on."
        )
    settings = {
        **tokenizer.settings,
        "bos_token": symbol,
        "pad_token": symbol,
        "padding_side": "left",
        "model_input_names": ["input_ids", "attention_mask"],
    }
    return replace(tokenizer, backend=_beginning(backend, symbol, number), size=number, settings=settings)


def _unused(backend: tokenizers.Tokenizer, symbol: str) -> str:
    """The symbol, or one like it that no token has."""
    while backend.token_to_id(symbol) is not None:
        symbol = f"<{symbol}>"
    return symbol


def _beginning(backend: tokenizers.Tokenizer, symbol: str, number: int) -> tokenizers.Tokenizer:
    """The same tokenizer, which puts the symbol before every text and no other; what it does to places in the text stays."""
    state: dict[str, Any] = json.loads(backend.to_str())
    before = state["post_processor"] or {}
    steps = before.get("processors", [before] if before else [])
    begin, text = {"SpecialToken": {"id": symbol, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    put = {
        "type": "TemplateProcessing",
        "single": [begin, text],
        "pair": [begin, text, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {symbol: {"id": symbol, "ids": [number], "tokens": [symbol]}},
    }
    processors = [*(step for step in steps if step["type"] == "ByteLevel"), put]
    state["post_processor"] = put if len(processors) == 1 else {"type": "Sequence", "processors": processors}
    return tokenizers.Tokenizer.from_str(json.dumps(state))
