"""Tokenizers: character, byte, word and byte-level BPE, trained here, or any pretrained tokenizer; without BOS tokens.

A special token that is spelt out in a text is read as its characters. Words are separated by whitespace, case kept, and
numbered by frequency after the end symbol and the unknown word, as adaptive softmax needs. BPE is numbered by merge order.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from esscher.core.bounded_files import RefusedError
from esscher.core.manifest import check_manifest, write_manifest
from esscher.core.reading import read_json_object
from esscher.core.storage import write_file

EOS_TOKEN = "<eos>"
UNKNOWN_CHARACTER = "\ufffd"  # the Unicode replacement character
UNKNOWN_WORD = "<unk>"
NAME_KEY, SIZE_KEY = "esscher_name", "esscher_size"  # settings in the folders of tokenizers trained here
TOKENIZER_FILES = ("special_tokens_map.json", "tokenizer_config.json", "tokenizer.json")
TOKENIZER_KINDS = ("character", "byte", "word", "bpe")


@dataclass(frozen=True)
class Encoding:
    """Tokens of one text; `ends[i]` is the offset in the text at which token i ends."""

    tokens: list[int]
    ends: list[int]


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer of the library `tokenizers`, and the id of its end symbol. `size` is the vocabulary size of the model if that
    differs, mostly because it was rounded up; the additional tokens decode to nothing. `settings` are those of a pretrained
    tokenizer, which are saved with it."""

    backend: tokenizers.Tokenizer
    eos: int
    name: str
    size: int | None = None
    settings: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def vocab_size(self) -> int:
        return self.backend.get_vocab_size() if self.size is None else self.size

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, vocab_size={self.vocab_size}, eos={self.eos})"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The tokens of each text, without an end symbol."""
        return [encoding.tokens for encoding in self.encode_with_offsets(texts)]

    def encode_with_offsets(self, texts: Sequence[str]) -> list[Encoding]:
        """The same with the offset at which each token ends, to count words and bytes."""
        try:
            encodings = self.backend.encode_batch(list(texts), add_special_tokens=False)
        except Exception as error:  # the library raises no narrower class
            raise ValueError(
                f"{self!r} cannot read a text: {error}. Nothing was encoded; use its alphabet, or restore its tokenizer.json."
            ) from error
        return [Encoding(encoding.ids, [end for _, end in encoding.offsets]) for encoding in encodings]

    def decode(self, points: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of tokens, without special tokens."""
        return self.backend.decode_batch([list(point) for point in points], skip_special_tokens=True)

    def files(self) -> dict[str, bytes]:
        """Names and contents of the files, in the format of Hugging Face."""
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            **self.settings,
            "eos_token": self.backend.id_to_token(self.eos),
            "clean_up_tokenization_spaces": False,
            NAME_KEY: self.name,
            **({} if self.size is None else {SIZE_KEY: self.size}),
        }
        content = {"tokenizer.json": self.backend.to_str(pretty=True), "tokenizer_config.json": json.dumps(settings, indent=2)}
        return {name: (text + "\n").encode() for name, text in content.items()}

    def save(self, folder: str | Path) -> None:
        """Write the files, which `load_tokenizer` and Hugging Face's `AutoTokenizer` read."""
        for name, content in self.files().items():
            write_file(Path(folder) / name, content)
        write_manifest(Path(folder), self.files())


def train_tokenizer(kind: str, texts: Iterable[str], *, vocab_size: int = 1000, min_frequency: int = 1) -> Tokenizer:
    """Train a tokenizer of one of `TOKENIZER_KINDS`; `vocab_size` is for bpe and words, `min_frequency` for words."""
    if kind == "character":
        return character_tokenizer("".join(sorted(set().union(*texts))))
    if kind == "byte":
        symbols = [EOS_TOKEN, *sorted(pre_tokenizers.ByteLevel.alphabet())]
        return _with_eos(_byte_level(models.BPE(_numbered(symbols), []), split_words=False), "byte")
    if kind == "word":
        return _train_words(texts, vocab_size, min_frequency)
    if kind == "bpe":
        return _train_bpe(texts, vocab_size)
    raise ValueError(
        f"Unknown tokenizer {kind!r}; the known ones are {', '.join(TOKENIZER_KINDS)}, or a folder with a tokenizer.json."
    )


def character_tokenizer(alphabet: str, *, eos: int = 0, unknown: bool = True) -> Tokenizer:
    """One token for each character, numbered in the order of `alphabet` around `eos`. With `unknown`, other characters become
    one last token; without, they are an error."""
    symbols = [*alphabet, *([UNKNOWN_CHARACTER] if unknown and UNKNOWN_CHARACTER not in alphabet else [])]
    symbols.insert(eos, EOS_TOKEN)
    backend = tokenizers.Tokenizer(models.WordLevel(_numbered(symbols), unk_token=UNKNOWN_CHARACTER))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return _with_eos(backend, "character")


def load_tokenizer(
    folder: str | Path, *, eos: str | None = None, ends: Sequence[int] = (), size: int | None = None
) -> Tokenizer:
    """The tokenizer of a folder, trained here or pretrained; `eos` names the end symbol if the folder does not. `ends` are the
    end symbols of its model, whose first is used if the tokenizer's is none of them; `size` is the model's vocabulary size."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"There is no folder {folder} to load a tokenizer from. Nothing was loaded; check the path.")
    check_manifest(folder, TOKENIZER_FILES)
    settings = {**_settings(folder / "special_tokens_map.json"), **_settings(folder / "tokenizer_config.json")}
    backend = _backend(folder)
    stated = settings.get("eos_token")
    symbol = eos or (stated.get("content") if isinstance(stated, dict) else stated)
    number = backend.token_to_id(symbol) if isinstance(symbol, str) else None
    if ends and number not in ends:
        number = ends[0]
    if number is None:
        what = "states no end symbol" if symbol is None else f"has no token {symbol!r}"
        raise ValueError(f"The tokenizer of {folder} {what}. Nothing was loaded; name one of its tokens with eos=.")
    if size is None and isinstance(stated_size := settings.get(SIZE_KEY), int):
        size = stated_size
    special = {token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special}  # never in a text
    vocabulary = backend.get_vocab().items()
    beyond = [symbol for symbol, token in vocabulary if size is not None and token >= size and token not in special]
    if beyond:
        raise ValueError(
            f"The tokenizer in {folder} has {len(beyond)} tokens that the model lacks, {beyond[0]!r} among them: the model "
            f"has {size}. Nothing was loaded; restore the tokenizer it was trained on."
        )
    backend.encode_special_tokens = True
    backend.no_padding()
    backend.no_truncation()
    return Tokenizer(backend, number, str(settings.get(NAME_KEY, folder.name)), size, settings)


def _settings(file: Path) -> dict[str, object]:
    return read_json_object(file) if file.is_file() else {}


def _backend(folder: Path) -> tokenizers.Tokenizer:
    """From tokenizer.json, or converted by `transformers` from the older formats."""
    file = folder / "tokenizer.json"
    if file.is_file():
        try:
            return tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises no narrower class
            raise ValueError(f"The file {file} is no tokenizer: {error}. Nothing was loaded; restore it.") from error
    from esscher.core.model_folder import load_pretrained

    try:
        return load_pretrained("AutoTokenizer", folder).backend_tokenizer
    except RefusedError:
        raise
    except Exception as error:  # files missing, of an unknown class, or not convertible
        raise FileNotFoundError(f"The folder {folder} has no readable tokenizer: {error}. Nothing was loaded.") from error


def byte_symbols() -> list[str]:
    """The symbol of each byte in a byte-level vocabulary: its own character if printable, else the next one past 255."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = {byte: 256 + number for number, byte in enumerate(byte for byte in range(256) if byte not in printable)}
    return [chr(others.get(byte, byte)) for byte in range(256)]


def _numbered(symbols: Sequence[str]) -> dict[str, int]:
    return {symbol: number for number, symbol in enumerate(symbols)}


def _byte_level(model: models.BPE, *, split_words: bool) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split_words)
    backend.decoder = decoders.ByteLevel()
    return backend


def _train_bpe(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < len(alphabet) + 1:
        raise ValueError(
            f"Byte-level BPE has the {len(alphabet)} bytes and the end symbol before its first merge, so vocab_size = "
            f"{vocab_size} is too small. Nothing was trained; use at least {len(alphabet) + 1}, or the byte tokenizer."
        )
    backend = _byte_level(models.BPE(), split_words=True)
    options: dict[str, Any] = {"special_tokens": [EOS_TOKEN], "initial_alphabet": alphabet, "show_progress": False}
    backend.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocab_size, **options))
    return _with_eos(backend, "bpe")


def _train_words(texts: Iterable[str], vocab_size: int, min_frequency: int) -> Tokenizer:
    """Words by frequency; the end symbol, spelt out in a text, is an unknown word."""
    count = Counter(word for text in texts for word in text.split())
    special = [EOS_TOKEN, UNKNOWN_WORD]
    frequent = sorted(
        (word for word in count if count[word] >= min_frequency and word not in special), key=lambda w: (-count[w], w)
    )
    words = [*special, *frequent[: max(0, vocab_size - len(special))]]
    backend = tokenizers.Tokenizer(models.WordLevel(_numbered(words), unk_token=UNKNOWN_WORD))
    backend.normalizer = normalizers.Replace(Regex(rf"(?<!\S){EOS_TOKEN}(?!\S)"), UNKNOWN_WORD)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _with_eos(backend, "word")


def _with_eos(backend: tokenizers.Tokenizer, name: str) -> Tokenizer:
    backend.add_special_tokens([EOS_TOKEN])
    backend.encode_special_tokens = True
    eos = backend.token_to_id(EOS_TOKEN)
    assert eos is not None
    return Tokenizer(backend, eos, name)
