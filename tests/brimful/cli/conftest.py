"""Each command line is typed in a folder of its own, without a terminal, and leaves signals as they
were.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from brimful.cli import app


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("BRIMFUL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def typed(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs a command line: (exit code, standard output, standard error)."""

    def run(*words: str) -> tuple[int, str, str]:
        return app.run(list(words)), *capfd.readouterr()

    return run
