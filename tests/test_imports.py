"""What importing costs, and who may import whom, where import-linter cannot see it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

SOURCE = Path(__file__).parents[1] / "src"
INSIDE = SOURCE / "brimful_inside"
HEAVY = ("torch", "numpy", "transformers", "lightning", "pandas", "matplotlib")
REPORT_HEAVY = """
import atexit, sys
def report():
    print("HEAVY:" + ",".join(name for name in {heavy!r} if name in sys.modules), file=sys.stderr)
atexit.register(report)
"""


def heavy_modules_of(program: str, *argv: str, folder: Path) -> list[str]:
    """Heavy modules that are loaded at the end of `program`, run as a script with `argv`."""
    environment = {**os.environ, "BRIMFUL_HOME": str(folder), "NO_COLOR": "1"}
    code = REPORT_HEAVY.format(heavy=HEAVY) + program
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("HEAVY:")]
    assert lines and "Traceback" not in done.stderr, done.stderr
    return [name for name in lines[-1].removeprefix("HEAVY:").split(",") if name]


def test_importing_brimful_imports_no_torch(tmp_path: Path):
    program = "import brimful; brimful.Plan; brimful.BrimfulError"
    assert heavy_modules_of(program, folder=tmp_path) == []
    # This test can fail.
    assert "torch" in heavy_modules_of("import brimful, torch", folder=tmp_path)


@pytest.mark.parametrize(
    "argv",
    [
        ["--help"],
        ["--version"],
        ["gpus"],
        ["predict", "--help"],
        ["report", "--help"],
        ["report"],
        ["monitor"],
    ],
)
def test_the_command_line_imports_no_torch_where_it_runs_nothing(argv: list[str], tmp_path: Path):
    program = "import sys; sys.argv[0] = 'brimful'\nfrom brimful.cli import main\nsys.exit(main())"
    assert heavy_modules_of(program, *argv, folder=tmp_path) == []


def test_the_public_names_are_few_and_all_there_and_another_is_an_error_with_its_name():
    import brimful

    assert len(brimful.__all__) <= 15
    for name in brimful.__all__:
        assert getattr(brimful, name) is not None
    assert dir(brimful) == sorted(brimful.__all__)
    with pytest.raises(AttributeError, match="no attribute 'tuna'"):
        _ = brimful.tuna


def imported_names(text: str) -> Iterator[str]:
    """All modules that a source file imports, at module level or inside functions, but not those
    that it can do without: an import under ``try`` that catches ImportError."""
    tree = ast.parse(text)
    optional = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.Try) and catches_import_error(node)
        for inner in node.body
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in optional:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node not in optional:
            yield node.module or ""


def catches_import_error(node: ast.Try) -> bool:
    return any(
        isinstance(handler.type, ast.Name) and handler.type.id == "ImportError"
        for handler in node.handlers
    )


def foreign_imports(folder: Path, allowed: set[str]) -> set[str]:
    """`file: module` of each import under `folder` that is neither of the standard library nor of
    `allowed` packages.
    """
    return {
        f"{path.relative_to(SOURCE)}: {name}"
        for path in folder.rglob("*.py")
        for name in imported_names(path.read_text(encoding="utf-8"))
        if not (folder == SOURCE / "brimful" and WITH_EXTRAS & {*path.parts})
        if name.split(".")[0] not in sys.stdlib_module_names
        and not any(f"{name}.".startswith(f"{package}.") for package in allowed)
    }


WITH_EXTRAS = {"integrations", "mcp_server.py"}  # what they import comes with an extra
TOOL = {"psutil", "pynvml", "rich", "cyclopts", "msgspec", "altair", "vl_convert"}
TOOL |= {"jinja2", "markupsafe"}  # which jinja2 stands on
TOOL |= {"brimful", "brimful_inside"}


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("brimful_inside/simulator", {"brimful_inside.simulator"}),
        ("brimful_inside", {"brimful_inside", "torch"}),
        ("brimful", TOOL),
        ("brimful/cli", TOOL | {"anyio", "mcp"}),
        ("brimful/integrations", TOOL | {"pytest", "torch", "lightning", "transformers"}),
        ("brimful_train", TOOL | {"torch", "numpy", "safetensors", "brimful_train"}),
    ],
)
def test_each_package_imports_what_it_depends_on_and_no_more(folder: str, allowed: set[str]):
    assert foreign_imports(SOURCE / folder, allowed) == set()


def test_each_adapter_imports_its_own_framework_and_torch_and_the_shared_one_torch_alone():
    adapters = SOURCE / "brimful" / "integrations"
    foreign = foreign_imports(adapters, TOOL)
    names = {entry.split(": ")[0].split("/")[-1]: set() for entry in foreign}
    for entry in foreign:
        file, name = entry.split(": ")
        names[file.split("/")[-1]].add(name.split(".")[0])
    assert names == {
        "accelerate.py": {"torch"},
        "pytest_plugin.py": {"pytest"},
        "attempts.py": {"torch"},
        "lightning.py": {"torch", "lightning"},
        "transformers.py": {"torch", "transformers"},
    }


def test_a_foreign_import_is_seen_wherever_it_stands_but_for_one_that_can_fail():
    assert list(imported_names("import os\ndef f():\n    from numpy.linalg import norm\n")) == [
        "os",
        "numpy.linalg",
    ]
    assert list(imported_names("try:\n    import numpy\nexcept ImportError:\n    pass\n")) == []
    assert list(imported_names("try:\n    import numpy\nexcept ValueError:\n    pass\n")) == [
        "numpy"
    ]


def test_brimful_inside_can_be_read_by_python_3_9():
    for path in sorted(INSIDE.rglob("*.py")):
        tree = ast.parse(
            path.read_text(encoding="utf-8"), filename=str(path), feature_version=(3, 9)
        )
        assert not any(isinstance(node, ast.Match) for node in ast.walk(tree)), path


def import_circles(graph: grimp.ImportGraph) -> set[frozenset[str]]:
    """Groups of modules that import one another, in however many stays."""
    reached = {module: set(graph.find_upstream_modules(module)) for module in graph.modules}
    return {
        frozenset({module, *(other for other in upstream if module in reached[other])})
        for module, upstream in reached.items()
        if any(module in reached[other] for other in upstream)
    }


def test_no_modules_import_each_other_in_a_circle_not_even_for_their_types():
    packages = ("brimful", "brimful_inside", "brimful_train", "recipes")
    graph = grimp.build_graph(*packages, exclude_type_checking_imports=False, cache_dir=None)
    assert import_circles(graph) == set()


def test_a_circle_by_way_of_type_checking_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "ringed"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "one.py").write_text("from ringed import two\n")
    (package / "two.py").write_text("def f():\n    from ringed import three\n")
    (package / "three.py").write_text(
        "import typing\nif typing.TYPE_CHECKING:\n    from ringed.one import One\n"
    )
    (package / "four.py").write_text("from ringed import one\n")
    monkeypatch.syspath_prepend(tmp_path)
    graph = grimp.build_graph("ringed", exclude_type_checking_imports=False, cache_dir=None)
    assert import_circles(graph) == {frozenset({"ringed.one", "ringed.two", "ringed.three"})}
