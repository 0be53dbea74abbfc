"""The pages stay short: the words of each, and of all together, stand in `frozen.toml`.

Who writes more, cuts as much elsewhere, or raises the number and says why. Words are counted as
`wc -w` counts them, tables and output too, comments not. The log and the decisions are not counted.
"""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
FROZEN = tomllib.loads((ROOT / "tests" / "frozen.toml").read_text())["words"]
NOT_COUNTED = ("docs/zh/", "docs/developers/decisions/", "docs/developers/log.md", "README.zh-CN")


def lengths() -> dict[str, int]:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    names = {path.relative_to(ROOT).as_posix(): path for path in pages}
    counted = [name for name in names if not name.startswith(NOT_COUNTED)]
    return {name: words(names[name].read_text("utf-8")) for name in counted}


def words(page: str) -> int:
    return len(re.sub(r"<!--.*?-->", "", page).split())


def test_no_page_is_longer_than_900_words_but_those_that_are_named():
    most = FROZEN["most"]
    long = {name: words for name, words in lengths().items() if words > most.get(name, 900)}
    assert not long
    assert {name for name, words in lengths().items() if words > 900} == most.keys()


def test_all_pages_together_have_at_most_so_many_words():
    assert sum(lengths().values()) <= FROZEN["total"]
