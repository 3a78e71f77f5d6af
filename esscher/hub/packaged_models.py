"""The one place where the name of a model becomes a folder: a local folder first, then an id of the hub."""

from pathlib import Path

from esscher.hub.hub_snapshot import hub_folder, is_hub_id


def resolve_model_folder(name: str | Path) -> Path:
    """The folder of a model: an existing folder of that path, or else the snapshot of a model of the hub."""
    folder = Path(name)
    if folder.is_dir():
        return folder
    if is_hub_id(str(name)):
        return hub_folder(str(name))
    raise FileNotFoundError(
        f"There is no model folder {name}. Nothing was loaded; check the path, train one there, or name a model of the hub: "
        f"owner/name."
    )


def is_packaged(name: str) -> bool:
    """Whether a name stands for a model that is no folder of the user, but in a cache that others share."""
    return not Path(name).is_dir()
