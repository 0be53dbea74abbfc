"""What all tests share."""

import compileall
import signal
from pathlib import Path

import pytest

# A run in the background of a shell without job control is started with Ctrl-C ignored, and so would be every process that the
# tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and so it is under nohup

# A trial writes no bytecode (it leaves no trace) and reads what is there: without this, each of some hundred children compiles
# brimful_inside anew, 0.2 s of its 2 (measured). Once, before the workers of pytest-xdist start.
_SOURCE = Path(__file__).parent.parent / "src"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(_SOURCE, quiet=2)


# The heavy tests of these start several processes that each train for a while: `make test-slow` runs them.
_SLOW_ROOMS = [Path(__file__).parent / name for name in ("train", "recipes", "end_to_end/test_run.py")]


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("heavy") and any(item.path.is_relative_to(room) for room in _SLOW_ROOMS):
            item.add_marker("slow")
