"""Nothing of the imaginary card stays when it is gone: not after a training, nor after an error,
nor out of memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


SCRIPT = Path(__file__).with_name("leaving.py")
SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture(scope="module")
def report() -> dict:
    variables = {**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=variables, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_card_was_used_and_left_in_four_ways(report):
    finished, failed, filled, tried = report["ends"]
    assert finished == tried == "no error"
    assert failed == "RuntimeError: the script fails"
    assert filled.startswith("OutOfMemoryError: CUDA out of memory.")


def test_every_attribute_mode_hook_and_switch_of_torch_is_as_it_was(report):
    assert report["changed"] == []


def test_torch_computes_and_fails_as_it_did(report):
    first, *later = report["answers"]
    assert later == [first] * 5
    assert first["available"][:2] == [False, 0] and "no error" not in first["cuda fails"][:5]


def test_a_thread_that_outlives_the_card_computes_on_the_host_and_has_no_card(report):
    assert report["late"] == [2.0, report["answers"][0]["cuda fails"][0]]
