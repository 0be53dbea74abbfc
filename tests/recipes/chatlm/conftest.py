"""A small task that a test trains in seconds: rows that a model can learn by heart."""

import functools
import json
from pathlib import Path

import pytest

from tests.recipes.conftest import run

LIMITS = "--vocab-size 320 --max-prompt-tokens 24 --max-response-tokens 16 --eval-share 0.2"
run_recipe = functools.partial(run, "chatlm")
SMALL = f"--model tiny {LIMITS} --batch-size 8 --device cpu --precision fp32".split()


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_rows(tmp_path_factory.mktemp("rows") / "rows.jsonl", 40)


@pytest.fixture(scope="session")
def tokens_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokens")


def write_rows(path: Path, count: int) -> Path:
    rows = [{"prompt": f"第{n}个问题是什么", "response": f"答案是{n * n}。"} for n in range(count)]
    path.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8"
    )
    return path
