"""The pytest plugin, by sessions of pytest of their own."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")

NAME = "brimful.integrations.pytest_plugin"
TESTS = """
import pytest
import torch
from torch import nn

@pytest.fixture
def model():
    return nn.Linear(4096, 4096).cuda()

def train(model):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(1024, 4096, device="cuda")).sum().backward()
        optimizer.step()

def test_on_the_host_before():
    assert not torch.cuda.is_available() and torch.ones(3).sum().item() == 3

@pytest.mark.limit_gpu_memory("1 GiB", gpu="a100-40gb")
def test_that_fits(model):
    train(model)

@pytest.mark.limit_gpu_memory("700 MiB", gpu="a100-40gb")
def test_that_takes_too_much(model):
    train(model)

@pytest.mark.parametrize("imaginary_gpu", ["2 GiB", "t4:2"], indirect=True)
def test_of_handling_out_of_memory(imaginary_gpu):
    kept = []
    with pytest.raises(torch.OutOfMemoryError):
        while True:
            kept.append(torch.empty(1 << 28, device="cuda"))
    assert torch.cuda.device_count() == imaginary_gpu.count
    kept.clear()
    torch.empty(1 << 28, device="cuda")

def test_that_runs_out(imaginary_gpu):
    assert torch.cuda.get_device_name() == "NVIDIA L4"
    kept = [torch.empty(1 << 30, device="cuda") for _ in range(40)]

def test_calls_all_run(imaginary_gpu):
    calls = []

    class Layer(nn.Linear):
        def forward(self, x):
            calls.append(1)
            return super().forward(x)

    layer, x = Layer(8, 8).cuda().eval(), torch.ones(4, 8, device="cuda")
    with torch.no_grad():
        for _ in range(20):
            layer(x)
    assert len(calls) == 20

@pytest.mark.xfail(raises=torch.OutOfMemoryError, strict=True)
def test_expected_to_run_out(imaginary_gpu):
    torch.empty(1 << 40, device="cuda")

def test_on_the_host_after():
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(1, device="cuda")
    assert not torch.cuda.is_available() and torch.ones(3).sum().item() == 3

@pytest.mark.limit_gpu_memory("20 parsecs")
def test_bad_limit(): ...

@pytest.mark.limit_gpu_memory("20 GiB", gpu="a100-41gb")
def test_bad_card(): ...

@pytest.mark.limit_gpu_memory(gpu="a100-40gb")
def test_no_limit(): ...
"""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a session of `TESTS` prints."""
    folder = tmp_path_factory.mktemp("session")
    (folder / "test_gpu.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\nimaginary_gpu = l4\n")
    return ran(folder, "-rA", "--strict-markers")


def ran(folder: Path, *options: str) -> list[str]:
    options = ("-q", "-p", NAME, "-p", "no:cacheprovider", *options)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
    )
    return (done.stdout + done.stderr).splitlines()


def outcomes(lines: list[str], word: str) -> set[str]:
    summary = [line.split() for line in lines if line.startswith(f"{word} ")]
    return {words[1].partition("::")[2] for words in summary}


def test_tests_pass_fail_and_leave_those_on_the_host_alone(lines: list[str]):
    assert outcomes(lines, "PASSED") == {
        "test_on_the_host_before",
        "test_that_fits",
        "test_of_handling_out_of_memory[2",
        "test_of_handling_out_of_memory[t4:2]",
        "test_calls_all_run",
        "test_on_the_host_after",
    }
    assert outcomes(lines, "FAILED") == {"test_that_takes_too_much", "test_that_runs_out"}
    assert outcomes(lines, "XFAIL") == {"test_expected_to_run_out"}


def test_a_test_that_fails_says_where_the_memory_went(lines: list[str]):
    text = "\n".join(lines)
    assert "on NVIDIA A100-SXM4-40GB (predicted), and is limited to 700 MiB." in text
    [start] = [n for n, line in enumerate(lines) if "test_that_takes_too_much ___" in line]
    shown = "\n".join(lines[start : start + 12])
    assert "128 MiB: optimizer state of Linear (itself), test_gpu.py:" in shown
    assert "at the peak on NVIDIA A100-SXM4-40GB (predicted):" in shown
    assert "20.0 GiB: temporaries, test_gpu.py:" in text, "of a test that ran out as well"


def test_a_mark_that_cannot_be_meant_is_an_error_with_a_sentence(lines: list[str]):
    assert outcomes(lines, "ERROR") == {"test_bad_limit", "test_bad_card", "test_no_limit"}
    text = "\n".join(lines)
    assert "'20 parsecs' is no amount of memory." in text
    assert "There is no card called 'a100-41gb' in the catalogue." in text
    assert "limit_gpu_memory() missing 1 required positional argument: 'limit': write @pyt" in text


def test_the_plugin_is_found_by_pytest_and_imports_neither_torch_nor_a_verb(tmp_path: Path):
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {NAME: NAME}
    (tmp_path / "test_host.py").write_text(
        "import sys\ndef test_light():\n"
        "    assert not {'torch', 'brimful.verbs', 'msgspec'} & sys.modules.keys()\n"
    )
    assert ran(tmp_path)[-1].startswith("1 passed")
