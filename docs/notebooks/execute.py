"""Execute the notebooks of this folder in place, so that the outputs that are committed are those of the code beside them:

    python docs/notebooks/execute.py laboratory own_text

`parameters` replaces values in the cell with the tag `parameters`, as papermill does; the tests use it for small
versions. Times of execution and everything else that changes from run to run are not kept.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the same sums on every machine


def run_notebook(path: Path, folder: Path, parameters: dict[str, Any] | None = None) -> nbformat.NotebookNode:
    """The notebook, executed with `folder` as its working directory; an error of a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if "parameters" in cell.metadata.get("tags", []):
            cell.source = set_parameters(cell.source, parameters or {})
    place = {"metadata": {"path": str(folder)}}
    client = NotebookClient(notebook, timeout=1800, startup_timeout=300, kernel_name="python3", resources=place)
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]  # progress bars
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "language_info")}
    notebook.metadata["language_info"] = {"name": "python"}
    return notebook


def set_parameters(source: str, parameters: dict[str, Any]) -> str:
    """The assignments of a cell with other values; an error if one of them is not there."""
    for name, value in parameters.items():
        pattern = re.compile(rf"^{name} = [^#\n]*?(?=  #|$)", re.MULTILINE)
        if not pattern.search(source):
            raise ValueError(f"The cell of parameters does not assign {name}.")
        source = pattern.sub(lambda _, line=f"{name} = {value!r}": line, source)
    return source


if __name__ == "__main__":
    import tempfile

    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(run_notebook(FOLDER / f"{name}.ipynb", Path(folder)), FOLDER / f"{name}.ipynb")
        print(f"{name}.ipynb: {(FOLDER / f'{name}.ipynb').stat().st_size / 1000:.0f} kB")
