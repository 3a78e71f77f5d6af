"""`python -m benchmarks [NAME ...]`: every benchmark of this folder, or those named, one after the other, into RESULTS.md;
with `--device cuda`, those that run models, into RESULTS-cuda.md."""

import argparse
import os
import shlex
import sys
from pathlib import Path

from benchmarks._device import VARIABLE, device
from benchmarks._runner import benchmark_docs, run, runs_models, write_page
from esscher.core.device import resolve_device

HERE = Path(__file__).parent


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="measure only these; the sections of the others stay")
    parser.add_argument("--repeats", type=int, help="for all of them, instead of what each has by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="where models run: auto, cpu, cuda, cuda:1 (default: cpu)")
    parser.add_argument("--page", action="store_true", help="measure nothing; write the page from what is kept")
    return parser


def main() -> None:
    inputs = arguments().parse_args()
    try:
        os.environ[VARIABLE] = str(resolve_device(inputs.device))
    except ValueError as error:
        sys.exit(str(error))
    if inputs.page:
        return write_page(HERE)
    unknown = [name for name in inputs.names if name not in benchmark_docs(HERE)]
    if unknown:
        sys.exit(f"No benchmark named {unknown[0]!r}. Choose from: {', '.join(benchmark_docs(HERE))}.")
    names = inputs.names or [name for name in benchmark_docs(HERE) if device().type == "cpu" or runs_models(HERE, name)]
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    sys.exit(not run(HERE, names, inputs.repeats, inputs.threads, command))


if __name__ == "__main__":
    main()
