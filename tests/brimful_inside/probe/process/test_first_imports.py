"""Which of a script's imports may be run before it."""

import contextlib
import os
import sys
import textwrap

import pytest

from brimful_inside.launchers import python_words
from brimful_inside.probe.process.first_imports import _of_module, _Over, import_libraries


@pytest.fixture
def imports(tmp_path, monkeypatch):
    """imports(text, argv, **modules) -> the statements that are run of the script."""
    monkeypatch.chdir(tmp_path)

    def of(script, argv=("python", "script.py"), **modules):
        for name, text in {"script": script, **modules}.items():
            place = tmp_path / (
                name.replace("__", "/").replace("TOP", "__init__").replace("MAIN", "__main__")
                + ".py"
            )
            place.parent.mkdir(exist_ok=True)
            place.write_text(textwrap.dedent(text))
        words, statements = python_words(argv), []
        with contextlib.suppress(_Over):
            for statement in _of_module(words.module, os.path.abspath("script.py"), str(tmp_path)):
                statements.append(statement)
        return statements

    return of


SCRIPT = '''
"""What it does.
from the beginning
import nothing
"""
import json, os.path as path  # both
from collections import (
    deque,
    OrderedDict as Ordered,
)
import beside; import wave
STEPS = 3
def train():
    import csv
try:
    import wandb
except ImportError:
    wandb = None
torch.manual_seed(0)
import xml.dom
'''


def test_imports_of_libraries_come_in_their_order_whatever_stands_between(imports):
    assert imports(SCRIPT, beside="import csv\nfrom . import nothing") == [
        "import json, os.path as path  # both",
        "from collections import (\n    deque,\n    OrderedDict as Ordered,\n)",
        "import csv",
        "import xml.dom",
    ]


PACKAGE = {"pack__TOP": "import csv", "pack__data": "import json", "pack__other": "import wave"}
OF_THE_USERS = {
    "what one does to the environment ends all": (
        "import beside, wave",
        {"beside": "import csv\nos.environ['A'] = b\nimport json"},
        ["import csv"],
    ),
    "one imports another": (
        "from pack.one import a",
        {"pack__one": "from .two import b", "pack__two": "from ..pack import c\nimport csv"},
        ["import csv"],
    ),
    "one has the name of a library": (
        "import wave\nimport csv",
        {"wave": "import json"},
        ["import json", "import csv"],
    ),
    "a package is read from its top": (
        "from pack.data import x",
        PACKAGE,
        ["import csv", "import json"],
    ),
    "a part of a package": ("from pack import other", PACKAGE, ["import csv", "import wave"]),
    "each is read once": ("import beside\nimport beside", {"beside": "import csv"}, ["import csv"]),
}


@pytest.mark.parametrize(("script", "modules", "expected"), OF_THE_USERS.values(), ids=OF_THE_USERS)
def test_modules_of_the_users_own_are_read_in_the_place_of_their_import(
    imports, script, modules, expected
):
    assert imports(script, **modules) == expected


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['A'] = str(1)",
        "    os.environ['A'] = '1'",
        "os.environ.update(settings)",
        "os.environ.pop('A')",
        "os.putenv('A', '1')",
        "load_dotenv()",
        "import csv; os.environ['A'] = '1'",
    ],
)
def test_what_may_change_the_environment_ends_them(imports, line):
    assert imports(f"import csv\n{line}\nimport json") == ["import csv"]


def test_what_reads_the_environment_or_speaks_of_it_ends_nothing(imports):
    lines = (
        "import csv\nA = os.environ.get('A')\nif os.environ['A'] == '1': ...\n# os.environ.pop()\n"
    )
    assert imports(lines + "import json") == ["import csv", "import json"]


def test_a_module_that_is_run_is_read_as_the_script_is(imports):
    argv = ("python", "-m", "pack.data")
    assert imports("", argv, **PACKAGE) == ["import csv", "import json"]
    main = {"pack__TOP": "", "pack__MAIN": "import wave"}
    assert imports("", ("python", "-m", "pack"), **main) == ["import wave"]
    assert imports("", ("python", "-m", "xml.dom")) == ["import xml"]
    assert imports("", ("python", "-m", "no_such.module")) == []


AGAIN = """
import os
os.environ["A"] = "1"  # for all
os.environ.setdefault("B", "2")
import no_such_library
import csv
"""


def test_constants_of_the_environment_are_there_for_the_imports_after_it(tmp_path, monkeypatch):
    (tmp_path / "script.py").write_text(AGAIN)
    for name in "AB":
        monkeypatch.setenv(name, "0")
    sys.modules.pop("csv", None)
    assert import_libraries(["python", str(tmp_path / "script.py")])
    assert (os.environ["A"], os.environ["B"]) == ("1", "0") and "csv" in sys.modules
    assert import_libraries(["python", str(tmp_path / "none.py")])


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
