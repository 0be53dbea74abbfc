"""Branches of the script's own text that no step of a trial took: ``if step > penalty_after``,
``if step % 500 == 0``, ``if epoch == warm_up``; or ``if iteration <= warm_up``, which always held.

One counts where its condition names something that counts (a number of a loop, a name that the text
adds 1 to), was asked while the script trained, and had the same answer each time; and where what
did not run calls torch, a function of the script's own, or is given a tensor or a module. What the
arguments rule out (``args.use_ema and …``) is none. Where a line is to be reached, its conditions
get the answer that leads there: once where they ask for a certain step, else from then on.

A condition that has had both answers costs a look into a list; others a call, until they were asked
`MOST` times."""

from __future__ import annotations

import ast
import builtins
import contextlib
import inspect
import os
import re
import sys
from itertools import chain
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from brimful_inside.probe.context import current_probe, guarded
from brimful_inside.probe.script_text.expressions import name_of
from brimful_inside.probe.script_text.user_code import is_users
from brimful_inside.wire import NotRun

MOST = 20_000  # times that a condition is asked before it is no event of the training
FIRST = 2  # steps before a line is reached: the first makes the optimizer's states
AFTER = 2  # steps that a trial makes after that
_TEXT = 80  # characters of a condition
_ASK, _KNOWN = "__brimful_ask__", "__brimful_known__"  # in builtins
_NUMBERS = re.compile(r"range\(|enumerate\(|count\(")  # loops over these count
# Calls that show or note what is there, or tell the time.
_SHOWS = re.compile(
    r"print|log|info|debug|warn|format|write|plot|add_|item|tolist|time|memory|_lr$|learning_rate"
    r"|schedul|empty_cache|synchronize|barrier|collect|seed|^(len|str|int|float|update|append)$",
    re.I,
)
_COMPILES = re.compile(r"jit|compile|script|vectorize|numba")  # decorators
_EVALUATES = re.compile(r"eval|valid|test|no_grad|inference_mode", re.I)


class Branch:
    """An `if`, and the answers that the script got."""

    def __init__(self, path: str, node: ast.If, rest: List[ast.stmt]):
        self._path, self._line, self.text = path, node.lineno, ""
        leaves = isinstance(node.body[-1], (ast.Continue, ast.Return))
        self._sides = {True: node.body, False: node.orelse or (rest if leaves else [])}
        # Without another side, the steps that pass this one by are of interest where it replaces
        # what they go on with.
        self._replaces = not self._sides[False] and any(map(_replaces, node.body))
        asks_for_one = (ast.Mod, ast.Eq)
        self._once = any(isinstance(part, asks_for_one) for part in ast.walk(node.test))
        self._answers: Set[bool] = set()
        self._times = 0
        self._calls: Optional[List[str]] = None  # of what did not run; None: not asked in training
        self.wanted: Optional[bool] = None  # the answer that leads to a line
        self._given_at: Optional[int] = None  # and the step from which it was given

    @property
    def has_calls(self) -> bool:
        sides = chain.from_iterable(self._sides.values())
        return any(isinstance(part, ast.Call) for node in sides for part in ast.walk(node))

    def side_of(self, line: int) -> Optional[bool]:
        """The answer that leads to this line; None where the line is of no side."""
        for side, statements in self._sides.items():
            if statements and statements[0].lineno <= line <= (statements[-1].end_lineno or 0):
                return side
        return not self._replaces if line == self._line else None

    def reached(self, steps: int) -> bool:
        """Whether the line that is wanted ran, and the steps after it."""
        return self.wanted in self._answers and steps >= (self._given_at or 0) + AFTER

    @property
    def is_known(self) -> bool:
        return self.wanted is None and (len(self._answers) > 1 or self._times > MOST)

    def answer(self, value: Any, frame: Any, given: Any) -> Any:
        """`value`, but where it leads elsewhere than is wanted. `given`: whether the arguments
        allow it to be true."""
        probe, answer = current_probe(), bool(value)
        steps = 0 if probe is None else probe.steps.count
        self._times += 1
        if steps and self._calls is None:
            names = {**frame.f_globals, **frame.f_locals}
            side = self._sides[True] if self._replaces else self._sides[not answer]
            self._calls = list(_calls(side, names)) if answer or given is None or given() else []
        again = not self._once or self._given_at is None
        if self.wanted not in (None, answer) and steps >= FIRST and again:
            self._given_at = self._given_at or steps
            answer = value = not answer
        self._answers.add(answer)
        return value

    def not_run(self) -> Optional[NotRun]:
        if len(self._answers) != 1 or not self._calls or self._times > MOST:
            return None
        side = self._sides[True not in self._answers]
        first, last = (side[0].lineno, side[-1].end_lineno or 0) if side else (0, 0)
        evaluates = any(map(_EVALUATES.search, self._calls))
        return NotRun(self._path, self._line, self.text, first, last, evaluates)


_branches: List[Branch] = []
_known: List[bool] = []  # of each of them: nobody asks it any more
_counting: Set[str] = set()  # names, in all texts so far
_wanted: Dict[Tuple[str, int], List[Branch]] = {}  # by the end of a path, and a line


def reach(places: Sequence[str]) -> None:
    """ "train.py:88": a line that the trial is to come to."""
    for place in places:
        file, _, line = place.rpartition(":")
        _wanted[os.path.normpath(file), int(line)] = []


def not_reached(steps: int = sys.maxsize) -> List[str]:
    """Of these lines. One counts as reached with some steps after it."""
    return [
        "%s:%d" % place
        for place, branches in _wanted.items()
        if not branches or not all(branch.reached(steps) for branch in branches)
    ]


def not_run() -> List[NotRun]:
    rows = [row for row in (branch.not_run() for branch in _branches) if row is not None]
    return sorted(rows, key=lambda row: (row.file, row.line))


def watch(tree: ast.Module, source: bytes, path: str) -> bool:
    """Conditions that count, and those of lines that are to be reached, are asked from here on."""
    setattr(builtins, _ASK, _ask)
    setattr(builtins, _KNOWN, _known)
    _counting.update(_counters(tree))
    text, before = source.decode("utf-8", "replace"), len(_branches)
    for node, rest in list(_ifs(tree)):
        branch = Branch(path, node, rest)
        for (file, line), branches in _wanted.items():
            side = branch.side_of(line) if (os.sep + path).endswith(os.sep + file) else None
            if side is not None:
                branch.wanted = side
                branches.append(branch)
        if branch.wanted is not None or (_counts(node.test) and branch.has_calls):
            words = (ast.get_source_segment(text, node.test) or "").split()
            branch.text = " ".join(words)[:_TEXT]
            node.test = _asked(node.test, len(_branches))
            _branches.append(branch)
            _known.append(False)
    return len(_branches) > before


def _ask(number: int, value: Any, given: Any = None) -> Any:
    """In place of a condition."""
    if type(value) not in (bool, int):
        return value
    answer = guarded(_branches[number].answer)(value, sys._getframe(1), given)
    _known[number] = _branches[number].is_known
    return value if answer is None else answer


def _asked(test: ast.expr, number: int) -> ast.expr:
    """What an operator `and` asks before anything counts is asked as before; what it asks after
    that, of names alone, rules the branch out where it is false."""
    before: List[ast.expr] = []
    given: List[ast.expr] = []
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        at = next((at for at, part in enumerate(test.values) if _counts(part)), 0)
        before, values = test.values[:at], test.values[at:]
        given = [part for part in values[1:] if not _counts(part) and _is_of_names(part)]
        test = ast.BoolOp(ast.And(), values) if len(values) > 1 else values[0]
    known = ast.Subscript(ast.Name(_KNOWN, ast.Load()), ast.Constant(number), ast.Load())
    args: List[ast.expr] = [ast.Constant(number), test]
    if given:
        every = ast.parse("lambda: all((%s,))" % ",".join(map(ast.unparse, given)), mode="eval")
        args.append(every.body)
    asked = ast.IfExp(known, test, ast.Call(ast.Name(_ASK, ast.Load()), args, []))
    return ast.BoolOp(ast.And(), [*before, asked]) if before else asked


def _is_of_names(node: ast.expr) -> bool:
    kinds = (ast.Name, ast.Attribute, ast.Constant, ast.UnaryOp, ast.unaryop, ast.expr_context)
    return all(isinstance(part, kinds) for part in ast.walk(node))


def _ifs(tree: ast.AST) -> Iterator[Tuple[ast.If, List[ast.stmt]]]:
    """Each `if`, with the statements that follow it in its block; none of a function that another
    compiler than Python's reads."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if any(_COMPILES.search(ast.unparse(at)) for at in getattr(node, "decorator_list", ())):
            continue
        todo += ast.iter_child_nodes(node)
        for name in ("body", "orelse", "finalbody"):
            block: Any = getattr(node, name, None)
            for at, statement in enumerate(block if isinstance(block, list) else ()):
                if isinstance(statement, ast.If):
                    yield statement, block[at + 1 :]


def _counters(tree: ast.AST) -> Iterator[str]:
    """The names of numbers of loops, and of what 1 is added to."""
    for node in ast.walk(tree):
        target: Any = None
        if isinstance(node, (ast.For, ast.AsyncFor)) and _NUMBERS.search(ast.unparse(node.iter)):
            target = getattr(node.target, "elts", [node.target])[0]
        elif isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant):
            target = node.target
        yield name_of(target) if target is not None else ""


def _counts(test: ast.AST) -> bool:
    names = (part for part in ast.walk(test) if isinstance(part, (ast.Name, ast.Attribute)))
    return any(name_of(name) in _counting for name in names)


def _replaces(statement: ast.stmt) -> bool:
    """``x = resize(x)``"""
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return False
    names = [
        {part.id for part in ast.walk(side) if isinstance(part, ast.Name)}
        for side in (statement.targets[0], statement.value)
    ]
    return bool(names[0] & names[1])


def _calls(nodes: Any, names: Dict[str, Any]) -> Iterator[str]:
    """The calls among these nodes that work with tensors, as far as these names tell."""
    for node in nodes:
        if isinstance(node, ast.Call):
            called: Any = node.func
            if _SHOWS.search(name_of(called)):
                continue
            base = called.value if isinstance(called, ast.Attribute) else called
            values = [_value(part, names) for part in (called, base, *node.args)]
            if any(map(_is_of_torch, values)) or _is_of_the_script(values[0]):
                yield ast.unparse(called)
        yield from _calls(ast.iter_child_nodes(node), names)


def _value(node: Any, names: Dict[str, Any]) -> Any:
    """What a name stands for, read without a call of anything; None where that is not known."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    base = _value(node.value, names)
    parts = getattr(base, "_modules", None) if _is_of_torch(base) else None
    if isinstance(parts, dict) and node.attr in parts:
        return parts[node.attr]
    with contextlib.suppress(Exception):
        return inspect.getattr_static(base, node.attr)
    return None


def _is_of_torch(value: Any) -> bool:
    """Whether it is a tensor, a module, a list of such, or a part of torch that may make some."""
    torch = sys.modules["torch"]
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    kinds = inspect.ismodule(value), inspect.isroutine(value) or inspect.isclass(value)
    name = getattr(value, ("__name__", "__module__")[kinds[1]], None) if any(kinds) else None
    is_part = str(name).split(".")[0] == "torch" and not str(name).startswith("torch.optim.lr_")
    return isinstance(value, (torch.Tensor, torch.nn.Module)) or is_part


def _is_of_the_script(value: Any) -> bool:
    value = getattr(value, "__func__", value)  # of a class's or a static method
    code = getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None
    if code is None and isinstance(value, type):
        code = getattr(value.__init__, "__code__", None)
    return code is not None and is_users(code.co_filename)
