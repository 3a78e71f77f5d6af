"""`python -m benchmarks [NAME ...]`: every benchmark of this folder, or those named, one after the other, into RESULTS.md."""

import argparse
import shlex
import sys
from pathlib import Path

from benchmarks._runner import benchmark_docs, run, write_page

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="measure only these; the sections of the others stay")
    parser.add_argument("--repeats", type=int, help="for all of them, instead of what each has by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page from what is kept")
    inputs = parser.parse_args()
    if inputs.page:
        return write_page(HERE)
    unknown = [name for name in inputs.names if name not in benchmark_docs(HERE)]
    if unknown:
        sys.exit(f"No benchmark named {unknown[0]!r}. Choose from: {', '.join(benchmark_docs(HERE))}.")
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    sys.exit(not run(HERE, inputs.names or list(benchmark_docs(HERE)), inputs.repeats, inputs.threads, command))


if __name__ == "__main__":
    main()
