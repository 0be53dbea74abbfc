"""The Chinese pages keep in step with the English ones: commands, output, headings, numbers."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHINESE = ROOT / "docs" / "zh"
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FIRST_LINES = CHINESE / "first_lines.md"


def english_of(page: Path) -> Path:
    if page.name == "README.zh-CN.md":
        return ROOT / "README.md"
    if page.name == "tutorial.md":
        return ROOT / "docs" / "start" / page.name
    return ROOT / "docs" / page.relative_to(CHINESE)


def pairs() -> Iterator[tuple[Path, Path]]:
    own = {CHINESE / "index.md", FIRST_LINES}  # those have no English page
    for page in sorted({*CHINESE.rglob("*.md"), ROOT / "README.zh-CN.md"} - own):
        yield english_of(page), page


def headings(text: str) -> list[int]:
    """Their levels, in order."""
    return [len(marks) for marks in re.findall(r"^(#+) ", BLOCK.sub("", text), re.MULTILINE)]


def out_of_step(english: str, chinese: str) -> list[str]:
    """What the Chinese page lacks: blocks, inline commands, numbers of the tables."""
    lacks = [block for block in BLOCK.findall(english) if block not in chinese]
    prose = BLOCK.sub("", english)
    commands = re.findall(r"`(brimful [^`]+)`", prose)
    lacks += [
        words for words in commands if " ".join(words.split()) not in " ".join(chinese.split())
    ]
    tables = "\n".join(line for line in prose.splitlines() if line.startswith("|"))
    numbers = re.findall(r"\d[\d.,]*\d", re.sub(r"\]\(\S*\)", "]", tables))
    return lacks + [number for number in numbers if number not in chinese]


@pytest.mark.parametrize(
    ("english", "chinese"),
    list(pairs()),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_chinese_page_has_the_commands_numbers_and_headings_of_the_english_one(
    english: Path, chinese: Path
):
    texts = english.read_text("utf-8"), chinese.read_text("utf-8")
    assert out_of_step(*texts) == []
    assert headings(texts[1]) == headings(texts[0])


def test_both_pages_link_to_each_other():
    for english, chinese in pairs():
        assert "中文](" in english.read_text("utf-8")[:400], english
        assert "[English](" in chinese.read_text("utf-8")[:400], chinese


def test_another_command_number_or_output_is_out_of_step():
    english = "# A\n\n`brimful gpus`\n\n| 1,024 |\n\n```\n$ x\n```\n"
    assert out_of_step(english, english) == []
    assert out_of_step(english, "# A\n\n`brimful doctor`\n") == [
        "```\n$ x\n```",
        "brimful gpus",
        "1,024",
    ]
