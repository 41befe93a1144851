"""The command line. One file a command, loaded when the command is called."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from cyclopts import App, CycloptsError

from tokenyard import __version__
from tokenyard.cli.exit_codes import BAD_INPUT, INTERRUPTED, OK
from tokenyard.cli.help import IndentedHelp

app = App(
    name="tokenyard",
    help="Schedules LLM inference requests, and shows that it schedules them right.\n\n"
    "Exit codes: 0 done, 1 a finding or a failed check, 2 bad usage or input, 130 interrupted.",
    version=__version__,
    help_format="plaintext",  # markdown would load a parser that takes longer than all the rest
    help_formatter=IndentedHelp(),
    suppress_keyboard_interrupt=False,
)
app.command(
    "tokenyard.cli.run:run",
    name="run",
    help="Replay a request log through the scheduler: who waited, how long, and why.\n\n"
    "Reads Azure and BurstGPT CSV, Mooncake JSON Lines, results of vllm bench serve, and tables "
    "with arrival, prompt_tokens and output_tokens (CSV, Parquet, JSON Lines); also gzip or zstd.",
)
if find_spec("tokenyard.cli.check"):
    app.command(
        "tokenyard.cli.check:check",
        name="check",
        help="Hold a schedule, or a scheduler, against the invariants.",
    )
app.command("tokenyard.cli.synth:synth", name="synth", help="Write a synthetic request log.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. What is wrong with a person's input is one
    message on stderr; a fault of ours keeps its traceback."""
    for stream in (sys.stdout, sys.stderr):  # a name, or a sign of ours, that it cannot encode
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    if "" not in sys.path:  # a policy named as module:Class may lie in the current directory
        sys.path.insert(0, "")
    try:
        code = app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()  # what cannot be written is to be found out here, not at exit
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except BrokenPipeError:  # who read our output, such as `head`, has seen enough
        _discard_stdout()
        return OK
    except CycloptsError as error:
        command = " ".join(["tokenyard", *(error.command_chain or ())])
        return _complain(f"{error}\nSee {command} --help.", BAD_INPUT)
    except OSError as error:
        _discard_stdout()
        return _complain(f"{error.filename or 'stdout'}: {error.strerror or error}", BAD_INPUT)
    except ValueError as error:
        if not type(error).__module__.startswith("tokenyard."):
            raise
        return _complain(str(error), BAD_INPUT)
    return code if isinstance(code, int) else OK


def _complain(message: str, code: int) -> int:
    print(f"tokenyard: {message}", file=sys.stderr)
    return code


def _discard_stdout() -> None:
    """Let the flush at exit, which would fail again and say so on its own, go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
