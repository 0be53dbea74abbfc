"""Whether a statement only names things: a function, a class, or a value that is computed without
changing anything. What follows such a statement finds all as it would without it."""

from __future__ import annotations

import ast
import builtins
import copy
from typing import Any, Dict, Iterable, Optional, Set

# Calls of these change nothing, nor do they call what they are given.
_MODULES = ("os.path", "math")
_FUNCTIONS = {
    *(
        "os.getenv",
        "os.getcwd",
        "os.cpu_count",
        "os.environ.get",
        "platform.system",
        "logging.getLogger",
    ),
    *(
        "torch.device",
        "torch.cuda.is_available",
        "torch.cuda.device_count",
        "numpy.array",
        "re.compile",
    ),
    *("pathlib.Path", "pathlib.PurePath", "pathlib.Path.cwd", "pathlib.Path.home"),
    *(
        "typing.TypeVar",
        "typing.NewType",
        "typing.NamedTuple",
        "typing.cast",
        "dataclasses.field",
        "enum.auto",
    ),
    *(
        "collections.namedtuple",
        "collections.defaultdict",
        "collections.OrderedDict",
        "collections.Counter",
    ),
    *("collections.deque", "functools.partial", "datetime.datetime.now", "datetime.timedelta"),
}
_BUILTINS = {
    *(
        "bool",
        "int",
        "float",
        "complex",
        "str",
        "bytes",
        "tuple",
        "list",
        "dict",
        "set",
        "frozenset",
        "range",
        "slice",
    ),
    *("zip", "enumerate", "reversed", "object", "property", "staticmethod", "classmethod"),
    *(
        "abs",
        "all",
        "any",
        "chr",
        "divmod",
        "len",
        "max",
        "min",
        "ord",
        "pow",
        "repr",
        "round",
        "sorted",
        "sum",
    ),
}
# Of texts, paths and collections. Not `replace` and `copy`: those of a path change files.
_METHODS = {
    *(
        "join",
        "format",
        "split",
        "rsplit",
        "splitlines",
        "partition",
        "rpartition",
        "strip",
        "lstrip",
        "rstrip",
    ),
    *(
        "lower",
        "upper",
        "title",
        "startswith",
        "endswith",
        "encode",
        "decode",
        "get",
        "keys",
        "values",
        "items",
    ),
    *(
        "resolve",
        "absolute",
        "expanduser",
        "as_posix",
        "joinpath",
        "with_name",
        "with_suffix",
        "relative_to",
    ),
    *("exists", "is_file", "is_dir", "strftime", "isoformat"),
}
_PARTS = (
    *(
        ast.Constant,
        ast.Name,
        ast.Attribute,
        ast.Subscript,
        ast.Slice,
        ast.Starred,
        ast.keyword,
        ast.FormattedValue,
    ),
    *(
        ast.JoinedStr,
        ast.BinOp,
        ast.BoolOp,
        ast.UnaryOp,
        ast.Compare,
        ast.IfExp,
        ast.Tuple,
        ast.List,
        ast.Set,
        ast.Dict,
    ),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension),
    *(ast.operator, ast.boolop, ast.unaryop, ast.cmpop, ast.expr_context),
)


class Names:
    """What the names of one file are, as far as what was read of it tells."""

    def __init__(self) -> None:
        self._libraries: Dict[str, str] = {}  # what libraries call what this file calls so
        self._values: Set[str] = {"__file__", "__name__"}  # made in this file of constants
        self._bound: Set[str] = set()  # all that this file gives a meaning

    def of_library(self, name: str, alias: Optional[str], parts: Iterable[ast.alias] = ()) -> None:
        """After `import name as alias`, or `from name import parts`."""
        named = {part.asname or part.name: name + "." + part.name for part in parts}
        top = name.partition(".")[0]
        named = named or ({alias: name} if alias else {top: top})
        self._libraries.update(named)
        for bound in named:
            self._bind(bound, bound)

    def of_unknown(self, statement: ast.AST) -> None:
        """After a statement that gives its names things of which nothing is known."""
        for node in ast.walk(statement):
            if isinstance(node, ast.alias):
                self._bind(node.asname or node.name.partition(".")[0])
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._bind(node.id)
            elif (
                isinstance(
                    node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.ExceptHandler)
                )
                and node.name
            ):
                self._bind(node.name)

    def _bind(self, name: str, library: str = "") -> None:
        self._values.discard(name)
        self._bound.add(name)
        if not library:
            self._libraries.pop(name, None)
        if name == "*":  # any name
            self._libraries.clear()
            self._values.clear()
            self._bound.update(dir(builtins))

    def are_imported(self, statement: ast.AST) -> bool:
        """Whether it refers to libraries and Python's own names alone, and so to nothing that was
        passed over.
        """
        used = {
            node.id
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        python_names = {name for name in dir(builtins) if not name.startswith("__")} - self._bound
        return used <= python_names | set(self._libraries)

    def only_names(self, statement: ast.stmt) -> bool:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            if len(names) < len(targets) or not self._is_value(statement.value):
                return False
            is_own = self._is_own(statement.value)
            for name in names:
                self._bind(name)
            self._values.update(names if is_own else ())
            return True
        if isinstance(statement, ast.Expr):
            return isinstance(statement.value, ast.Constant)
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defaults = [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]
            harmless = self._may_decorate(statement) and all(map(self._is_value, defaults))
            self._bind(statement.name)
            return harmless
        if isinstance(statement, ast.ClassDef):
            above = [*statement.bases, *(keyword.value for keyword in statement.keywords)]
            harmless = self._may_decorate(statement) and all(map(self._is_value, above))
            within = copy.deepcopy(self)  # names in a class are the class's
            self._bind(statement.name)
            return harmless and all(map(within.only_names, statement.body))
        return isinstance(statement, ast.Pass)

    def _may_decorate(self, statement: Any) -> bool:
        """Whether libraries alone decorate it."""
        for decorator in statement.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            given = (
                [*decorator.args, *decorator.keywords] if isinstance(decorator, ast.Call) else []
            )
            if not (self.name_of(called) or self._is_builtin(called)) or not all(
                map(self._is_value, given)
            ):
                return False
        return True

    def _is_value(self, value: Optional[ast.AST]) -> bool:
        if value is None or isinstance(value, ast.Lambda):
            return True
        if isinstance(value, ast.Call):
            return self._only_computes(value) and all(
                map(self._is_value, [*value.args, *value.keywords])
            )
        if isinstance(value, ast.Name) and isinstance(value.ctx, ast.Store):  # of a comprehension
            return value.id not in _BUILTINS and value.id not in self._bound
        return isinstance(value, _PARTS) and all(map(self._is_value, ast.iter_child_nodes(value)))

    def _is_own(self, value: Optional[ast.AST]) -> bool:
        """Whether such a value is made of constants alone. Another may be a library's object, or
        hold one.
        """
        if isinstance(value, ast.Call):
            return self._only_computes(value) and all(
                map(self._is_own, [*value.args, *value.keywords])
            )
        if isinstance(value, ast.Name):
            return value.id in self._values
        return isinstance(value, _PARTS) and all(map(self._is_own, ast.iter_child_nodes(value)))

    def _only_computes(self, call: ast.Call) -> bool:
        """Whether it calls one of those above, a method only of what was made here. Keywords of
        built-ins may be functions.
        """
        function = call.func
        name = self.name_of(function)
        if name is not None:
            return name in _FUNCTIONS or name.rpartition(".")[0] in _MODULES
        if isinstance(function, ast.Attribute):
            return function.attr in _METHODS and self._is_own(function.value)
        return self._is_builtin(function) and (not call.keywords or ast.unparse(function) == "dict")

    def _is_builtin(self, function: ast.expr) -> bool:
        return isinstance(function, ast.Name) and function.id in _BUILTINS - self._bound

    def name_of(self, function: ast.expr) -> Optional[str]:
        """What a library calls it; None where it is no library's."""
        words = []
        while isinstance(function, ast.Attribute):
            words.append(function.attr)
            function = function.value
        if not isinstance(function, ast.Name) or function.id not in self._libraries:
            return None
        return ".".join([self._libraries[function.id], *reversed(words)])
