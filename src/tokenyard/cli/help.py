"""How --help looks: the name of a flag on a line, its meaning indented below it."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

WIDEST = 100


class IndentedHelp:
    """Formats help for Cyclopts. It needs no width for two columns, so no name is ever broken."""

    def render_usage(self, console: Console, options: ConsoleOptions, usage: object) -> None:
        """Print how the command is called."""
        _print(console, [f"Usage: {_plain(usage)}"], "")

    def render_description(
        self, console: Console, options: ConsoleOptions, description: object
    ) -> None:
        """Print the paragraphs that say what a command does."""
        for paragraph in _plain(description).split("\n\n"):
            _print(console, _wrapped(paragraph, options), "")

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        """Print one group of commands or flags."""
        if not panel.entries:
            return
        lines = [f"{panel.title}:"]
        widest = max(len(_names(entry)) for entry in panel.entries)
        for entry in panel.entries:
            if panel.format == "command":
                text = f"{_names(entry):{widest}}  {_plain(entry.description)}"
                lines += _wrapped(text, options, first=2, then=widest + 4)
            else:
                lines.append(f"  {_names(entry)}")
                lines += _wrapped(_meaning(entry), options, first=6, then=6)
        _print(console, lines, "")


def _print(console: Console, lines: list[str], *more: str) -> None:
    console.print("\n".join([*lines, *more]), highlight=False, markup=False, soft_wrap=True)


def _wrapped(text: str, options: ConsoleOptions, first: int = 0, then: int = 0) -> list[str]:
    return textwrap.wrap(
        text,
        min(options.max_width, WIDEST),
        initial_indent=" " * first,
        subsequent_indent=" " * then,
        break_on_hyphens=False,
    )


def _names(entry: HelpEntry) -> str:
    return ", ".join(entry.display_labels_with_metavar)


def _meaning(entry: HelpEntry) -> str:
    parts = " ".join(_plain(entry.description).split())
    if entry.choices:
        parts += f" [{' | '.join(entry.choices)}]"
    if entry.default is not None:
        parts += f" [default: {entry.default}]"
    return parts


def _plain(text: object) -> str:
    text = getattr(text, "primary_renderable", text)
    return str(getattr(text, "plain", text) or "").strip()
