"""The pages' commands print what the pages say.

A console block is run where a comment stands above it: `<!-- run: FOLDER -->`, in a copy of that
folder of examples/, by `make docs-run`; `<!-- run in the suite: FOLDER -->` by the tests too. What
follows a command is its standard output; `…` stands for what is left out. Times, speeds, records
and this machine's sizes are not compared.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
BLOCK = re.compile(
    r"^<!-- run(?P<quick> in the suite)?: (?P<folder>\S+) -->\n+```console\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
MACHINE = (
    (r"\d{8}-\d{6}-[\w-]+", "RECORD"),
    (r"[\d.,]+ (?:ms|s|min|h)\b(?: \d+ (?:s|min))?", "TIME"),
    (r"[\d.,]+ (?:samples|tokens)/s", "SPEED"),
    (r"\d[\d.,]*x (?:faster|slower|your own settings)", "RATIO"),
    (r"(?<=--cpus-per-task=)\d+|(?<=--mem=)\d+G", "ROOM"),
    (r"[\d.,]+ [KMGT]iB of [\d.,]+ [KMGT]iB (?:allowed|in use)", "MEMORY"),
)


def masked(text: str) -> str:
    """The words without what differs from machine to machine, and without line breaks."""
    for pattern, name in MACHINE:
        text = re.sub(pattern, name, " ".join(text.split()))
    return text


def differences(expected: str, printed: str) -> list[str]:
    """The stretches between ellipses that do not follow each other in what was printed."""
    at, missing, printed = 0, [], masked(printed)
    for stretch in filter(None, (masked(part) for part in expected.split("…"))):
        found = printed.find(stretch, at)
        if found < 0:
            missing.append(stretch)
        else:
            at = found + len(stretch)
    return missing


def commands(block: str) -> list[tuple[str, str]]:
    """(what is typed, what it prints)."""
    parts = re.split(r"^\$ (.+)\n", block, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def cases() -> Iterator[object]:
    for page in PAGES:
        for number, block in enumerate(BLOCK.finditer(page.read_text("utf-8")), 1):
            marks = [] if block["quick"] else [pytest.mark.slow]
            name = f"{page.relative_to(ROOT)}-{number}"
            yield pytest.param(block["folder"], block["text"], id=name, marks=marks)


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("folder", "block"), list(cases()))
def test_a_block_prints_what_its_page_says(tmp_path: Path, folder: str, block: str):
    examples = tmp_path / "examples"
    ignored = shutil.ignore_patterns("__pycache__", ".brimful", "out", "captchas")
    shutil.copytree(ROOT / "examples", examples, ignore=ignored)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "80",
        "HF_HUB_OFFLINE": "1",
    }
    for typed, expected in commands(block):
        run = subprocess.run(
            typed,
            shell=True,
            cwd=examples / folder,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert differences(expected, run.stdout) == [], f"{typed}\n{run.stdout}\n{run.stderr}"


def test_another_verdict_is_a_difference_and_another_time_or_break_is_none():
    printed = "Batch size 64 fits\nT4: it takes 3.1 s\nand 446 samples/s. More."
    assert differences("Batch size 64 fits T4: it takes 1 min 02 s and\n…", printed) == []
    assert differences("Batch size 32 fits\n…\nMore.", printed) == ["Batch size 32 fits"]
    assert differences("More.\n…\nBatch size 64", printed) == ["Batch size 64"]
    assert commands("$ a b\nc\n$ d\n") == [("a b", "c\n"), ("d", "")]
