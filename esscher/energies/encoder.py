"""Pretrained encoders of Hugging Face as readers: local folders only, safetensors only, nothing is ever fetched.

An encoder with a tokenizer of its own reads text: prompt and point are decoded together and cut anew. What decoding drops,
such as the end symbol, it cannot see. A text longer than it can read loses its beginning, the prompt's first.
"""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from esscher.energies.pretrained import longest_text, read_tokenizer, read_weights
from esscher.energies.readers import PretrainedReader, Read
from esscher.energies.reading import Decode
from esscher.space import Sequences


class TextReader(nn.Module):
    """An encoder with its own tokenizer, on the text that `decode` makes of the base's tokens."""

    model: Any

    def __init__(self, model: nn.Module, tokenizer: Any, decode: Decode):
        super().__init__()
        if not tokenizer.is_fast or tokenizer.pad_token_id is None:
            raise ValueError(
                f"{type(tokenizer).__name__} cannot tell where its tokens lie in a text, or has no padding symbol. Nothing was "
                f"made; use an encoder with a fast tokenizer (a tokenizer.json)."
            )
        self.model, self.tokenizer, self.decode = model, tokenizer, decode
        self.width = int(self.model.config.hidden_size)
        self.longest = longest_text(model, tokenizer)

    def forward(self, x: Sequences) -> Read:
        rows = zip(x.tokens.tolist(), x.start.tolist(), x.stop.tolist(), strict=True)
        pairs = [(tuple(row[:start]), row[:stop]) for row, start, stop in rows]
        prompts = list(dict.fromkeys(prompt for prompt, _ in pairs))
        shown = dict(zip(prompts, self.decode([list(prompt) for prompt in prompts]), strict=True))
        texts = self.decode([whole for _, whole in pairs])
        begins = [_agreement(shown[prompt], text) for (prompt, _), text in zip(pairs, texts, strict=True)]
        self.tokenizer.truncation_side = "left"
        found = self.tokenizer(
            texts, padding=True, truncation=self.longest is not None, max_length=self.longest, return_tensors="pt",
            return_offsets_mapping=True, return_special_tokens_mask=True,
        )  # fmt: skip
        device = next(self.model.parameters()).device
        ids, inside = found["input_ids"].to(device), found["attention_mask"].to(device)
        vectors = self.model(input_ids=ids, attention_mask=inside).last_hidden_state
        point = _of_the_point(found["offset_mapping"], found["special_tokens_mask"].bool(), torch.tensor(begins)).to(device)
        return Read(vectors, inside.bool(), point & inside.bool())


def _of_the_point(places: Tensor, special: Bool[Tensor, "B U"], begins: Tensor) -> Bool[Tensor, "B U"]:
    """Columns whose text ends after the prompt's, and the symbols that follow the last token of all; never none."""
    column = torch.arange(special.shape[1])
    last = torch.where(special, -1, column).amax(-1, keepdim=True)
    found = torch.where(special, column > last, places[..., 1] > begins[:, None])
    return torch.where(found.any(-1, keepdim=True), found, column == last.clamp(min=0))


def _agreement(prompt: str, text: str) -> int:
    """Characters of a text that are its prompt's: nearly always all of them, fewer where a character is cut between both."""
    if text.startswith(prompt):
        return len(prompt)
    return next((place for place, (one, other) in enumerate(zip(prompt, text, strict=False)) if one != other), len(text))


def load_encoder(folder: str | Path) -> nn.Module:
    """The encoder of a folder (`AutoModel`), in single precision."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no encoder folder {folder}. Nothing was loaded or fetched; check the path.")
    model, lacking = read_weights(folder, "AutoModel", "encoder")
    missing = [name for name in lacking if not name.startswith("pooler.")]
    if missing:
        raise ValueError(
            f"The weights in {folder} do not fill the encoder: {len(missing)} tensors are missing, the first is {missing[0]}. "
            f"Nothing was loaded; restore the files, or the config they came with."
        )
    return model


def with_dropout(model: nn.Module, rate: float | None) -> nn.Module:
    """A model of `transformers` with this rate wherever it drops values, layers and attention alike; None leaves its own."""
    for module in model.modules() if rate is not None else ():
        if isinstance(module, nn.Dropout):
            module.p = float(rate or 0)
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = rate  # type: ignore[assignment]
    return model


def encoder_of_tokens(model: nn.Module, folder: str | Path, vocab_size: int) -> PretrainedReader:
    """An encoder that reads the base's tokens as they are, after its own first symbol."""
    reads = getattr(model.config, "vocab_size", None)
    if reads != vocab_size:
        raise ValueError(
            f"The encoder in {folder} reads {reads} tokens and the base speaks {vocab_size}. Nothing was made; let it read "
            f"text."
        )
    tokenizer = read_tokenizer(Path(folder), "encoder")
    opening = tokenizer.cls_token_id if tokenizer.cls_token_id is not None else tokenizer.bos_token_id
    if opening is None:
        raise ValueError(f"The tokenizer in {folder} has no first symbol (cls or bos). Nothing was made; let it read text.")
    return PretrainedReader(model, int(opening), both_sides=True)
