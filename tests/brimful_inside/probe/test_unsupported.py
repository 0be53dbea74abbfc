"""What needs a real card is trial as such, with the user's line, whatever words PyTorch and others have for it."""

from __future__ import annotations

import pytest

from brimful_inside.probe.hooks.exceptions import needs_real_card

HEAD = """
import torch
from torch import nn
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(special):
    for _ in range(6):
        loss = special(model(torch.randn(4, 64, device="cuda"))).float().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""
CARD = {"name": "x", "total_bytes": 1 << 34, "context_bytes": 0, "capability": [8, 0], "multiprocessors": 108}


@pytest.mark.parametrize("line", ["torch.utils.dlpack.to_dlpack(y.detach())"])
def test_a_call_that_reads_what_is_not_there_is_unsupported_and_its_line_is_named(run_trial, line):
    text = HEAD + f"import torch.utils.dlpack\ndef special(y):\n    return {line}\nstep(special)\n"
    trial = run_trial(text, device="imaginary", card=CARD)
    (failure,) = trial.failures
    assert failure["kind"] == "unsupported" and failure["where"].endswith("in special")
    assert f"`return {line}`: it needs what the card's tensors hold" in failure["message"]


def test_on_the_cpu_such_words_are_the_scripts_own(run_trial):
    trial = run_trial("import torch\ntorch.empty((), device='meta').item()\n")
    (failure,) = trial.failures
    assert failure["kind"] == "crashed" and "meta" in failure["message"].lower()


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_missing_driver_is_a_missing_card():
    found = needs_real_card(
        raised(AssertionError("libcuda.so cannot found!\nPlease make sure GPU is set up")), lambda path: True
    )
    assert found == "`raise error`: it calls NVIDIA's driver, past PyTorch (AssertionError: libcuda.so cannot found!)"


def test_a_missing_key_of_that_name_is_the_scripts_own():
    assert needs_real_card(raised(KeyError("meta")), lambda path: True) is None


@pytest.mark.parametrize("text", ["", "No module named 'flash_attn'", "metadata of the file is broken", "metal is not here"])
def test_errors_of_another_kind_are_none_of_ours(text):
    assert needs_real_card(raised(RuntimeError(text)), lambda path: True) is None


def test_building_a_cuda_extension_is_named_by_the_line_that_builds_it(tmp_path):
    folder = tmp_path / "torch" / "utils"
    folder.mkdir(parents=True)
    path = folder / "cpp_extension.py"
    path.write_text("def load():\n    raise OSError('CUDA_HOME environment variable is not set')\n")
    space: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    try:
        space["load"]()
    except OSError as error:
        found = needs_real_card(error, lambda file: file == __file__)
    assert found.startswith('`space["load"]()`: it builds a CUDA extension') and "CUDA_HOME" in found
