"""A number is changed in every process of a command and in every way to start one; no torch is
needed to see it.
"""

from pathlib import Path

import pytest

from brimful_inside.wire import Place
from tests.brimful_inside.helper import Trial, contents

SCRIPT = '''"""A script."""
from __future__ import annotations
import os, sys, multiprocessing
batch = 128

def rank(given):
    print("rank", batch, given, __name__)

if __name__ == "__main__":
    spec = __spec__ is None or __spec__.name
    print("script", batch, sys.argv, os.path.basename(__file__), spec, __package__, __doc__)
    source = __loader__.get_source("__main__")
    print(sys.path[0] == os.path.dirname(os.path.abspath(__file__)), source.count("128"))
    if sys.argv[1:] == ["spawn"]:
        process = multiprocessing.get_context("spawn").Process(target=rank, args=(batch,))
        process.start(); process.join()
    if sys.argv[1:] == ["fail"]:
        raise SystemExit(1 / 0)
'''


def place(path: Path, line: int = 4, number: int = 128) -> Place:
    return Place("script", str(path), line, 8, number, "batch = 128", "script.py:9")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    return folder


def started(run_trial, work: Path, *words: str, path: Path | None = None, **more) -> Trial:
    places = {"batch_size": place(path or work / "script.py")}
    return run_trial(list(words), settings={"batch_size": 64}, places=places, **more)


def test_a_script_and_what_it_spawns_have_the_number_and_all_else_is_as_without_us(run_trial, work):
    before = contents(work)
    done = started(run_trial, work, "script.py", "spawn")
    plain = run_trial(["script.py", "spawn"])
    assert done.stdout.splitlines()[-1] == "rank 64 64 __mp_main__"
    assert done.stdout.replace("64", "128").replace(" 0", " 1") == plain.stdout.replace(
        " 0", " 1"
    ), done.stderr
    assert contents(work) == before


@pytest.mark.parametrize(
    "words", [("-m", "script"), ("-c", "import script; print('script', script.batch)")]
)
def test_a_module_and_an_imported_file_have_the_number(run_trial, work, words):
    assert started(run_trial, work, *words).stdout.startswith("script 64")


def test_compiled_code_of_an_earlier_run_does_not_keep_the_old_number(run_trial, work):
    words = ("-c", "import script; print(script.batch)")
    writes = {"PYTHONDONTWRITEBYTECODE": ""}
    assert run_trial(list(words), env=writes).stdout == "128\n"
    assert list(work.rglob("script.*.pyc"))
    assert started(run_trial, work, *words, env=writes).stdout == "64\n"
    assert run_trial(list(words), env=writes).stdout == "128\n"


def test_an_error_of_the_script_has_its_own_lines_and_exit_code(run_trial, work):
    done = started(run_trial, work, "script.py", "fail")
    assert done.exit_code == 1
    assert 'script.py", line 18, in <module>\n    raise SystemExit(1 / 0)' in done.stderr
    assert done.stderr.rstrip().endswith("ZeroDivisionError: division by zero")


def test_a_script_that_has_a_link_or_another_folder_finds_its_neighbours(run_trial, work, tmp_path):
    (work / "config.py").write_text("n = 1\nm = 2\no = 3\nBATCH = 128\n")
    (work / "main.py").write_text("from config import BATCH\nprint(BATCH)\n")
    away = tmp_path / "away"
    away.mkdir()
    (away / "link.py").symlink_to(work / "main.py")
    for script in (work / "main.py", away / "link.py"):
        assert (
            started(run_trial, work, str(script), path=work / "config.py", cwd=away).stdout
            == "64\n"
        )
    words = ("-c", "import sys; sys.path.insert(0, '../work'); import config; print(config.BATCH)")
    assert started(run_trial, work, *words, path=work / "config.py", cwd=away).stdout == "64\n"


@pytest.mark.parametrize("broken", ["batch = 128 +", "batch = '\\xff' 1", "print(batch"])
def test_a_script_with_an_error_in_its_text_fails_as_without_us(run_trial, work, broken):
    (work / "script.py").write_text(broken + "\n")
    ours, plain = started(run_trial, work, "script.py"), run_trial(["script.py"])
    assert (ours.exit_code, ours.stderr) == (plain.exit_code, plain.stderr)


def test_in_a_finding_trial_numbers_keep_their_place_on_the_way_into_a_spawned_process(
    run_trial, work
):
    (work / "script.py").write_text(
        "import multiprocessing, sys\n"
        "def rank(n):\n"
        "    print(n, n.literal.text, n.literal.line)\n"
        "if __name__ == '__main__':\n"
        "    process = multiprocessing.get_context('spawn').Process(target=rank, args=(96,))\n"
        "    process.start(); process.join()\n"
    )
    done = run_trial(["script.py"], find_places="script")
    assert done.stdout.startswith("96 process = multiprocessing") and done.stdout.endswith(
        " 5\n"
    ), done.stderr


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13"])
def test_other_pythons_have_the_number_too(run_trial, work, version):
    python = next(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), None)
    if python is None:
        pytest.skip(f"Python {version} is not here")
    done = started(run_trial, work, "script.py", "spawn", python=(str(python),))
    assert done.stdout.startswith("script 64") and done.stdout.endswith(
        "rank 64 64 __mp_main__\n"
    ), done.stderr
    assert "True" in done.stdout and not done.stderr
