"""The schedule log: JSON Lines that say, step by step, what changed.

docs/schedule-log.md is its page.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import msgspec

from tokenyard.core import Rules, RulesError
from tokenyard.engine.ticks import TICK_S

FORMAT = "tokenyard.schedule/1"


class Arrival(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """A request as it is first seen by the planning of a step."""

    id: str
    arrival: int
    prompt_tokens: int
    max_tokens: int
    priority: int = 0
    deadline: int | None = None
    predicted_tokens: int | None = None
    token_ids: tuple[int, ...] | None = None
    hash_ids: tuple[int, ...] | None = None
    hash_block_size: int = 512
    prefix_group: str | None = None
    prefix_tokens: int = 0


class Header(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The first line. `rules` holds fields of Rules by name; absent ones have their defaults.

    `output_token`: the id of every output token, where the engine produced one and the same (a
    simulated runner); absent: what output says is not known.
    """

    format: str
    rules: dict[str, object] = {}
    tick_s: float = TICK_S
    source: str = ""
    output_token: int | None = None


class Step(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """One step: what changed. Times in ticks; an absent list is empty.

    `decode` None: every request that was in DECODE when the step was planned, and was not
    preempted in it, got its token.
    With `repeat` > 1 the line stands for so many steps of nothing but decodes, each
    `duration_growth` ticks longer than the one before; `free_blocks` is that after the last.
    """

    step: int
    start: int
    duration: int
    arrived: list[Arrival] = []
    rejected: list[tuple[str, str]] = []
    prefill: list[tuple[str, int]] = []
    cached: list[tuple[str, int]] = []
    decode: list[str] | None = None
    preempted: list[str] = []
    aborted: list[str] = []
    finished: list[tuple[str, str]] = []
    free_blocks: int | None = None
    repeat: int = 1
    duration_growth: int = 0
    waiting: list[str] | None = None
    running: list[str] | None = None


class LogError(ValueError):
    """A file is not a schedule log; the message names the file, the line, the field and what was
    expected."""


def header_of(rules: Rules, source: str = "", output_token: int | None = None) -> Header:
    """The header of a log that is made under these rules, every field of them named."""
    return Header(FORMAT, asdict(rules), source=source, output_token=output_token)


def rules_of(header: Header) -> Rules:
    """The rules that a header tells. Raises `RulesError` for a field that is none, or its value."""
    known = asdict(Rules())
    for name in header.rules:
        if name not in known:
            raise RulesError(f"{name!r} is no rule (rules are {', '.join(known)})")
    return Rules(**cast("dict[str, Any]", header.rules))


# ---------------------------------------------------------------------- repeated steps


def only_decodes(step: Step) -> bool:
    """Whether nobody joins, leaves or changes state in the step, and no queue is shown: every
    request in DECODE got its token, and that is all."""
    return step.decode is None and not (
        step.prefill
        or step.finished
        or step.arrived
        or step.preempted
        or step.aborted
        or step.rejected
        or step.cached
        or step.waiting is not None
        or step.running is not None
    )


def end_of(step: Step) -> int:
    """The tick at which the (last) step of a line is over."""
    count = step.repeat
    return step.start + count * step.duration + step.duration_growth * (count * (count - 1) // 2)


def expand(step: Step) -> Iterator[Step]:
    """The steps that a line stands for, one by one; `free_blocks` is known of the last alone."""
    if step.repeat == 1:
        yield step
        return
    start, duration = step.start, step.duration
    for place in range(step.repeat):
        last = place == step.repeat - 1
        free_blocks = step.free_blocks if last else None
        yield Step(step.step + place, start, duration, free_blocks=free_blocks)
        start += duration
        duration += step.duration_growth


# ---------------------------------------------------------------------- writing


class LogWriter:
    """Writes a schedule log: `write` the header, then every step, inside a `with` block.

    Runs of steps in which nothing happens but decodes become one line. A path that ends in `.zst`
    is compressed; `-` is standard output. However the block is left, what is there is a valid log
    up to some step. Raises `OSError`, with the name of the file, when it cannot be written. The
    same steps give the same bytes.
    """

    def __init__(self, path: str | Path) -> None:
        self._name = str(path)
        self._encode = msgspec.json.Encoder().encode
        self._compress = _compressor() if self._name.endswith(".zst") else bytes
        self._run: Step | None = None  # decodes that the next step may continue
        self._lines: list[bytes] = []  # encoded, and not yet in the file
        self._size = 0
        self._file = _output(self._name)

    def write(self, line: Header | Step) -> None:
        """Add the header, or the next step."""
        if isinstance(line, Step) and only_decodes(line):
            joined = self._run and _joined(self._run, line)
            if not joined:
                self._end_run()
            self._run = joined or line
        else:
            self._end_run()
            self._put(line)

    def close(self) -> None:
        """Complete the file. Standard output is flushed and stays open."""
        try:
            self._end_run()
            self._flush()
        finally:
            if self._name != "-":
                self._file.close()

    # An interrupt may fall between any two lines of what follows, and `close` comes after it. So
    # whatever is written is taken away just before: the last lines may be lost, but none between,
    # and none is there twice. For the same reason each piece is a zstd frame of its own.

    def _end_run(self) -> None:
        run, self._run = self._run, None
        if run is not None:
            self._put(run)

    def _put(self, line: Header | Step) -> None:
        encoded = self._encode(line)
        self._lines.append(encoded)
        self._size += len(encoded)
        if self._size > PIECE:
            self._flush()

    def _flush(self) -> None:
        if not self._lines:
            return
        rest = memoryview(self._compress(b"\n".join((*self._lines, b""))))
        self._lines, self._size = [], 0
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            self._file.flush()
        except OSError as error:
            error.filename = error.filename or self._name
            raise

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


PIECE = 1 << 20
"""Bytes of lines that are written, and compressed, together."""


def _output(name: str) -> IO[bytes]:
    """The file, without a buffer: what was written is there."""
    return sys.stdout.buffer if name == "-" else Path(name).open("wb", buffering=0)


def _compressor() -> Callable[[bytes], bytes]:
    import zstandard

    return zstandard.ZstdCompressor(level=3).compress


def _joined(run: Step, step: Step) -> Step | None:
    """One line for both, if the second carries the first on without a gap."""
    growth = run.duration_growth
    if run.repeat == 1:
        growth = step.duration - run.duration
    if (
        step.step != run.step + run.repeat
        or step.start != end_of(run)
        or step.duration != run.duration + run.repeat * growth
        or (step.repeat > 1 and step.duration_growth != growth)
        or (step.free_blocks is None) != (run.free_blocks is None)
    ):
        return None
    return Step(
        run.step,
        run.start,
        run.duration,
        free_blocks=step.free_blocks,
        repeat=run.repeat + step.repeat,
        duration_growth=growth,
    )


# ---------------------------------------------------------------------- reading


class _Format(msgspec.Struct):
    """Of the first line what tells whether the rest of it can be understood."""

    format: str


_step_decoder = msgspec.json.Decoder(Step)
_header_decoder = msgspec.json.Decoder(Header)
_format_decoder = msgspec.json.Decoder(_Format)

ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
OTHER_MAGIC = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


def read_log(path: str | Path) -> tuple[Header, Iterator[Step]]:
    """The header of a log and its steps, read as they are asked for. `-` is standard input; plain
    or zstd is told by content.

    Raises `OSError` if the file cannot be read, and `LogError`, also while the steps are read, for
    what is no schedule log.
    """
    name = "standard input" if str(path) == "-" else str(path)
    lines = _lines(_chunks(path, name))
    number, first = next(lines, (1, b""))
    if not first:
        raise LogError(f"{name} is empty; expected a schedule log, whose first line is {_EXAMPLE}")
    return _header(name, number, first), _steps(name, lines)


_EXAMPLE = f'{{"format": "{FORMAT}", "rules": {{…}}}}'


def _header(name: str, number: int, line: bytes) -> Header:
    try:
        format = _format_decoder.decode(line).format
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        for magic, kind in OTHER_MAGIC.items():
            if line.startswith(magic):
                raise LogError(
                    f"{name} is {kind}; expected JSON Lines, plain or compressed with zstd"
                ) from error
        raise LogError(
            f"{name}, line {number}: not a schedule log; expected a first line {_EXAMPLE} "
            f"(got {_shown(line)})"
        ) from error
    if format != FORMAT:
        raise LogError(
            f"{name}, line {number}: format {format!r} is not known; expected {FORMAT!r}"
        )
    header: Header = _decoded(_header_decoder, name, number, line)
    if header.tick_s != TICK_S:
        raise LogError(f"{name}, line {number}: tick_s must be {TICK_S} (got {header.tick_s})")
    try:
        rules_of(header)
    except RulesError as error:
        raise LogError(f"{name}, line {number}: rules: {error}") from error
    return header


def _steps(name: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[Step]:
    for number, line in lines:
        step = _decoded(_step_decoder, name, number, line)
        if step.repeat != 1:
            if step.repeat < 1:
                raise LogError(
                    f"{name}, line {number}: field repeat: expected 1 or more (got {step.repeat})"
                )
            if not only_decodes(step):
                raise LogError(
                    f"{name}, line {number}: field repeat: a line that stands for {step.repeat} "
                    "steps can hold nothing but decodes; expected step, start, duration, "
                    "duration_growth and free_blocks alone"
                )
        yield step


def _decoded(decoder: msgspec.json.Decoder[Any], name: str, number: int, line: bytes) -> Any:
    try:
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        what, _, place = str(error).partition(" - at `$")
        field = place.rstrip("`").lstrip(".")
        what = re.sub("^Expected", "expected", what)
        where = f"field {field}: " if field else ""
        raise LogError(f"{name}, line {number}: {where}{what}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        cut = "" if line.endswith(b"\n") else "; the file seems to have been cut here"
        raise LogError(
            f"{name}, line {number}: expected one JSON object, but {error}{cut}"
            f" (got {_shown(line)})"
        ) from error


def _shown(line: bytes) -> str:
    text = line[:60].decode(errors="replace").rstrip("\n")
    return repr(text + "…" if len(line) > 60 else text)


def _lines(chunks: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Lines that are not blank, numbered from 1; only the last one can lack its line end."""
    number = 0
    begun: list[bytes] = []
    for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        if whole:
            whole[0] = b"".join((*begun, whole[0]))
            begun.clear()
        for line in whole:
            number += 1
            if line and not line.isspace():
                yield number, line + b"\n"
        if rest:
            begun.append(rest)
        if not number and len(begun) > 16:  # no header is that long, and a huge file is no line
            break
    last = b"".join(begun)
    if last and not last.isspace():
        yield number + 1, last


def _chunks(path: str | Path, name: str) -> Iterator[bytes]:
    """The content of the file, decompressed, in pieces; none is empty."""
    with Path(path).open("rb") if str(path) != "-" else nullcontext(sys.stdin.buffer) as opened:
        file = cast(io.BufferedReader, opened)  # read1: a pipe's lines are there when written
        pieces = iter(lambda: file.read1(1 << 16), b"")
        first = next(pieces, b"")
        if first.startswith(ZSTD_MAGIC):
            yield from _decompressed(first, pieces, name)
        elif first:
            yield first
            yield from pieces


def _decompressed(first: bytes, rest: Iterator[bytes], name: str) -> Iterator[bytes]:
    import zstandard

    frame = zstandard.ZstdDecompressor().decompressobj()
    piece: bytes | None = first
    while piece is not None:
        try:
            data = frame.decompress(piece)
        except zstandard.ZstdError as error:
            raise LogError(f"{name}: the zstd data is damaged ({error})") from error
        if data:
            yield data
        if frame.eof and (piece := frame.unused_data or next(rest, None)) is not None:
            frame = zstandard.ZstdDecompressor().decompressobj()  # another frame follows
        elif not frame.eof:
            piece = next(rest, None)
    if not frame.eof:
        raise LogError(f"{name}: the zstd data ends too early; the file seems to have been cut")
