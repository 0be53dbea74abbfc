import contextlib
import json
import os
import sys
import sysconfig
import types
from pathlib import Path

import pytest
import torch

import brimful_inside
from brimful_inside import Refused
from brimful_inside.imaginary.state.errors import Unsupported
from brimful_inside.probe.hooks import exceptions
from brimful_inside.probe.hooks.exceptions import (
    Failures,
    is_users,
    kind_of,
    needs_real_card,
    raised_by,
    where_in_users_code,
)
from brimful_inside.probe.passes import Ended
from brimful_inside.probe.sandbox.overlay import Overlay
from brimful_inside.probe.script_text import user_code
from tests.brimful_inside.imaginary.conftest import card, entered

OURS = os.path.dirname(str(brimful_inside.__file__))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
            "out_of_device_memory",
        ),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
            "out_of_host_memory",
        ),
        (MemoryError(), "out_of_host_memory"),
        (Unsupported("torch.foo", "it is not there"), "unsupported"),
        (ValueError("CUDA out of memory, the script printed"), "crashed"),
        (KeyError("x"), "crashed"),
    ],
)
def test_an_exception_has_a_kind(error, kind):
    assert kind_of(error) == kind


def test_the_users_frame_is_the_innermost_that_is_neither_a_packages_nor_pythons_nor_ours():
    assert is_users("/home/me/train.py") and is_users("<stdin>")
    assert not user_code.is_users("<string>"), "it has no line to change"
    assert (
        not is_users(torch.__file__)
        and not is_users(json.__file__)
        and not is_users(os.path.join(sysconfig.get_path("scripts"), "yolo"))
        and not is_users(sys.modules[Failures.__module__].__file__)
    )
    assert not is_users("<frozen importlib._bootstrap>")

    def fails():
        json.loads("{")

    try:
        fails()
    except ValueError as error:
        assert where_in_users_code(error.__traceback__).endswith("in fails")


@pytest.mark.parametrize(
    ("code", "expected"), [("make()", "in make"), ("raise ValueError", "<string>:1 in <module>")]
)
def test_what_was_made_of_a_text_is_the_users_only_where_the_program_itself_is_one(code, expected):
    def make():
        namespace = types.ModuleType("of_a_package").__dict__ | {
            "__file__": "/env/site-packages/a.py",
            "json": json,
        }
        exec("def __init__():\n    json.loads('{')", namespace)
        namespace["__init__"]()

    try:
        exec(code, {"make": make})
    except ValueError as error:
        assert where_in_users_code(error.__traceback__).endswith(expected)


def failures_at(*moments):
    """What is reported, and what reports it. `moments`: (phase, step, whether the measured steps
    are complete).
    """
    reported, now = [], iter(moments)
    return reported, Failures(reported.append, lambda: next(now))


def test_memory_that_ran_out_is_reported_as_caught_once_the_script_continues():
    reported, failures = failures_at(("train", 3, False))
    failures.out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert reported == []
    failures.script_continues()
    failures.script_continues()
    (failure,) = reported
    assert (failure.kind, failure.caught) == ("out_of_device_memory", True)
    assert (failure.phase, failure.step) == ("train", 3)


def test_memory_that_ran_out_and_left_the_script_is_reported_once_with_its_phase():
    reported, failures = failures_at(("train", 3, False), ("eval", 4, True), ("eval", 4, True))
    error = torch.OutOfMemoryError("CUDA out of memory")
    failures.out_of_memory(None, "CUDA out of memory")
    for one in (error, error, ValueError("another"), KeyboardInterrupt(), SystemExit(3)):
        failures.left_the_script(one)
    failures.script_continues()
    assert [(each.type, each.phase, each.caught, each.after_measured) for each in reported] == [
        ("torch.OutOfMemoryError", "train", False, True),
        ("ValueError", "eval", False, True),
    ]


CUDA_STEPS = """
import torch
from torch import nn
model = nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(special):
    for _ in range(6):
        loss = special(model(torch.randn(4, 64, device="cuda"))).float().mean()
        optimizer.zero_grad(); loss.backward(); optimizer.step()
"""


def test_a_call_that_reads_what_is_not_there_is_unsupported_and_its_line_is_named(run_trial):
    line = "torch.utils.dlpack.to_dlpack(y.detach())"
    text = (
        CUDA_STEPS
        + f"import torch.utils.dlpack\ndef special(y):\n    return {line}\nstep(special)\n"
    )
    (failure,) = run_trial(text, device="imaginary").failures
    assert failure["kind"] == "unsupported" and failure["where"].endswith("in special")
    assert f"`return {line}`: it needs what the card's tensors hold" in failure["message"]


def test_on_the_cpu_such_words_are_the_scripts_own(run_trial):
    (failure,) = run_trial("import torch\ntorch.empty((), device='meta').item()\n").failures
    assert failure["kind"] == "crashed" and "meta" in failure["message"].lower()


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_missing_driver_is_a_missing_card():
    error = AssertionError("libcuda.so cannot found!\nPlease make sure GPU is set up")
    assert needs_real_card(raised(error), lambda path: True) == (
        "`raise error`: it calls NVIDIA's driver, past PyTorch (AssertionError: libcuda.so "
        "cannot found!)"
    )


@pytest.mark.parametrize(
    "error",
    [KeyError("meta"), *map(RuntimeError, ["", "No module named 'x'", "metadata", "metal"])],
)
def test_errors_of_another_kind_are_the_scripts_own(error):
    assert needs_real_card(raised(error), lambda path: True) is None


@pytest.mark.parametrize("file", ["torch/utils/cpp_extension.py", "ops/op_builder/builder.py"])
def test_building_a_cuda_extension_is_named_by_the_line_that_builds_it(tmp_path, file):
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text("def load():\n    raise OSError('CUDA_HOME environment variable is not set')\n")
    space: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    with pytest.raises(OSError) as caught:
        space["load"]()
    words = needs_real_card(caught.value, lambda file: file == __file__)
    assert (
        words.startswith('`space["load"]()`: it builds a CUDA extension') and "CUDA_HOME" in words
    )


WORKERS = """Caught FileNotFoundError in DataLoader worker process 3.
Original Traceback (most recent call last):
  File "/env/lib/python3/site-packages/torch/utils/data/_utils/worker.py", line 349, in _worker_loop
    data = fetcher.fetch(index)
  File "/home/me/data.py", line 12, in __getitem__
    return open(self.paths[index]).read()
FileNotFoundError: [Errno 2] No such file or directory: '/data/7.jpg'
"""


def test_an_error_of_a_loaders_worker_is_reported_in_the_workers_own_words():
    reported, failures = failures_at(("train", 0, False))
    failures.left_the_script(FileNotFoundError(WORKERS))
    (failure,) = reported
    assert (failure.raised_by, failure.type, failure.message, failure.where) == (
        "worker",
        "FileNotFoundError",
        "[Errno 2] No such file or directory: '/data/7.jpg'",
        "/home/me/data.py:12 in __getitem__",
    )


def test_frames_of_ours_are_left_out_of_a_traceback_unless_the_error_is_ours():
    ours = os.path.join(OURS, "probe", "sandbox", "python_files.py")
    frame = (
        f'  File "{ours}", line 48, in __call__\n    return self._call(*args)\n           ^^^^\n'
    )
    of_worker = WORKERS.replace("FileNotFoundError: [", f"{frame}FileNotFoundError: [")
    reported, failures = failures_at(*[("train", 0, False)] * 3)
    missing = raised_in(ours, FileNotFoundError(2, "No such file", "/nowhere"))
    for error in (missing, FileNotFoundError(of_worker), raised_in(ours, KeyError("x"))):
        failures.left_the_script(error)
    of_script, worker, defect = (failure.traceback for failure in reported)
    assert ours not in of_script and "in raised_in" in of_script and "/nowhere" in of_script
    assert worker == f"FileNotFoundError: {WORKERS}\n"
    assert ours in defect, "our own errors keep our frames"


def raised_in(file, error):
    """`error`, raised by code of `file`, which this test called."""
    try:
        exec(compile("raise error", file, "exec"), {"error": error})
    except Exception as raised:
        return raised


@pytest.mark.parametrize(
    ("file", "error", "who"),
    [
        ("/home/me/train.py", ValueError("x"), "script"),
        (os.path.join(OURS, "probe", "process", "exit.py"), Refused("x"), "refused"),
        ("/home/me/train.py", FileNotFoundError(2, "No such file", "/nowhere"), "script"),
        (
            os.path.join(OURS, "imaginary", "dispatch", "dispatch_mode.py"),
            AttributeError("x"),
            "brimful",
        ),
        (os.path.join(OURS, "probe", "sandbox", "overlay.py"), KeyError("x"), "brimful"),
        (
            os.path.join(OURS, "imaginary", "dispatch", "dispatch_mode.py"),
            RuntimeError("shapes differ"),
            "card",
        ),
    ],
)
def test_the_frames_of_an_error_show_whose_it_is(file, error, who):
    assert raised_by(raised_in(file, error)) == who


def test_an_error_of_pytorchs_kernels_for_shapes_is_not_the_scripts():
    tensors = torch.zeros(4, 8), torch.zeros(2, 8, 8), torch.zeros(2)
    refused: dict[bool, Exception] = {}
    for on_card in (False, True):
        with contextlib.ExitStack() as stack:
            if on_card:
                stack.enter_context(entered(card(), None, None))
            left, right, offsets = (tensor.to("cuda" if on_card else "meta") for tensor in tensors)
            with pytest.raises(RuntimeError) as caught:
                torch._grouped_mm(left.bfloat16(), right.bfloat16(), offsets)
            refused[on_card] = caught.value
    assert raised_by(refused[True]) == "shapes"
    assert raised_by(refused[False]) == "script", "which was not on an imaginary card"


def test_a_loader_that_brimful_ended_is_known_inside_of_a_generator_too():
    def batches():
        raise Ended
        yield

    with pytest.raises(RuntimeError) as of_generator:
        next(batches())
    assert raised_by(Ended()) == raised_by(of_generator.value) == "ended"
    assert raised_by(StopIteration()) == "script"


@pytest.fixture
def overlay(tmp_path, monkeypatch):
    layer = Overlay(str(tmp_path / "trial"))
    context = types.SimpleNamespace(overlay=layer)
    monkeypatch.setattr(exceptions, "current_context", lambda: context)
    return layer


def test_a_file_that_is_there_or_that_the_trial_wrote_and_was_not_found_is_the_sandboxs_error(
    tmp_path, overlay
):
    there, written, missing = (tmp_path / name for name in ("there", "cache.arrow", "missing"))
    there.touch()
    Path(overlay.to_write(str(written), keeps_content=False)).touch()
    for path, who in (
        (there, "sandbox"),
        (written, "sandbox"),
        (missing, "script"),
        (overlay.root + "/work/out", "sandbox"),
    ):
        assert raised_by(FileNotFoundError(2, "No such file", str(path))) == who
        of_library = f"[Errno 2] Failed to open local file '{path}'. Detail: [errno 2]"
        assert raised_by(FileNotFoundError(of_library)) == who
    assert raised_by(PermissionError(13, "Permission denied", str(there))) == "script"


def test_a_folder_that_the_user_does_not_have_is_missing_by_its_own_path(tmp_path, overlay):
    (tmp_path / "removed").mkdir()
    overlay.hide(str(tmp_path / "removed"))
    for folder, who in (("missing", "script"), ("removed", "sandbox")):
        path = str(tmp_path / folder / "config.json")
        with pytest.raises(FileNotFoundError) as caught:
            Path(overlay.to_write(path, keeps_content=False)).touch()
        assert raised_by(caught.value) == who
        assert (caught.value.filename == path) is (who == "script")
