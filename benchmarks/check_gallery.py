"""How long `tokenyard check` takes to its first finding, over the gallery of broken schedulers.

Whole processes, from start to exit, one after the other: python benchmarks/check_gallery.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

BROKEN = Path(__file__).parent.parent / "tests" / "gallery" / "broken"


def main() -> None:
    """Print the times, the slowest last."""
    times: dict[str, float] = {}
    for path in sorted(BROKEN.glob("*.py")):
        begun = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "tokenyard", "check", str(path)],
            capture_output=True,
            check=False,
        )
        times[path.stem] = time.perf_counter() - begun
        if done.returncode != 1:
            sys.exit(f"{path.name}: exit code {done.returncode}, expected a finding (1)")
    slowest = sorted(times, key=lambda name: times[name])[-5:]
    print(f"{len(times)} broken schedulers")
    print(f"median {statistics.median(times.values()):.2f} s, worst {max(times.values()):.2f} s")
    for name in slowest:
        print(f"  {times[name]:6.2f} s  {name}")


if __name__ == "__main__":
    main()
