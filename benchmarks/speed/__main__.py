"""Every speed benchmark of this folder, one after the other, each in a process of its own.

python -m benchmarks.speed                                  # on the CPU
python -m benchmarks.speed --device cuda --out figures      # on the GPU; figures/NAME.json for each that writes
python -m benchmarks.speed core trajectory                  # some of them
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NOT_RUN = {"__init__", "__main__", "check", "growth_page", "harness", "page", "peer_environment"}


def main() -> None:
    names = sorted({path.stem for path in HERE.glob("*.py")} - NOT_RUN)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *names], help=f"which of {', '.join(names)}; all if none")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="a folder for the figures")
    options = parser.parse_args()
    failed = []
    for name in options.names or names:
        print(f"\n== {name}", flush=True)
        command = [sys.executable, "-m", f"benchmarks.speed.{name}", "--device", options.device]
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            command += ["--out", str(options.out / f"{name}.json")]
        if subprocess.run(command, cwd=HERE.parents[1]).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
