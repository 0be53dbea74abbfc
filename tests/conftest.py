"""What all tests share."""

import compileall
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from brimful import masking

# A run in the background of a shell without job control is started with Ctrl-C ignored, and so
# would be every process that the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and so it is under nohup

# A trial writes no bytecode (it leaves no trace) and reads what is there: without this, each of
# some hundred children compiles brimful_inside anew, 0.2 s of its 2 (measured). Once, before the
# workers of pytest-xdist start.
_SOURCE = Path(__file__).parent.parent / "src"
#: For PYTHONPATH of processes: their optimizers import no torch._dynamo, which takes 1.4 s.
WITHOUT_DYNAMO = str(Path(__file__).parent / "without_dynamo")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(_SOURCE, quiet=2)
        os.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (WITHOUT_DYNAMO, os.environ.get("PYTHONPATH")))
        )


# Nothing here depends on how busy the machine is, and each run draws other examples: a third of
# Hypothesis's hundred each time, BRIMFUL_EXAMPLES for more. With CI set it draws the same ones each
# time: what passed passes again. Set before any test module makes settings of its own from these.
hypothesis.settings.register_profile(
    "brimful",
    deadline=None,
    derandomize="CI" in os.environ,
    max_examples=int(os.environ.get("BRIMFUL_EXAMPLES", "33")),
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("brimful")

# The heavy tests of these (two are benches of the engine and a recipe) start several processes that
# each train for a while: `make test-slow` runs them.
_ROOMS = (
    "brimful_train",
    "recipes",
    "brimful/end_to_end/test_run.py",
    "bench/test_kills.py",
    "bench/test_captcha.py",
)
_SLOW_ROOMS = [Path(__file__).parent / name for name in _ROOMS]
# All tests of these: none takes long, and together they are some minute of processor time.
_WHOLE = (
    "recipes",
    "brimful_train/checkpoints",
    "brimful_train/test_dry_run.py",
    "brimful_train/data/test_batch_errors.py",
    "brimful_train/data/test_workers.py",
)
_WHOLLY_SLOW = [Path(__file__).parent / name for name in _WHOLE]


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        heavy = item.get_closest_marker("heavy") and any(
            item.path.is_relative_to(room) for room in _SLOW_ROOMS
        )
        if heavy or any(item.path.is_relative_to(room) for room in _WHOLLY_SLOW):
            item.add_marker("slow")


@pytest.fixture(autouse=True)
def _no_secrets_of_another_test() -> Iterator[None]:
    """What a command here teaches the masker is no secret of the next test."""
    with masking.learned_meanwhile():
        yield


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine with four idle cores, and PyTorch's own choice of threads on it."""
    import torch

    from brimful.measure import host

    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(host, "allowed_cores", lambda: [0, 1, 2, 3])
    monkeypatch.setattr(host, "cores", lambda: 4)
    monkeypatch.setattr(host, "physical_cores", lambda: 4)
    monkeypatch.setattr(host, "busy_cores", lambda: 0)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)
