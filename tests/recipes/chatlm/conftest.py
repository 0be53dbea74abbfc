"""A small task that a test trains in seconds: rows that a model can learn by heart."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LIMITS = "--vocab-size 320 --max-prompt-tokens 24 --max-response-tokens 16 --eval-share 0.2"
SMALL = f"--model tiny {LIMITS} --batch-size 8 --device cpu --precision fp32".split()


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    pytest.importorskip("sacrebleu")
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


def environment() -> dict[str, str]:
    hidden = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "BRIMFUL_TRIAL_CONFIG")
    return {
        **{k: v for k, v in os.environ.items() if k not in hidden},
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }


def run_recipe(
    *words: object, code: int = 0, ranks: int = 0, typed: str = ""
) -> subprocess.CompletedProcess[str]:
    """`python -m recipes.chatlm WORDS`, or with torchrun where `ranks` says so."""
    program = [sys.executable, "-m"]
    if ranks:
        program += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    command = [*program, "recipes.chatlm", *map(str, words)]
    done = subprocess.run(
        command, env=environment(), input=typed, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done
