"""Wheels by their hash; pip is a stand-in that writes a file, or fails."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from brimful.errors import UsageError
from recipes.common import wheels
from recipes.common.wheels import Wheel

CONTENT = b"a wheel"
WHEEL = Wheel("thing", "1.0", hashlib.sha256(CONTENT).hexdigest())


class Pip:
    def __init__(self, content: bytes | None) -> None:
        self.content, self.calls = content, 0

    def __call__(self, command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        assert "thing==1.0" in command and "--no-deps" in command
        if self.content is None:
            return subprocess.CompletedProcess(
                command, 1, "", "WARNING: x\nERROR: No matching distribution found for thing==1.0\n"
            )
        Path(command[command.index("--dest") + 1], "thing-1.0-py3-none-any.whl").write_bytes(
            self.content
        )
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch) -> Pip:
    pip = Pip(CONTENT)
    monkeypatch.setattr(wheels.subprocess, "run", pip)
    return pip


def test_a_wheel_is_downloaded_once(pip: Pip, tmp_path: Path) -> None:
    said: list[str] = []
    for _ in range(2):
        path = WHEEL.fetch(tmp_path / "wheels", said.append)
        assert path.read_bytes() == CONTENT
    assert pip.calls == len(said) == 1


def test_a_damaged_wheel_is_downloaded_again(pip: Pip, tmp_path: Path) -> None:
    WHEEL.fetch(tmp_path, print).write_bytes(b"half of it")
    assert WHEEL.fetch(tmp_path, print).read_bytes() == CONTENT


def test_another_content_is_refused_and_not_kept(pip: Pip, tmp_path: Path) -> None:
    pip.content = b"another wheel"
    with pytest.raises(UsageError, match="has the hash"):
        WHEEL.fetch(tmp_path, print)
    assert not list(tmp_path.glob("**/*.whl"))


def test_without_a_network_pips_reason_is_shown(pip: Pip, tmp_path: Path) -> None:
    pip.content = None
    with pytest.raises(UsageError, match="No matching distribution"):
        WHEEL.fetch(tmp_path, print)
