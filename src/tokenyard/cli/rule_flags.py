"""Every field of Rules as a flag of its name, and the rules that flags, file and preset make.

The fields are declared once, in `Rules`: types, help and defaults are read from there.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import itertools
import tomllib
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_args

from cyclopts import Group, Parameter

from tokenyard.cli.numbers import WHOLE_NUMBER, WHOLE_NUMBER_OR_NONE
from tokenyard.core.rules import RULE_NAMES, Rules, RulesError

RULES = Group("Rules", sort_key=2)

Preset = Literal["vllm", "textbook"]
PRESETS: tuple[Preset, ...] = get_args(Preset)


def rule_changes(file: Path | None, flags: dict[str, Any] | None) -> dict[str, Any]:
    """What file and flags say, flags first; what neither says is absent. Raises `RulesError`."""
    return {**(read_rules(file) if file else {}), **(flags or {})}


def make_rules(preset: Preset, changes: dict[str, Any]) -> Rules:
    """The preset's rules with changes. Raises `RulesError` for a value out of range, and where the
    textbook's capacity is not told."""
    if preset == "vllm":
        return Rules.vllm(**changes)
    if "max_num_batched_tokens" not in changes:
        raise RulesError(
            "preset textbook needs its capacity: give --max-num-batched-tokens, 8 say "
            "(none: no bound on the tokens of a step)"
        )
    return Rules.textbook(None, **changes)


def preset_rules(preset: Preset) -> Rules:
    """What the preset says by itself; the textbook's capacity is left open."""
    return Rules.vllm() if preset == "vllm" else Rules.textbook(None)


def read_rules(file: Path) -> dict[str, Any]:
    """Fields of Rules by name, from a TOML file; "none" stands for None. Raises `RulesError`."""
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RulesError(f"{file} is not a TOML file: {error}") from error
    types = typing.get_type_hints(Rules)
    for name, value in table.items():
        if name not in RULE_NAMES:
            close = difflib.get_close_matches(name, RULE_NAMES, n=1)
            hint = f"did you mean {close[0]}" if close else f"the rules are {', '.join(RULE_NAMES)}"
            raise RulesError(f"{file}: there is no rule {name!r} ({hint})")
        if value == "none" and type(None) in get_args(types[name]):
            table[name] = None
    try:
        Rules(**table)
    except RulesError as error:
        raise RulesError(f"{file}: {error}") from error
    return table


def _flag(name: str, kind: Any) -> Any:
    """The type of one flag, with its help."""
    help = Parameter(group=RULES, help=f"{_docstrings()[name]} {_preset_values(name)}")
    if kind == int | None:
        return Annotated[kind, WHOLE_NUMBER_OR_NONE, help]
    return Annotated[kind, WHOLE_NUMBER, help] if kind is int else Annotated[kind, help]


def _docstrings() -> dict[str, str]:
    """The docstring below each field of Rules."""
    (declaration,) = ast.parse(inspect.getsource(Rules)).body
    docstrings = {}
    for field, text in itertools.pairwise(ast.iter_child_nodes(declaration)):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(docstring))):
                docstrings[name] = inspect.cleandoc(docstring)
    return docstrings


def _preset_values(name: str) -> str:
    vllm, textbook = (str(getattr(rules, name)).lower() for rules in map(preset_rules, PRESETS))
    if name == "max_num_batched_tokens":
        textbook = "to be given"
    return f"[default: {vllm}]" if vllm == textbook else f"[vllm: {vllm}; textbook: {textbook}]"


if TYPE_CHECKING:
    RuleFlags = dict[str, Any]
else:  # only the flags that were given are in it, so that it overrules nothing else
    RuleFlags = TypedDict(
        "RuleFlags",
        {name: _flag(name, kind) for name, kind in typing.get_type_hints(Rules).items()},
        total=False,
    )
