"""What starting up loads. Heavy parts are loaded where they are needed, and nowhere else."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("numba", "llvmlite", "polars", "numpy", "pandas", "scipy", "sklearn", "hypothesis")


def loaded_by(code: str) -> set[str]:
    """The heavy modules that a fresh interpreter has loaded after the code."""
    report = f"import sys; print(*[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


def test_the_check_sees_a_heavy_module() -> None:
    assert "numpy" in loaded_by("import numpy")


@pytest.mark.parametrize(
    "code",
    [
        "import tokenyard",
        "import tokenyard.core",
        "from tokenyard.cli import main; main(['--help'])",
        "from tokenyard.cli import main; main(['--version'])",
        "from tokenyard.cli import main; main(['run', '--help'])",
        "from tokenyard.cli import main; main(['synth', '--help'])",
        "from tokenyard.cli import main; main(['nothing'])",
    ],
)
def test_nothing_heavy_is_loaded_before_it_is_needed(code: str) -> None:
    code = f"import io, contextlib\nwith contextlib.redirect_stderr(io.StringIO()):\n    {code}"
    assert loaded_by(code) == set()


def test_importing_the_package_loads_nothing_but_the_standard_library() -> None:
    code = (
        "import sys; before = set(sys.modules); import tokenyard; "
        "new = {m.split('.')[0] for m in set(sys.modules) - before} - {'tokenyard'}; "
        "print(*(m for m in new if m not in sys.stdlib_module_names), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.split() == []


def test_python_m_tokenyard_is_tokenyard() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tokenyard", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "0.1.0"
