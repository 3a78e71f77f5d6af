"""Libraries of the extra `eval`, imported when a metric needs them."""

from importlib import import_module
from types import ModuleType


def library(module: str, what: str) -> ModuleType:
    """The module, or an error that says what cannot be had without it, and how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".")[0].replace("_", "-")
        raise ImportError(
            f'{what} needs {package}, which is not installed. Nothing was computed; pip install "esscher[eval]".'
        ) from error
