"""What a shell completes: the script that brimful generates is loaded by bash and asked."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from cyclopts.completion import detect

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")


@pytest.fixture
def script(typed, tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    code, out, _ = typed("--install-completion", "--shell", "bash")
    assert code == 0
    return Path(out.partition(":")[0])


def completed(script: Path, *words: str) -> list[str]:
    """What bash offers for the last of the words."""
    folder = script.parent / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "brimful"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m brimful "$@"\n')
    program.chmod(0o755)
    asks = (
        f"source {shlex.quote(str(script))}; COMP_WORDS=(brimful {shlex.join(words)}); "
        f"COMP_CWORD={len(words)}; _brimful; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", asks], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@needs_bash
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("pre",), ["predict"]),
        (("predict", "--gpu", "a100-8"), ["a100-80gb", "a100-80gb-pcie"]),
        (("compare", "--gpu", "l4"), ["l4", "l40", "l40s"]),
        (("request", "--for", "s"), ["slurm", "skypilot"]),
        (("predict", "--gpu", "l4", "--", "python", "tr"), []),  # bash completes files as ever
    ],
)
def test_verbs_queues_and_cards_are_completed_up_to_the_two_dashes(script, words, offered):
    assert completed(script, *words) == offered
    assert "complete -o bashdefault -o default -F _brimful brimful" in script.read_text()


@needs_bash
def test_all_verbs_and_all_options_are_offered(script):
    assert {"predict", "request", "tune"} <= set(completed(script, ""))
    assert {"--gpu", "--gpu-memory"} <= set(completed(script, "predict", "--gpu"))


def test_a_script_goes_where_the_shell_looks_for_it(typed, tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "user")
    code, out, _ = typed("--install-completion", "--shell", "zsh")
    path = Path(out.partition(":")[0])
    assert code == 0 and path.is_relative_to(tmp_path / "user")
    assert "'*:file:_files'" in path.read_text()
    assert str(path.parent) in (tmp_path / "user" / ".zshrc").read_text()


def test_a_shell_that_is_not_known_is_a_sentence(typed, monkeypatch):
    monkeypatch.setattr(detect, "detect_shell", Mock(side_effect=detect.ShellDetectionError))
    code, out, err = typed("--install-completion")
    assert (code, out) == (2, "") and "--shell bash" in err
    assert typed("--install-completion", "--shell", "tcsh")[0] == 2
