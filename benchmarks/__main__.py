"""`python -m benchmarks [NAME ...]`: every benchmark of this folder, or those named, one after the other."""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    known = sorted(file.stem for file in HERE.glob("*.py") if not file.stem.startswith("_"))
    chosen = sys.argv[1:] or known
    unknown = [name for name in chosen if name not in known]
    if unknown:
        sys.exit(f"No benchmark named {unknown[0]!r}. Choose from: {', '.join(known)}.")
    for name in chosen:
        print(f"\n{name}", flush=True)
        subprocess.run([sys.executable, str(HERE / f"{name}.py")], check=True)


if __name__ == "__main__":
    main()
