"""The parts of the reference that are read from the code: options, exit codes, cards, findings, the
Python names and the fields of `--json`.

Each part is a function that returns Markdown; a page names it:

    ```{from-code} options predict
    ```
"""

import ast
import dataclasses
import inspect
import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import brimful
from brimful import errors, values
from brimful.cli.app import VERBS, app
from brimful.decide.audit import findings
from brimful.measure.gpus import CARDS
from brimful.measure.gpus.prices import prices

ROOT = Path(__file__).parents[2]
SHARED = ("Device", "Trials", "Output")  # groups of options, in their order behind a verb's own
TRAPS = ROOT / "examples" / "traps"


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    cells = ([" ".join(cell.split()).replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def options(verb: str) -> str:
    """How a verb is called, and its options by group."""
    function, usage, _ = next(row for row in VERBS if row[0].__name__ == verb)
    collection = app[verb].assemble_argument_collection(parse_docstring=True)
    groups: dict[str, list[tuple[str, ...]]] = {}
    for argument in collection:
        parameter = argument.parameter
        if argument.show and parameter.help:
            group = next(iter(parameter.group)).name
            names = ", ".join(f"`{name}`" for name in argument.names)
            value = f" {parameter.metavar}" if parameter.metavar else ""
            groups.setdefault(group, []).append((names + value, parameter.help))
    head = (
        f"```text\nbrimful {verb} {usage}\n```\n\n{inspect.getdoc(function).split('Parameters')[0]}"
    )
    order = sorted(groups, key=lambda name: SHARED.index(name) if name in SHARED else -1)
    titles = {name: "Option" if name == "Parameters" else name for name in order}
    parts = [table((titles[name], "does"), groups[name]) for name in order]
    return "\n\n".join([head, *parts])


def exit_codes(_: str) -> str:
    """The codes, and the errors that end with each."""
    lines = re.findall(r"(\d+) ([^,\n]+(?:\n|,|$))", errors.__doc__.split("\n\n")[-1])
    meanings = {int(code): meaning.strip(" ,\n") for code, meaning in lines}
    kinds: dict[int, list[str]] = {}
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.BrimfulError):
            kinds.setdefault(kind.exit_code, []).append(f"`{kind.__name__}`")
    rows = [(str(code), text, ", ".join(kinds.get(code, []))) for code, text in meanings.items()]
    return table(("code", "meaning", "errors in Python"), rows)


def cards(_: str) -> str:
    """The catalogue, the smallest memory first."""
    dollars = prices()
    rows = [
        (
            f"`{card.key}`",
            card.name,
            f"{card.total_bytes.value / 2**30:.1f} GiB",
            str(card.total_bytes.source),
            f"{card.context_bytes.value / 2**20:.0f} MiB",
            f"{card.bandwidth_bytes_per_s.value / 1e9:,.0f} GB/s",
            f"{dollars[card.key].value:.2f} $" if card.key in dollars else "–",
        )
        for card in sorted(CARDS, key=lambda card: card.total_bytes.value)
    ]
    head = ("`--gpu`", "card", "usable", "source", "CUDA context", "bandwidth", "an hour")
    return table(head, rows)


def audit_findings(_: str) -> str:
    """What `audit` can find, with the script of examples/traps that shows it."""
    rows = []
    for code, finder in zip(findings.CODES, findings._FINDERS, strict=True):
        trap = TRAPS / f"{finder.__name__}.py"
        link = f"[{trap.name}](../../examples/traps/{trap.name})" if trap.exists() else "–"
        rows.append((f"`{code}`", " ".join((finder.__doc__ or "").split()), link))
    return table(("finding", "condition", "a script that has it"), rows)


def public_names(_: str) -> str:
    """The names of `import brimful`."""
    parts = []
    for name in sorted(set(brimful.__all__) - {"__version__"}, key=str.lower):
        thing = getattr(brimful, name)
        kind = "class" if inspect.isclass(thing) else "function"
        signature = "" if inspect.isclass(thing) else _signature(thing)
        text = (inspect.getdoc(thing) or "").replace("``", "`")
        parts.append(
            f"## `{name}`\n\n*{kind}*\n\n```python\nbrimful.{name}{signature}\n```\n\n{text}"
        )
    return "\n\n".join(parts)


def _signature(function: Callable[..., Any]) -> str:
    text = str(inspect.signature(function))
    text = re.sub(r"\*\*(\w+): \*<class '[\w.]+\.(\w+)'>", r"**\1: \2", text)
    text = re.sub(r"<(\w+\.\w+): [^>]+>", r"\1", text)
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)


def fields(names: str) -> str:
    """The fields of values, and of every value that these hold: what `--json` prints."""
    order, waiting = [], [getattr(values, name) for name in names.split()]
    while waiting:
        kind = waiting.pop(0)
        if kind not in order:
            order.append(kind)
            hints = get_type_hints(kind)
            waiting += [part for hint in hints.values() for part in _values_in(hint)]
    return "\n\n".join(_fields_of(kind) for kind in order)


def _values_in(hint: Any) -> list[type]:
    if inspect.isclass(hint) and dataclasses.is_dataclass(hint):
        return [hint]
    return [part for argument in getattr(hint, "__args__", ()) for part in _values_in(argument)]


def _fields_of(kind: type) -> str:
    comments = _comments(kind)
    hints = get_type_hints(kind)
    rows = [
        (f"`{field.name}`", f"`{_json_type(hints[field.name])}`", comments.get(field.name, ""))
        for field in dataclasses.fields(kind)
    ]
    text = kind.__doc__ or ""
    if text.startswith(f"{kind.__name__}("):  # what dataclass writes where nobody wrote anything
        text = ""
    head = ("field", "type", "what it is")
    return f"## {kind.__name__}\n\n{inspect.cleandoc(text)}\n\n{table(head, rows)}"


def _json_type(hint: Any) -> str:
    if inspect.isclass(hint) and issubclass(hint, Enum):
        return " | ".join(repr(member.value) for member in hint)
    text = hint.__name__ if inspect.isclass(hint) and not hasattr(hint, "__args__") else str(hint)
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])", "", text)
    return text.replace("NoneType", "null").replace("None", "null").replace(", ...", "")


def _comments(kind: type) -> dict[str, str]:
    """field -> the comment above it or behind it in the source."""
    lines = inspect.getsource(kind).splitlines()
    tree = ast.parse(inspect.cleandoc("\n".join(lines)))
    body = tree.body[0].body  # type: ignore[attr-defined]
    comments = {}
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            above, at = [], node.lineno - 2
            while lines[at].strip().startswith("#"):
                above.insert(0, lines[at].strip().lstrip("#: "))
                at -= 1
            behind = re.search(r"\s#:? (.*)$", lines[node.end_lineno - 1])
            comments[node.target.id] = " ".join([*above, *([behind[1]] if behind else [])])
    return comments


PARTS: dict[str, Callable[[str], str]] = {
    "options": options,
    "exit-codes": exit_codes,
    "cards": cards,
    "findings": audit_findings,
    "names": public_names,
    "fields": fields,
}


class FromCode(SphinxDirective):
    """```{from-code} PART ARGUMENT```"""

    required_arguments = 1
    optional_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        part, *argument = self.arguments
        text = PARTS[part](*argument or [""])
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(site: Sphinx) -> dict[str, bool]:
    site.add_directive("from-code", FromCode)
    return {"parallel_read_safe": True}
