"""What folders of energies and labellers keep of their reader: its weights, and of a pretrained one its config and tokenizer.

Adapters are added to the weights they stood beside, so that reading a folder needs no `peft`.
"""

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from esscher.bases.config import BaseConfig
from esscher.energies.adapters import without_adapters
from esscher.energies.building import network_reader
from esscher.energies.encoder import TextReader
from esscher.energies.pretrained import quiet
from esscher.energies.readers import NetworkReader, PretrainedReader
from esscher.storage import module_tensors

READER = "reader"


def save_reader(folder: Path, module: nn.Module) -> dict[str, Tensor]:
    """Write what stands beside the weights, and give the tensors of a module that has a `reader`."""
    reader, tensors = module.reader, module_tensors(module)
    if isinstance(reader, PretrainedReader | TextReader):
        plain = without_adapters(reader.model)
        own = {f"reader.model.{name}": tensor for name, tensor in module_tensors(plain).items()}
        tensors = {**{name: tensor for name, tensor in tensors.items() if not name.startswith("reader.model.")}, **own}
        plain.config.save_pretrained(str(folder / READER))  # type: ignore[union-attr, operator]
        if isinstance(reader, TextReader):
            reader.tokenizer.save_pretrained(str(folder / READER))
    return tensors


def empty_reader(
    folder: Path, network: BaseConfig | None, vocab_size: int | None, opening: int | None, *, both_sides: bool
) -> NetworkReader | PretrainedReader | None:
    """A reader of tokens of the right shape for the weights to be filled in; None where the reader is one of text."""
    if network is not None:
        assert vocab_size is not None
        return network_reader(network, vocab_size, both_sides=both_sides)
    return None if opening is None else PretrainedReader(empty_model(folder / READER), opening, both_sides=both_sides)


def empty_model(folder: Path) -> nn.Module:
    """A model of the right shape for the weights to be filled in."""
    from transformers import AutoConfig, AutoModel

    try:
        with quiet():
            settings: Any = AutoConfig.from_pretrained(str(folder), local_files_only=True)
            return AutoModel.from_config(settings)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{folder} does not describe a network: {error}. Nothing was loaded; restore the folder.") from error
