"""The table of first uses, on the imaginary card: each call in a process that has used no card."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.card import first_use

_ON_AN_IMAGINARY_CARD = """
import torch
from brimful_inside import imaginary
from brimful_inside.wire import Card
from bench.card import first_use
imaginary.enter(Card("an imaginary card", 24 << 30, 500 << 20, [8, 6], 82))
first_use.main()
"""


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, str]]:
    done = subprocess.run(
        [sys.executable, "-c", _ON_AN_IMAGINARY_CARD],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        # Lightning sets it where it is imported, and CUDA is then not initialized to ask for cards
        env={k: v for k, v in os.environ.items() if k != "PYTORCH_NVML_BASED_CUDA_CHECK"},
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["call"]: line for line in lines} or pytest.fail(done.stderr)


@pytest.mark.parametrize("row", first_use.rows(), ids=lambda row: row.call)
def test_the_imaginary_card_answers_as_a_card_does_before_its_first_use(row, results):
    assert results[row.call]["result"] in (row.expected, first_use.NOT_THERE)
