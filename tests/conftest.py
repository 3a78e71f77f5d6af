"""Shapes in signatures are checked while the tests run; one thread a worker, because workers share the cores."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from jaxtyping import install_import_hook

install_import_hook("esscher", "beartype.beartype")

import torch

torch.set_num_threads(1)
