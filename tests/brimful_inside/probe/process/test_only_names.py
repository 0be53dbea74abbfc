"""What only names things, and what may do more."""

from __future__ import annotations

import ast

import pytest

from brimful_inside.probe.process.only_names import Names


def only_names(text: str) -> bool:
    names = Names()
    names.of_library("os", None)
    names.of_library("numpy", "np")
    for library in ("re", "torch", "logging", "somewhere", "sys", "functools"):
        names.of_library(library, None)
    names.of_library("dataclasses", None, [ast.alias("dataclass")])
    names.of_library("os.path", None, [ast.alias("dirname"), ast.alias("abspath", "whole")])
    names.of_library("pathlib", None, [ast.alias("Path")])
    return all(map(names.only_names, ast.parse(text).body))


@pytest.mark.parametrize(
    "text",
    [
        '"""What it does."""',
        "STEPS = 3",
        "ROOT: str = '/'.join(whole(dirname(__file__)).split('\\\\')) if '\\\\' in __file__ else "
        "dirname(__file__)",
        "HERE = Path(__file__).resolve().parent / 'data'\nTHERE = HERE.parent",
        "ENDS = set('.!?')\nWORDS = re.compile('[a-z]+')",
        "TABLE = {name: os.path.join('a', f'{name}.txt') for name in ['a', *ENDS]}",
        "KEY = os.environ.get('KEY', 'none')\nTYPES = {'half': torch.float16}",
        "A = [name.lower for name in ['a']]\nB = [len(name) for name in ['b']]",
        "MEAN = np.array([0.5, 0.5])",
        "logger = logging.getLogger(__name__)",
        "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "@dataclass\nclass A(Base, metaclass=Meta):\n    root: str = ROOT + '/a'\n    n: int",
        "class A:\n    @property\n    def b(self): return c()",
        "@torch.no_grad()\ndef a(b=ROOT + '/b', *, c=[1]): d()",
        "half = lambda x: x / compute()",
    ],
)
def test_what_computes_a_value_or_defines_something_only_names(text):
    assert only_names(text)


@pytest.mark.parametrize(
    "text",
    [
        "a()",
        "x = a()",
        "x = a.b()",
        "x = somewhere.prepare()",
        "x = os.putenv('A', '1')",
        "x = os.environ.setdefault('A', '1')",
        "x = os.environ.pop('A')",
        "x = [os.remove(name) for name in names]",
        "a.b = 1",
        "a[0] = 1",
        "x = y = b()",
        "x = {'a': b()}",
        "x = print('here')",
        "x = open('a', 'w')",
        "x = (y := 1)",
        "@own\ndef a(): ...",
        "@somewhere.register(b())\ndef a(): ...",
        "def a(b=c()): ...",
        "class A(b()): ...",
        "class A:\n    b()",
        "class A:\n    b = c()",
        "if a: ...",
        "for a in b: ...",
        "import csv",
        "x = imported.split()",
        "env = os.environ; z = env.update(A='1')",
        "p = sys.path; q = p.append('a')",
        "TORCH = torch; y = TORCH.set_default_dtype(torch.float64)",
        "TORCH = [torch]; y = TORCH[0].get('a')",
        "old = np.seterr(all='raise')",
        "x = np.random.seed(0)",
        "x = Path('a').mkdir()",
        "x = Path('a').write_text('b')",
        "HERE = Path('a'); x = HERE.unlink()",
        "x = Path('a').replace('b')",
        "x = list(map(os.remove, ['a']))",
        "x = list(filter(os.remove, ['a']))",
        "x = functools.reduce(os.putenv, ['a', 'b'])",
        "x = sorted(['a'], key=launch)",
        "x = max(['a'], **{'key': launch})",
        "x = logging.getLogger().setLevel('INFO')",
        "x = os.path.os.remove('a')",
        "def set(a): launch()\nx = set('a')",
        "class dict: ...\nx = dict()",
        "str = launch\nx = str('a')",
        "x = [str('a') for str in [launch]]",
        "class A:\n    sys = 'a'\nx = sys.get('a')",
    ],
)
def test_what_may_change_something_does_more(text):
    assert not only_names(text)


def test_a_star_may_give_any_name_another_meaning():
    for library in (True, False):
        names, statement = Names(), ast.parse("from somewhere import *").body[0]
        assert isinstance(statement, ast.ImportFrom)
        names.of_library("os.path", "path")
        names.of_library("somewhere", None, statement.names) if library else names.of_unknown(
            statement
        )
        assert not any(
            names.only_names(ast.parse(text).body[0])
            for text in ("x = set('a')", "x = path.join('a', 'b')")
        )
