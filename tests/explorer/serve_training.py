"""Serves the page of a run that trains, as `esscher explore` does for a folder without a model: `serve_training.py FOLDER`."""

import sys
from pathlib import Path

from esscher.explorer.config import PageServerConfig
from esscher.explorer.page_app import launch
from esscher.explorer.runs import find_runs
from esscher.explorer.runs_page import build_training_page

if __name__ == "__main__":
    place = Path(sys.argv[1])
    launch(build_training_page(place, find_runs(place)), PageServerConfig())
