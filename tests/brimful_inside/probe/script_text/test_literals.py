"""Integers of a script's text know their place wherever they go as they are, and one of them can be
replaced.
"""

import ast
import copy
import functools
import pickle
import textwrap
from typing import Any

import pytest

from brimful_inside.probe.script_text import literals
from brimful_inside.probe.script_text.literals import places_of

# : What a script gives its loader, in the forms that scripts have, and the line that brimful is to
# change.
FORMS = {
    "a constant of the module": ("batch = 128\nhidden = 128\ngive(batch)", 1),
    "a constant with a type": ("batch: int = 128\ngive(batch)", 1),
    "one that is shadowed": (
        "batch = 128\ndef main():\n    batch = 64\n    give(batch)\nmain()",
        3,
    ),
    "two loaders": ("train = 128\ntest = 256\ngive(train)", 1),
    "a local of a function": ("def main():\n    n = 32\n    give(n)\nmain()", 2),
    "a default of a function": ("def main(lr=1,\n    batch=32): give(batch)\nmain()", 2),
    "a keyword's default": ("def main(*,\n    batch=32): give(batch)\nmain()", 2),
    "an argument that is passed on": ("def make(n): give(n)\ndef main(n): make(n)\nmain(\n 16)", 4),
    "a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass C:\n    batch: int = "
        "48\ngive(C().batch)",
        4,
    ),
    "a field of a dataclass": (
        "from dataclasses import dataclass, field\n@dataclass\nclass C:\n    b: int = "
        "field(default=48)\ngive(C().b)",
        4,
    ),
    "an attribute of a class": ("class Config:\n    batch = 48\ngive(Config.batch)", 2),
    "a dictionary": ("config = {\n 'lr': 1,\n 'batch': 24}\ngive(config['batch'])", 3),
    "a pair": ("epochs, batch = (3,\n 24)\ngive(batch)", 2),
    "a namespace": (
        "from types import SimpleNamespace\na = SimpleNamespace(\n b=24)\ngive(a.b)",
        3,
    ),
    "argparse's default": (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--batch', type=int,\n default=24)\ngive(p.parse_args([]).batch)",
        4,
    ),
    "a number that others fall back to": ("given = None\nbatch = given or 24\ngive(batch)", 2),
    "a function that returns it": ("def batch():\n    return 24\ngive(batch())", 2),
    "a share of a process": ("ranks = len('ab')\nbatch = 128\ngive(batch // ranks)", 2),
    "a batch on every card": ("cards = len('ab')\nbatch = 128\ngive(cards * batch)", 2),
    "a batch times a constant": ("cards = 2\nbatch = 128\ngive(cards * batch)", 2),
    "what is smaller": ("batch = 128\ngive(min(batch, 1000))", 1),
    "a copy": ("import copy\nc = {'b': 128}\ngive(copy.deepcopy(c)['b'])", 2),
    "the argument itself": ("give(\n128)", 2),
    "a docstring and the future": (
        '"""128"""\nfrom __future__ import annotations\nbatch: "int" = 128\ngive(batch)',
        3,
    ),
}


def execute(tree: Any, file: str = "train.py") -> list[Any]:
    given: list[Any] = []
    names = {"give": given.append, "__name__": "train_of_a_test"}
    exec(compile(tree, file, "exec", dont_inherit=True), names)
    return given


def changed(change: Any, source: bytes, path: str = "train.py") -> ast.Module:
    tree = ast.parse(source, path)
    assert change(tree, source, path)
    return ast.fix_missing_locations(tree)


def marked(source: bytes, path: str = "train.py") -> ast.Module:
    return changed(literals.Literals().mark, source, path)


def replaced(source: bytes, numbers: Any) -> ast.Module:
    return changed(functools.partial(literals.replace, {"train.py": numbers}), source)


@pytest.mark.parametrize("form", FORMS)
def test_a_number_leads_to_the_line_that_it_comes_from_and_changes_with_it(form):
    text, line = FORMS[form]
    source = textwrap.dedent(text).encode()
    (given,) = execute(marked(source))
    literal, _ = places_of(given)
    assert literal is not None and literal.line == line
    own = literal.number
    halved = replaced(source, {(literal.line, literal.column): (own, own // 2)})
    assert [(number, type(number)) for number in execute(halved)] == [(given // 2, int)]


@pytest.mark.parametrize(
    "text",
    [
        "give(12 + 4)",
        "give(len('ab' * 4))",
        "n: 'Literal[8]' = int('8')\ngive(n)",
        "give([1, 2][1 - 1] + 1)",
    ],
)
def test_a_number_that_a_script_computes_leads_nowhere(text):
    (given,) = execute(marked(text.encode()))
    assert places_of(given) == (None, None)


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("batch = min(asked, 4)", 32),  # the loader gets the 4 of this line, which has a limit
        ("batch = min(asked, 100)", 100),
        ("batch = min(asked, len('ab' * 100))", 200),
        ("batch = min(asked, 300, 100)", 100),
        ("batch = max(asked, 8)", 8),
        ("batch = max(1, asked // 4)", None),
        ("batch = asked if asked > 4 else 4", None),
        ("batch = sorted([asked, 40])[0]", None),
    ],
)
def test_a_number_knows_the_number_that_min_or_max_sets_beside_it(tmp_path, line, limit):
    path = tmp_path / "train.py"
    path.write_text(f"asked = 32\n{line}\ngive(batch)\n")
    (given,) = execute(marked(path.read_bytes(), str(path)), str(path))
    literal, _ = places_of(given)
    known = literals.limits.get(literal, (None, ""))
    assert literal is not None and known == (limit, f"train.py:2 (`{line}`)" if limit else "")


def test_a_marked_script_computes_what_the_script_computes():
    text = """
    import json
    n = 12
    def f(x, y=3): return x * n - y // 2 + [7, 8, 9][1]
    for i in range(4): n = n * i + 1
    give((f(2), f"{n:04d}", json.dumps({"n": n, "m": 5}), str(3), 7 / 2, -5, 3 ** 2))
    give(({1: 2}, (1, (2, 3)), n == 3, n is None))
    match n:
        case 128: give("no")
        case _: give("yes")
    """
    source = textwrap.dedent(text).encode()
    assert execute(marked(source)) == execute(ast.parse(source))


def test_lines_of_a_traceback_stay():
    source = b'"""doc"""\nbatch = 4\n\ndef f(\n  n=3):\n    raise KeyError(n)\nf()\n'
    for tree in (
        marked(source),
        replaced(source, {(2, 8): (4, 9)}),
    ):
        with pytest.raises(KeyError) as caught:
            execute(tree)
        assert [entry.lineno + 1 for entry in caught.traceback[-2:]] == [7, 6]


def test_a_number_is_an_int_in_a_file():
    (given,) = execute(marked(b"give(128)"))
    assert type(pickle.loads(pickle.dumps(given))) is int and copy.copy(given) is given


def test_other_places_of_the_same_number_are_named():
    found = literals.Literals()
    source = b"batch = 128\nhidden = 128\nx = [0] * (128 + 1)\ngive(batch)"
    (given,) = execute(changed(found.mark, source))
    assert found.others(places_of(given)[0]) == ["train.py:2", "train.py:3"]


def test_a_text_that_has_changed_is_refused():
    with pytest.raises(LookupError, match=r"train\.py:1 has no 128 any more"):
        replaced(b"batch = 129", {(1, 8): (128, 64)})


def test_numbers_in_a_line_that_names_a_batch_are_candidates_where_no_loader_shows_which_is_meant():
    read = literals.Literals()
    changed(
        read.mark,
        b"heads = 16  # of each batch\nbatch_size = 16\nbatch_limit = 32\nmake(16, batches=16)",
    )
    assert [(one.line, one.number) for one in read.of_a_batch(16)] == [(2, 16), (4, 16), (4, 16)]
