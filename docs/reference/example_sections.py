"""Extension of griffe: the section `Example:` of a docstring is rendered as `Examples:`, with highlighted code."""

from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Rename the section before docstrings are parsed; the Google style knows only the plural."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of any object."""
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
