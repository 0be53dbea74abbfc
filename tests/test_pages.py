"""The pages: what they name exists, links lead somewhere, prose is at most 120 columns wide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS_OF_PAGES = (
    "*.md",
    "docs/**/*.md",
    "recipes/*/README.md",
    "examples/*/README.md",
    "skills/*/*.md",
)
PAGES = sorted(path for pattern in FOLDERS_OF_PAGES for path in ROOT.glob(pattern))
ARCHITECTURE = ROOT / "docs" / "developers" / "architecture.md"
DECISIONS = ROOT / "docs" / "developers" / "decisions"
# Paths on the pages are from the root, or from one of these.
FOLDERS = ("", "src", "src/brimful", "src/brimful/decide", "docs", "src/brimful_train")
FOLDERS += ("src/brimful_inside", "src/brimful_inside/imaginary")
# A path, and a function or class in it: in backquotes, and of our folders anywhere.
QUOTED = r"`([\w.]+/[\w./]*)(?:: (\w+))?`"
OURS = r"(?<![\w./-])((?:src|recipes|tests|bench|docs|examples|brimful\w*)/[\w./-]*\w)(?:: (\w+))?"
WIDTH = 120
IN_CHINESE = re.compile(r"docs/zh/|\.zh-CN\.md$")
# by `make bench-scripts`, `make test-versions`
GENERATED = {
    ROOT / "docs" / "how" / name for name in ("programs.md", "programs_of_others.md", "versions.md")
}


def missing(page: str, paths: str = QUOTED) -> list[str]:
    """Paths, and functions or classes of a file (`path.py: name`), on the page and not in the
    tree. A file without a folder, such as a user's `train.py`, is not looked for.
    """
    gone = []
    for path, name in re.findall(paths, page):
        places = [ROOT / folder / path for folder in FOLDERS if (ROOT / folder / path).exists()]
        if not places:
            gone.append(path)
        elif name and not re.search(rf"\b(?:def|class) {name}\b", places[0].read_text("utf-8")):
            gone.append(f"{path}: {name}")
    return gone


def test_every_file_and_function_on_the_map_exists():
    assert missing(ARCHITECTURE.read_text(encoding="utf-8")) == []


def test_a_name_that_is_gone_is_found():
    page = "`measure/gone.py`, `brimful_inside/wire.py: gone`, `brimful_inside/wire.py: Report`"
    assert missing(page) == ["measure/gone.py", "brimful_inside/wire.py: gone"]


def broken_links(page: str, folder: Path) -> list[str]:
    """Relative links to files that are not there, or empty, or that lack the heading."""
    broken = []
    for link in re.findall(r"\]\(([^):\s]*)\)", page):
        target, _, heading = link.partition("#")
        path = folder / target
        if target and (not path.exists() or (path.is_file() and not path.stat().st_size)):
            broken.append(link)
            continue
        if heading and heading not in headings(path.read_text("utf-8") if target else page):
            broken.append(link)
    return broken


def headings(page: str) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.+)$", page, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def too_wide(page: str) -> list[str]:
    """Lines of prose beyond the width, the targets of links left aside; tables, headings and code
    are no prose.
    """
    prose = re.sub(r"^\s*```.*?^\s*```", "", page, flags=re.MULTILINE | re.DOTALL)
    lines = re.sub(r"\]\(\S*\)", "]", prose).splitlines()
    return [x for x in lines if len(x) > WIDTH and not x.startswith(("|", "    ", "#"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_page_names_files_that_exist_and_no_line_is_too_wide(path: Path):
    page = path.read_text(encoding="utf-8")
    assert page.strip()
    assert broken_links(page, path.parent) == []
    assert missing(page, OURS) == []
    # a line break within a Chinese sentence is shown as a space
    assert path in GENERATED or IN_CHINESE.search(str(path)) or too_wide(page) == []


def test_a_link_to_a_missing_or_empty_file_and_a_wide_line_are_found(tmp_path: Path):
    (tmp_path / "empty.md").touch()
    (tmp_path / "there.md").write_text("# A part\n")
    page = "[a](gone.md), [b](empty.md), [c](there.md#a-part), [d](there.md#b), [e](https://a.b)"
    assert broken_links(page, tmp_path) == ["gone.md", "empty.md", "there.md#b"]
    assert too_wide(f"{'word ' * 30}\n| {'cell ' * 30} |\n```\n{'code ' * 30}\n```\n")


def test_every_decision_is_in_the_index():
    index = (DECISIONS / "index.md").read_text(encoding="utf-8")
    assert [p.name for p in DECISIONS.glob("0*.md") if p.name not in index] == []


def test_the_readme_is_short():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 100 and len(page.split()) <= 850
