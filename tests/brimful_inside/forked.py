"""Trials forked from one process that has the imports of the first, as those of one command are: a
start without an import of torch takes a tenth of the time.
"""

import atexit
import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from brimful.measure.shared_imports import SharedImports
from brimful_inside.wire import TrialConfig

MOST = 3  # each holds torch
_kept: dict[tuple[str, bool, bool], tuple[SharedImports, Path]] = {}


def _imports(kind: tuple[str, bool, bool]) -> tuple[SharedImports, Path]:
    """Whose trials differ in nothing that the process had to know when it imported torch."""
    if kind not in _kept:
        if len(_kept) == MOST:
            _close(next(iter(_kept)))
        folder = Path(tempfile.mkdtemp(prefix="forked-trials-"))
        (folder / "work").mkdir()
        _kept[kind] = SharedImports(folder / "imports"), folder / "work"
    return _kept[kind]


def _close(kind: tuple[str, bool, bool]) -> None:
    imports, work = _kept.pop(kind)
    imports.close()
    shutil.rmtree(work.parent, ignore_errors=True)


@atexit.register
def _close_all() -> None:
    for kind in list(_kept):
        _close(kind)


def _move(content: Path, to: Path) -> None:
    for path in content.iterdir():
        shutil.move(path, to / path.name)


def run(
    config: TrialConfig,
    arguments: tuple[str, ...],
    work: Path,
    environment: Mapping[str, str],
    timeout_s: float,
) -> int | None:
    """The exit code of `script.py` with what else is in `work`, in another folder that all trials
    have in turn; None where no process can be forked."""
    kind = config.device, config.audits, config.trace
    imports, here = _imports(kind)
    for name in ("stdout.txt", "stderr.txt"):
        Path(config.folder, name).write_text("")
    # the test's own name is in it
    shared = {name: value for name, value in environment.items() if "PYTEST_CURRENT" not in name}
    _move(work, here)
    try:
        with contextlib.chdir(here):
            command = [sys.executable, "script.py", *arguments]
            process = imports.fork(config, command, shared, timeout_s)
        if process is None:
            return None
        code = process.wait(timeout_s)
        if code is None:
            raise subprocess.TimeoutExpired("script.py", timeout_s)
        return code
    except BaseException:  # the test's own time is up, say: the next trial has another process
        _move(here, work)
        _close(kind)
        raise
    finally:
        if here.exists():
            _move(here, work)
