"""How long the command line takes to start: whole processes, medians, taken in turns.

python benchmarks/startup.py [ROUNDS]
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "python -c 'import cyclopts'": [sys.executable, "-c", "import cyclopts"],
    "python -c 'import tokenyard'": [sys.executable, "-c", "import tokenyard"],
    "tokenyard --help": [sys.executable, "-m", "tokenyard", "--help"],
    "tokenyard run --help": [sys.executable, "-m", "tokenyard", "run", "--help"],
    "tokenyard run examples/requests.csv": [
        *(sys.executable, "-m", "tokenyard", "run", "examples/requests.csv"),
    ],
}


def main(rounds: int) -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(rounds + 1):
        for name, command in COMMANDS.items():
            begin = time.perf_counter()
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            times[name].append(time.perf_counter() - begin)
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, {rounds} rounds after one")
    for name, taken in times.items():
        kept = sorted(taken[1:])
        print(f"{statistics.median(kept) * 1e3:8.0f} ms  {name}  ({kept[0] * 1e3:.0f} at best)")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
