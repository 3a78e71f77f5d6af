"""esscher env: what this machine and installation have."""

import os
import platform
from importlib import metadata

from cyclopts import App

from esscher.commands.flags import Json
from esscher.commands.output import Answer, show

app = App(name="env", help_epilogue="Example: esscher env --json")

PACKAGES = ("esscher", "torch", "transformers", "tokenizers", "datasets", "accelerate", "safetensors", "scipy", "numpy")
EXTRAS = {"tensorboard": "track"}


@app.default
def env(*, json: Json = False) -> None:
    """Versions, processors, memory, accelerators; what to name in a report of a problem."""
    import torch

    facts = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "threads": torch.get_num_threads(),
        "cuda": torch.cuda.is_available(),
        "hub_offline": os.environ.get("HF_HUB_OFFLINE", "0") not in ("0", ""),
    }
    rows = [{"package": name, "version": _version(name), "extra": EXTRAS.get(name, "")} for name in (*PACKAGES, *EXTRAS)]
    show(Answer("esscher env", facts, {"packages": rows}), as_json=json)


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
