"""Which of a script's imports may be run before it."""

import ast
import contextlib
import os
import sys
import textwrap

import pytest

from brimful_inside.probe.process.first_imports import _Imports, _Over, import_libraries

SCRIPT = '''
"""What it does."""
from __future__ import annotations
import json, os.path as path
from collections import (
    deque,
    OrderedDict as Ordered,
)
import beside
STEPS = 3
def train(): ...
class Model: ...
try:
    import wandb
except ImportError:
    wandb = None
import xml.dom
print(STEPS)
import wave
'''
TRIED = "try:\n    import wandb\nexcept ImportError:\n    wandb = None"


@pytest.fixture
def imports(tmp_path):
    def written(script, argv=None, **modules):
        for name, text in {"script": script, **modules}.items():
            place = tmp_path / (name.replace("__", "/").replace("TOP", "__init__") + ".py")
            place.parent.mkdir(exist_ok=True)
            place.write_text(textwrap.dedent(text))
        return imports_of(argv or ["python", str(tmp_path / "script.py")])

    return written


def imports_of(argv):
    statements = []
    with contextlib.suppress(_Over):
        _Imports(argv, statements.append).of_script()
    return list(map(ast.unparse, statements))


def test_imports_of_libraries_come_up_to_the_first_statement_that_does_something(imports):
    beside = "import csv\nfrom . import nothing"
    first = [
        "import json",
        "import os.path as path",
        "from collections import deque, OrderedDict as Ordered",
    ]
    assert imports(SCRIPT, beside=beside) == [*first, "import csv", TRIED, "import xml.dom"]


NAMED = "from os.path import dirname as above\nROOT = above(__file__)\nimport csv"
PACKAGE = {"pack__TOP": "import csv", "pack__data": "import json", "pack__other": "import wave"}
OF_THE_USERS = {
    "what one does ends them too": (
        "import beside, wave",
        {"beside": "import csv\nprint()\nimport json"},
        ["import csv"],
    ),
    "one imports another": (
        "from pack.one import a",
        {"pack__one": "from .two import b", "pack__two": "import csv"},
        ["import csv"],
    ),
    "one has the name of a library": (
        "import wave, csv",
        {"wave": "import json"},
        ["import json", "import csv"],
    ),
    "what only names things ends nothing": (
        "import beside, json",
        {"beside": NAMED},
        [NAMED.partition("\n")[0], "import csv", "import json"],
    ),
    "a file alone knows its names": (
        "from beside import above\nROOT = above(__file__)\nimport json",
        {"beside": NAMED},
        [NAMED.partition("\n")[0], "import csv"],
    ),
    "a package is read from its top": (
        "from pack.data import x",
        PACKAGE,
        ["import csv", "import json"],
    ),
    "a part of a package": ("from pack import other", PACKAGE, ["import csv", "import wave"]),
    "a package that does something": (
        "from pack.data import x\nimport string",
        {**PACKAGE, "pack__TOP": "import csv\nsetup()"},
        ["import csv"],
    ),
}


@pytest.mark.parametrize(("script", "modules", "expected"), OF_THE_USERS.values(), ids=OF_THE_USERS)
def test_modules_of_the_users_own_are_read_in_the_place_of_their_import(
    imports, script, modules, expected
):
    assert imports(script, **modules) == expected


@pytest.mark.parametrize(
    "statement",
    [
        "import no_such_library",
        "try: import beside\nexcept ImportError: ...",
        "try: import string\nexcept: import wave",
        "try: import string\nexcept (ImportError, NameError): import wave",
        "try: import string; string.capwords('a')\nexcept ImportError: ...",
        "if a: ...",
        "a.b = 1",
        "a[0] = 1",
        "a()",
        "x = a()",
        "x = torch.device(a())",
        "x = (y := 1)",
        "raise a",
        "from beside import *\nx = device('cpu')",
    ],
)
def test_what_may_do_more_than_it_says_ends_them(imports, statement):
    begin = "import torch, csv"
    assert imports(f"{begin}\n{statement}\nimport json", beside="")[2:] == []


MAIN = "import csv\nif __name__ == '__main__':\n    run()\nimport wave"


def test_what_a_module_does_as_the_main_one_is_passed_over_where_it_is_imported(
    imports, tmp_path, monkeypatch
):
    assert imports(MAIN) == ["import csv"]
    assert imports("import beside, json", beside=MAIN) == [
        "import csv",
        "import wave",
        "import json",
    ]
    monkeypatch.chdir(tmp_path)
    assert imports("", ["python", "-m", "beside"], beside=MAIN) == ["import csv"]
    assert imports(
        "import beside, json", beside=MAIN + "\nif __name__ == '__main__': run()\nelse: run()"
    ) == [
        "import csv",
        "import wave",
    ]


def test_the_file_of_a_package_that_runs_does_what_the_main_one_does(
    imports, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    main = "import os\nif __name__ == '__main__':\n    os.environ['A'] = str(1)\nimport wave"
    argv = ["python", "-m", "pack"]
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__main__.py").write_text(main)
    assert imports("", argv, pack__TOP=MAIN) == ["import csv", "import wave", "import os"]
    assert imports("", [*argv[:2], "pack.part"], pack__TOP="", pack__part=MAIN) == ["import csv"]


def test_the_file_of_a_library_that_runs_does_what_the_main_one_does(tmp_path, monkeypatch):
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "a_program.py").write_text(MAIN)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    assert imports_of(["python", "-m", "a_program"]) == ["import csv"]


@pytest.mark.parametrize(
    "statement",
    [
        "STEPS: int = 3 + len.x",
        "logger = logging.getLogger(__name__)",
        "device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')",
        "class A(Base, metaclass=Meta):\n    n: int\n    @property\n    def b(self): return c()",
        "@torch.no_grad\ndef a(b=ROOT + '/b', *, c=[1]): d()",
        "try: import wave; x = wave.Error\nexcept (ImportError, ModuleNotFoundError): ...",
    ],
)
def test_what_calls_nothing_but_what_is_harmless_ends_nothing(imports, statement):
    begin = "import logging, torch\n"
    assert imports(begin + statement + "\nimport json")[-1] == "import json"


def test_a_library_that_imports_a_name_of_the_users_own_shares_nothing(tmp_path, monkeypatch):
    (tmp_path / "site-packages").mkdir()
    for name, text in (
        ("site-packages/a_library.py", "import a_helper"),
        ("site-packages/a_helper.py", ""),
        ("script.py", "import a_library"),
    ):
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    (tmp_path / "a_helper").mkdir()  # of data: Python takes the installed package
    for users, shares in (("other.py", True), ("a_helper.py", False)):
        for name in ("a_library", "a_helper"):
            sys.modules.pop(name, None)
        (tmp_path / users).write_text("")
        assert import_libraries(["python", str(tmp_path / "script.py")]) == shares


AGAIN = """
import os, warnings
os.environ["A"] = "1"
os.environ.setdefault("B", "2")
warnings.filterwarnings("ignore", category=UserWarning)
import csv
os.environ["A"] = str(os.getpid())
import json
"""


def test_what_the_script_puts_into_the_environment_is_there_for_the_imports_after_it(
    imports, tmp_path, monkeypatch
):
    assert imports(AGAIN)[2:] == [
        "os.environ['A'] = '1'",
        "os.environ.setdefault('B', '2')",
        "warnings.filterwarnings('ignore', category=UserWarning)",
        "import csv",
    ]
    for name in "AB":
        monkeypatch.setenv(name, "0")
    import_libraries(["python", str(tmp_path / "script.py")])
    assert (os.environ["A"], os.environ["B"]) == ("1", "0")


def test_a_module_that_is_run_is_read_as_the_script_is(imports, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert imports("import csv", ["python", "-m", "script", "--lr", "1"]) == ["import csv"]
    assert "import sys" in imports("", ["python", "-m", "json.tool"])
    assert imports("", ["python", "-c", "import csv"]) == []


FAILS = ("import json.nothing_so", "import os\nROOT = 'a'\nos.environ.setdefault('A', ROOT)")


@pytest.mark.parametrize("fails", FAILS)
def test_a_statement_that_fails_is_left_to_the_script(tmp_path, fails):
    (tmp_path / "script.py").write_text(fails + "\nimport wave")
    sys.modules.pop("wave", None)
    import_libraries(["python", str(tmp_path / "script.py")])
    assert "wave" not in sys.modules
