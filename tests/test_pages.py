"""The pages: docs/architecture.md names files and functions that exist, and links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def missing(page: str) -> list[str]:
    """Paths, from whichever folder, and functions or classes of a file (`path.py: name`) on the
    page and not in the tree.
    """
    found = []
    for path, name in re.findall(r"`([\w/]+(?:\.py|/))(?:: (\w+))?`", page):
        files = (
            list((ROOT / "src").glob(f"**/{path}"))
            + list(ROOT.glob(path))
            + list((ROOT / "docs").glob(path))
        )
        if not files:
            found.append(path)
        elif name and not re.search(
            rf"\b(?:def|class) {name}\b", files[0].read_text(encoding="utf-8")
        ):
            found.append(f"{path}: {name}")
    return found


def test_every_file_and_function_on_the_page_exists():
    assert missing(PAGE) == []


def test_a_name_that_is_gone_is_found():
    assert missing("`measure/gone.py`, `wire.py: gone`, `wire.py: Report`") == [
        "measure/gone.py",
        "wire.py: gone",
    ]


def test_the_walk_to_the_allocator_has_twelve_stops_at_most():
    walk = PAGE.split("## One question, followed")[1].split("\n## ")[0]
    assert 5 <= len(re.findall(r"^\d+\. ", walk, flags=re.MULTILINE)) <= 12


def broken_links(page: str, folder: Path) -> list[str]:
    """Relative links to files that are not there, or that are empty."""
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page)
    found = [(target, folder / target) for target in targets]
    return [
        target
        for target, path in found
        if not path.exists() or (path.is_file() and not path.stat().st_size)
    ]


def test_every_page_has_words_and_its_links_lead_to_files():
    assert PAGES
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.strip(), page
        assert broken_links(text, page.parent) == [], page


def test_a_link_to_a_missing_or_empty_file_is_found(tmp_path):
    (tmp_path / "empty.md").touch()
    (tmp_path / "there.md").write_text("words")
    page = "[a](gone.md), [b](empty.md#part), [c](there.md#part), [d](https://example.org/x)"
    assert broken_links(page, tmp_path) == ["gone.md", "empty.md"]
