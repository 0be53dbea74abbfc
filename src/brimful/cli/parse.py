"""What was typed, as a verb and its options, or as a sentence that says what is wrong with it."""

import re
import shlex
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from cyclopts import App, CycloptsError, UnknownOptionError

from brimful.errors import UsageError
from brimful.show.console import make_console


def parse(app: App, ours: list[str], words: list[str]) -> tuple[Callable[..., Any], Any]:
    app.console = make_console()
    ours = _NEGATIVE.sub(r"\1=", "\0".join(ours)).split("\0") if ours else []
    try:
        function, bound, ignored = _parsed(app, ours)
    except CycloptsError as error:
        raise _not_understood(app, error, ours, words) from None
    if "words" in ignored:
        if words and _is_quoted(words[0]) and ours[0] != "compare":
            raise UsageError(
                f"your command is one word in quotes: {words[0]!r}",
                "there is no program of that name; without the quotes its words are the command",
                f"type:\n{shlex.join(['brimful', *ours, '--'])} " + _unquoted(words),
            )
        bound.arguments["words"] = tuple(words)
    elif words:
        verb = ours[0] if ours else ""
        raise UsageError(
            problem=f"there is a command after the two dashes: {words[0]} ...",
            explanation=f"brimful {verb} runs no command" if verb else "no verb stands before them",
            suggestion="leave it out" if verb else _a_verb(words),
        )
    return function, bound


def _is_quoted(word: str) -> bool:
    return len(word.split()) > 1 and shutil.which(word) is None


def _unquoted(words: list[str]) -> str:
    """A command to type, whose first word may be all of one in quotes."""
    first = words[0] if _is_quoted(words[0]) else shlex.quote(words[0])
    return " ".join([first, *map(shlex.quote, words[1:])])


def _parsed(app: App, ours: list[str]) -> tuple[Callable[..., Any], Any, dict[str, Any]]:
    return app.parse_args(ours, exit_on_error=False, print_error=False)


def _not_understood(
    app: App, error: CycloptsError, ours: list[str], words: list[str]
) -> UsageError:
    verb, problem = ours[0], " ".join(str(error).split())
    for cyclopts_words, plain in _PLAIN:
        problem = re.sub(cyclopts_words, plain, problem)
    if verb not in app:
        is_command = not verb.startswith("-") and "Did you mean" not in problem
        todo = _a_verb([*ours, *words]) if is_command else "see `brimful --help`"
        return UsageError(problem, suggestion=todo)
    if (at := _start_of_a_command(app, ours)) is not None:
        return UsageError(
            f"two dashes are missing before your command ({ours[at]} ...)",
            "without them brimful reads the command's words as its own options",
            f"type:\n{shlex.join(['brimful', *ours[:at], '--'])} "
            + _unquoted([*ours[at:], *words]),
        )
    explanation = (
        "brimful's own options come before the two dashes, your command after them; the script's "
        "own settings are given as --set batch_size=64"
        if isinstance(error, UnknownOptionError)
        else ""
    )
    return UsageError(problem, explanation, f"see `brimful {verb} --help`")


# An option, and a number below zero behind it, which is its value.
_NEGATIVE = re.compile(r"((?:^|\0)--[^=\0]+)\0(?=-[0-9.])")
# What cyclopts says of a mistake, and the same in plain words.
_PLAIN = (
    (r'^Command "\S+" parameter (\S+) requires an argument\.$', r"\1 has no value"),
    (r"^Unused Tokens: \[(.*)\]\.$", r"more words than it takes: \1"),
    (r'unable to convert (".*") into int', r"\1 is no whole number"),
    (r'unable to convert (".*") into bool', r"\1 is neither yes nor no"),
)


def _start_of_a_command(app: App, ours: list[str]) -> int | None:
    """Where a command begins that no two dashes announce: behind words that a verb understands
    alone; None where there is none.
    """
    for at in (at for at, word in enumerate(ours) if at and not word.startswith("-")):
        with suppress(CycloptsError):
            return at if "words" in _parsed(app, ours[:at])[2] else None
    return None


def _a_verb(words: Sequence[str]) -> str:
    return "say what brimful is to do with it, for instance:\n" + shlex.join(
        ["brimful", "predict", "--gpu", "a100-40gb", "--", *words]
    )
