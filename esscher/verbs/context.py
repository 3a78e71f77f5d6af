"""Comparing how far back several models' contexts help: the whole of `esscher analyse context`."""

from collections.abc import Sequence
from pathlib import Path

from esscher.bases.network import NetworkBase
from esscher.estimators.context_length import ContextLosses, context_losses, spread_places
from esscher.settings.context import ContextSettings
from esscher.verbs.models import Model, load_model
from esscher.verbs.run_folder import manner_of
from esscher.verbs.stream_material import read_stream_of


def compare_contexts(folders: Sequence[str | Path], data: str, settings: ContextSettings) -> ContextLosses:
    """Losses of the models of these folders on one text, by length of context; they must share their tokens."""
    models = {str(folder): load_model(folder) for folder in folders}
    first = next(iter(models.values()))
    for name, model in models.items():
        if model.tokenizer.backend.get_vocab() != first.tokenizer.backend.get_vocab():
            raise ValueError(
                f"{name} and {first.folder} have different tokens, so their losses are not of the same things. Nothing was "
                f"measured; compare models with one tokenizer."
            )
    tokens = read_stream_of(data, first.tokenizer, *manner_of(first.folder)).tokens
    places = spread_places(settings.places, len(tokens), settings.longest)
    losses = {
        name: context_losses(model.base, tokens, places, settings.lengths, sees=_sees(model)) for name, model in models.items()
    }
    return ContextLosses(settings.lengths, losses)


def _sees(model: Model) -> int | None:
    """The most tokens of context that a base can read, if it has a limit."""
    limit = model.base.network.max_positions if isinstance(model.base, NetworkBase) else None
    return None if limit is None else limit - 1
