"""The environment variables that esscher reads, and those of Hugging Face that matter here; without torch.

`esscher env` shows them, docs/guide/command_line.md lists them, and a test compares both with the package.
"""

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
    """A variable: what it does, what holds without it, and whether its value is shown to anyone."""

    name: str
    meaning: str
    default: str
    secret: bool = False

    @property
    def value(self) -> str:
        """The value as it may be shown; empty if the variable is not set."""
        value = os.environ.get(self.name, "")
        return "(set)" if value and self.secret else value


VARIABLES = (
    Variable("ESSCHER_TOKEN", "token that clients of serve, explore and compare must send", "none: loopback only", secret=True),
    Variable("ESSCHER_DEBUG", "any value shows the traceback of an error", "the message alone"),
    Variable("ESSCHER_DATA", "folder with data sets that some recipes read", "../shared/data"),
    Variable("ESSCHER_CACHE", "folder for models that are unpacked once", "~/.cache/esscher"),
    Variable("HF_HUB_OFFLINE", "1 forbids every download", "0"),
    Variable("HF_HUB_CACHE", "folder of what Hugging Face downloads", "~/.cache/huggingface/hub"),
)
