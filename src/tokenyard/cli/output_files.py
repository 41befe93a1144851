"""Files that a command writes: whole or not at all, and errors that name them."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tokenyard.cli.exit_codes import UsageError


def different_files(read: Mapping[str, Path | None], written: Mapping[str, Path | None]) -> None:
    """Raises `UsageError` if a file that is written is one that is read, or written twice. Each is
    named by the argument that it came with."""
    known: dict[Path, str] = {}
    for name, path in (*read.items(), *written.items()):
        if path is None or (path.exists() and not path.is_file()):
            continue
        if name in written and path.resolve() in known:
            raise UsageError(f"{name} {path} would overwrite {known[path.resolve()]}")
        known[path.resolve()] = f"{name} {path}"


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an `OSError` name the file that the person asked for: a full disk names none."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise OSError(errno.EIO, str(error), str(path)) from error
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A new file beside `path`, which takes its place when the block ends well, and goes when it
    does not. What is no plain file, such as /dev/stdout, is given as it is.

    Raises `OSError`, at once where nothing can be written there.
    """
    with naming(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            yield path
            return
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        try:
            yield Path(name)
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
