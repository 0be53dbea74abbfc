"""The table of first uses, on the imaginary card: each call in a process that has used no card."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bench.card import first_use

_ON_AN_IMAGINARY_CARD = """
import torch
from brimful_inside import imaginary
from brimful_inside.wire import Card
from bench.card import first_use
imaginary.enter(Card("an imaginary card", 24 << 30, 500 << 20, [8, 6], 82))
first_use.main()
"""
#: What the table does not call, and why.
_LEFT_OUT = {
    "classes, modules and constants, of which no card is asked": """amp graphs jiterator memory nccl
        nvtx profiler random sparse streams tunable has_half has_magma cudaStatus CudaError
        DeferredCudaCallError StreamContext default_generators Graph BFloat16Storage BoolStorage
        ByteStorage CharStorage ComplexDoubleStorage ComplexFloatStorage DoubleStorage FloatStorage
        HalfStorage IntStorage LongStorage ShortStorage""",
    "they make a tensor on the card, as torch.empty does": """BFloat16Tensor BoolTensor ByteTensor
        CharTensor DoubleTensor FloatTensor HalfTensor IntTensor LongTensor ShortTensor""",
    "they need what initializes CUDA first": """check_error graph make_graphed_callables
        use_mem_pool set_rng_state_all""",
    "they need a library or a driver's feature": """CUDAPluggableAllocator change_current_allocator
        GreenContext""",
}


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


def test_the_table_has_every_function_of_the_three_modules():
    calls = " ".join(row.call for row in first_use.rows())
    called = set(re.findall(r"\w+", calls)) | set(" ".join(_LEFT_OUT.values()).split())
    modules = (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.accelerator)
    assert not {name for module in modules for name in module.__all__} - called


def test_functions_of_this_release_are_found():
    missing = [row.call for row in first_use.rows() if not first_use._is_there(torch, row.call)]
    assert missing == []


def test_another_answer_another_error_and_an_ended_process_differ():
    """Without a card, where PyTorch cannot initialize CUDA."""
    for call, result in (
        ("torch.cuda.is_available()", "False"),
        ("torch.cuda.no_such_function()", first_use.NOT_THERE),
        ("__import__('os')._exit(3)", "the process ended with status"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ):
        line = first_use.check(first_use.Row(call, "True", True))
        assert line["result"].startswith(result) and line["result"] != line["expected"]


def test_importing_the_table_imports_no_torch():
    code = "import sys; from bench.card import first_use; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True)
