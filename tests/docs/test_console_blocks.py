"""The pages' commands print what the pages say.

A console block is run where a comment stands above it: `<!-- run: FOLDER -->`, in a copy of that
folder of examples/, by `make docs-run`; `<!-- run in the suite: FOLDER -->` by the tests too. What
follows a command is its standard output; `…` stands for what is left out. Times, speeds, records
and this machine's sizes are not compared. Where the output is another each time (what is fastest on
a busy machine), `<!-- run with other output: FOLDER -->` has it run, after the page's earlier ones.
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
    r"^<!-- run(?P<how> in the suite| with other output)?: (?P<folder>\S+) -->\n+"
    r"```console\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
ANY = re.compile(r"^```\w*\n(?P<text>\$ .*?)^```", re.MULTILINE | re.DOTALL)
NOT_RUN = {
    "docs/reference/check.md": "an invented training, which the tests of its screen have",
    "docs/reference/compare.md": "an invented training, which the tests of its screen have",
    "docs/start/install.md": "uv fetches torch",
    "docs/start/own_script.md": "the reader's own scripts",
}
OTHER = " with other output"
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


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """(how it is run, its folder, its text) of each block that is."""
    found = BLOCK.finditer(page.read_text("utf-8"))
    return [(block["how"] or "", block["folder"], block["text"]) for block in found]


def cases() -> Iterator[object]:
    for page in PAGES:
        for number, (how, folder, text) in enumerate(blocks(page), 1):
            if how != OTHER:
                marks = [] if how else [pytest.mark.slow]
                name = f"{page.relative_to(ROOT)}-{number}"
                yield pytest.param(folder, text, id=name, marks=marks)


def other_pages() -> Iterator[object]:
    for page in PAGES:
        if other := [(folder, text) for how, folder, text in blocks(page) if how == OTHER]:
            yield pytest.param(other, id=str(page.relative_to(ROOT)), marks=[pytest.mark.slow])


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    ignored = shutil.ignore_patterns("__pycache__", ".brimful", "out", "captchas")
    return Path(shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=ignored))


def run(typed: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "COLUMNS": "80",
        "HF_HUB_OFFLINE": "1",
    }
    words = typed.removeprefix("uvx ")
    return subprocess.run(
        words, shell=True, cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("folder", "block"), list(cases()))
def test_a_block_prints_what_its_page_says(examples: Path, folder: str, block: str):
    for typed, expected in commands(block):
        done = run(typed, examples / folder)
        assert differences(expected, done.stdout) == [], f"{typed}\n{done.stdout}\n{done.stderr}"


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("other", list(other_pages()))
def test_the_commands_of_a_page_run_where_their_output_is_another_each_time(
    examples: Path, other: list[tuple[str, str]]
):
    for folder, block in other:
        for typed, _ in commands(block):
            done = run(typed, examples / folder)
            assert done.returncode in (0, 3) and done.stdout, f"{typed}\n{done.stderr}"


def test_every_block_with_a_command_of_brimful_is_run_but_those_of_four_pages():
    not_run = {
        page.relative_to(ROOT).as_posix()
        for page in PAGES
        if "docs/zh" not in page.as_posix()
        for block in ANY.finditer(page.read_text("utf-8"))
        if block["text"] not in [text for _, _, text in blocks(page)]
    }
    assert not_run - {"README.zh-CN.md"} == NOT_RUN.keys()


def test_another_verdict_is_a_difference_and_another_time_or_break_is_none():
    printed = "Batch size 64 fits\nT4: it takes 3.1 s\nand 446 samples/s. More."
    assert differences("Batch size 64 fits T4: it takes 1 min 02 s and\n…", printed) == []
    assert differences("Batch size 32 fits\n…\nMore.", printed) == ["Batch size 32 fits"]
    assert differences("More.\n…\nBatch size 64", printed) == ["Batch size 64"]
    assert commands("$ a b\nc\n$ d\n") == [("a b", "c\n"), ("d", "")]
