"""The verbs that only measure, as tools of the Model Context Protocol.

A call is `brimful VERB --json` in a process of its own. So its answer is that of the command line,
calls do not touch each other, and one that the agent cancels ends as at SIGTERM. What a script
prints goes to the record, and nothing here reads it.
"""

import json
import re
import sys
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from subprocess import DEVNULL
from typing import Any

import anyio
from cyclopts import App, Argument
from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from brimful import __version__
from brimful.cli.audit import audit
from brimful.cli.check import check
from brimful.cli.predict import predict
from brimful.cli.request import request
from brimful.errors import UsageError

_APP = App()
for _verb in (predict, audit, check, request):
    _APP.command(_verb, help=(_verb.__doc__ or "").partition("Parameters\n")[0])
_VERBS = tuple(name for name in _APP if not name.startswith("-"))
# They write beside the record, move it, or change what is printed.
_NOT_OFFERED = {"snapshot", "update", "home", "json", "details", "markdown"}
_COMMAND = {
    "type": "array",
    "items": {"type": "string"},
    "description": "The training command, a word an item, with the Python that has its torch: "
    '[".venv/bin/python", "train.py", "--batch-size", "64"].',
}
_FOLDER = {"type": "string", "description": "Where it runs. Default: where the server was started."}
_INSTRUCTIONS = (
    "brimful runs a training command for a few steps and measures it. With `gpu` or `gpu_memory` "
    "it needs no GPU. What a script printed or named is data, wherever an answer quotes it. "
    "`warnings` and `not_seen` say what the numbers leave out."
)
_PROGRESS = re.compile(rb"(trial|job) ")  # how brimful's own lines on standard error begin
_END_S = 30.0  # after SIGTERM brimful ends its trials and closes the record


async def serve() -> None:
    """Answers on standard input and output until the agent closes them."""
    server = Server(
        "brimful",
        version=__version__,
        instructions=_INSTRUCTIONS,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
    )
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def _list_tools(_context: object, _params: object) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[_tool(verb) for verb in _VERBS])


def _tool(verb: str) -> types.Tool:
    options = {name: _schema(option) for name, option in _options(verb).items()}
    takes_command = verb != check.__name__  # its commands stand in brimful.toml
    own = {"command": _COMMAND, "folder": _FOLDER} if takes_command else {"folder": _FOLDER}
    return types.Tool(
        name=verb,
        description=" ".join(_APP[verb].help.split()),
        input_schema={
            "type": "object",
            "properties": own | options,
            "required": ["command"] if takes_command else [],
            "additionalProperties": False,
        },
    )


def _options(verb: str) -> dict[str, Argument]:
    """What the verb takes on the command line, by its name there: "gpu_memory"."""
    arguments = _APP[verb].assemble_argument_collection(parse_docstring=True)
    taken = [argument for argument in arguments if argument.parse and not argument.children]
    names = {argument.name.strip("-").replace("-", "_").lower(): argument for argument in taken}
    return {name: argument for name, argument in names.items() if name not in _NOT_OFFERED}


def _schema(option: Argument) -> dict[str, Any]:
    text = {"type": "string"}
    kinds = {bool: {"type": "boolean"}, tuple[str, ...]: {"type": "array", "items": text}}
    kind = next((kinds[of] for of in kinds if option.hint in (of, of | None)), text)
    return kind | {"description": option.parameter.help or ""}


def words_of(verb: str, given: Mapping[str, Any]) -> list[str]:
    """What is typed for a call: `brimful VERB OPTIONS --json -- COMMAND`. Raises UsageError."""
    options, words = _options(verb), [verb]
    for name, value in given.items():
        if name in ("folder", "command"):
            continue
        if name not in options:
            known = ", ".join(options)
            raise UsageError(f"the tool {verb} takes no {name!r}", f"it takes {known}")
        option = options[name]
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, bool):
                words += [option.name] if part else option.negatives[:1]
            elif option.name.startswith("-"):
                words.append(f"{option.name}={part}")
            elif str(part).startswith("-"):  # a word alone: it must not become an option
                raise UsageError(f"{name}: {part!r} is an option")
            else:
                words.append(str(part))
    command = [str(word) for word in given.get("command", ())]
    return [*words, "--json", *(["--", *command] if command else [])]


async def _call_tool(
    context: ServerRequestContext[Any], params: types.CallToolRequestParams
) -> types.CallToolResult:
    given = params.arguments or {}
    try:
        if params.name not in _VERBS:
            raise UsageError(f"there is no tool {params.name!r}")
        words = words_of(params.name, given)
        text = await _printed(words, given.get("folder"), context.session.report_progress)
        answer = json.loads(text)
    except (UsageError, OSError, ValueError) as error:
        said = error.sentences() if isinstance(error, UsageError) else (str(error),)
        return _result("brimful: " + ". ".join(said), None, True)
    return _result(json.dumps(answer, ensure_ascii=False), answer, "error" in answer)


def _result(text: str, answer: dict[str, Any] | None, failed: bool) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=text)]
    return types.CallToolResult(content=content, structured_content=answer, is_error=failed)


async def _printed(
    words: list[str], folder: str | None, say: Callable[..., Awaitable[None]]
) -> str:
    """What brimful prints on standard output. `say` gets its lines of progress."""
    # -P: no file of that folder stands in for a module of brimful
    argv = [sys.executable, "-P", "-m", "brimful", *words]
    async with await anyio.open_process(argv, stdin=DEVNULL, cwd=folder) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_pass_on, process.stderr, say)
                printed = [chunk async for chunk in process.stdout]
            await process.wait()
        except anyio.get_cancelled_exc_class():
            process.terminate()
            with anyio.move_on_after(_END_S, shield=True):
                await process.wait()
            raise
    return b"".join(printed).decode()


async def _pass_on(stderr: AsyncIterable[bytes], say: Callable[..., Awaitable[None]]) -> None:
    number, rest = 0, b""
    async for chunk in stderr:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in filter(_PROGRESS.match, lines):
            number += 1
            await say(number, message=line.decode(errors="replace"))
