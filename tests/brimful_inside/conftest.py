"""Fixtures that run scripts as trials (see helper.py), and lines in fresh processes."""

import functools
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator

import pytest

from tests.brimful_inside import helper

# One process imports torch, and forks for each source.
FRESH = """
import os, sys, traceback, torch
for line in sys.stdin:
    if not os.fork():
        try:
            exec(eval(line), {})
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
    print(chr(0), flush=True)
"""


@pytest.fixture
def run_trial(tmp_path):
    """run_trial(script or arguments, **fields of TrialConfig and options) -> Trial."""
    return functools.partial(helper.run_trial, tmp_path)


@pytest.fixture(scope="session")
def printed() -> Iterator[Callable[[str], list[str]]]:
    """The lines that a source prints in a process of its own, where torch is imported and nothing
    else of ours; with its traceback where it fails."""
    command = [sys.executable, "-c", FRESH]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        source_end, lines_end = server.stdin, server.stdout
        assert source_end is not None and lines_end is not None

        def run(source: str) -> list[str]:
            print(repr(textwrap.dedent(source)), file=source_end, flush=True)
            return [line.rstrip("\n") for line in iter(lines_end.readline, "\0\n")]

        yield run
