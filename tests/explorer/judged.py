"""Serves the comparison in a folder, as `esscher compare` does: `judged.py FOLDER`."""

import sys
from pathlib import Path

from esscher.explorer.ballots import Ballots, make_pairs
from esscher.explorer.compare_page import build_comparison
from esscher.explorer.serving import Serving, serve

if __name__ == "__main__":
    texts = [[f"{name} <b>wrote</b> text number {n} here" for n in range(4)] for name in ("first", "second")]
    pairs = make_pairs([f"prompt {n}" for n in range(4)], *texts, seed=0)
    serve(build_comparison(Ballots.begin(Path(sys.argv[1]), pairs, seed=0)), Serving())
