"""Serves the comparison in a folder, as `esscher compare` does: `serve_comparison.py FOLDER`."""

import sys
from pathlib import Path

from esscher.explorer.blind_comparison import ComparisonStore, build_comparison_page, make_pairs
from esscher.explorer.config import PageServerConfig
from esscher.explorer.page_app import launch

if __name__ == "__main__":
    texts = [[f"{name} <b>wrote</b> text number {n} here" for n in range(4)] for name in ("first", "second")]
    pairs = make_pairs([f"prompt {n}" for n in range(4)], *texts, seed=0)
    launch(build_comparison_page(ComparisonStore.create_or_resume(Path(sys.argv[1]), pairs, seed=0)), PageServerConfig())
