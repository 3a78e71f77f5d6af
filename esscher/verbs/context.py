"""Comparing how far back several models' contexts help: the whole of `esscher analyse context`."""

from collections.abc import Sequence
from pathlib import Path

from esscher.estimators.context_length import ContextLosses, context_losses, spread_places
from esscher.settings.context import ContextSettings
from esscher.verbs.models import load_model, room_of
from esscher.verbs.run_folder import manner_of
from esscher.verbs.training_streams import read_stream_of


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
        name: context_losses(model.base, tokens, places, settings.lengths, sees=room_of(model.base))
        for name, model in models.items()
    }
    return ContextLosses(settings.lengths, losses)
