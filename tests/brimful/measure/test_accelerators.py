"""Which real cards a script sees, on machines that are made up: NVML, and the torch of the script's
own Python.
"""

import sys
import types

import pytest

from brimful.measure import accelerators
from brimful.measure.accelerators import Accelerator, ask_python, found_by, visible
from tests.brimful.measure.nvml import NVMLError

GIB = 1 << 30
NVML, TORCH = "570.1", None  # the driver that each names
BY_TORCH = (Accelerator(0, "cuda", "as torch reports it", 24 * GIB, 20 * GIB),)


def driver(*names: str, sliced: str = "", old: bool = False) -> types.ModuleType:
    """A driver with these cards, the first one of 10 GiB, the second of 20, and so on; those named
    `sliced` are cut up.
    """

    def mig(handle):
        if names[handle] != sliced:
            raise NVMLError("Not Supported")
        return 1, 1

    def memory(handle, version=None):
        if version and old:
            raise NVMLError("Function Not Found")
        total, free = 10 * GIB * (handle + 1), 7 * GIB * (handle + 1)
        return types.SimpleNamespace(
            total=total, free=free, used=2 * GIB if version else total - free
        )

    module = types.ModuleType("pynvml")
    vars(module).update(
        NVMLError=NVMLError,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlMemory_v2=2,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(names),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetName=lambda handle: names[handle],
        nvmlSystemGetDriverVersion=lambda: NVML,
        nvmlDeviceGetUUID=lambda handle: f"GPU-{handle}abc",
        nvmlDeviceGetMigMode=mig,
    )
    return module


@pytest.fixture
def machine(monkeypatch):
    """machine(driver, CUDA_VISIBLE_DEVICES=..., ...)."""

    def make(pynvml, by_torch=BY_TORCH, **environment):
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setitem(sys.modules, "pynvml", pynvml)
        monkeypatch.setattr(accelerators, "ask_python", lambda python: by_torch)

    return make


@pytest.mark.parametrize(
    ("chosen", "totals"),
    [("1", [20]), ("1,0", [20, 10]), ("GPU-1", [20]), ("0,7,1", [10]), ("", []), ("MIG-5", [])],
)
def test_cards_are_numbered_as_cuda_visible_devices_says(machine, chosen, totals):
    machine(driver("A", "A"), CUDA_VISIBLE_DEVICES=chosen)
    assert [(card.index, card.total_bytes // GIB) for card in visible()] == list(enumerate(totals))


@pytest.mark.parametrize(("old", "others"), [(False, 2), (True, 3)])
def test_what_others_hold_is_known_without_the_drivers_own_reserve_where_the_driver_reports_it(
    machine, old, others
):
    machine(driver("A", old=old))
    assert [card.others_bytes // GIB for card in visible()] == [others]


@pytest.mark.parametrize(
    ("nvml", "by_torch", "environment", "by"),
    [
        pytest.param(driver("A", "A"), BY_TORCH, {}, NVML, id="equal cards"),
        pytest.param(driver("A", "B"), BY_TORCH, {}, TORCH, id="unequal cards: which is first?"),
        pytest.param(
            driver("A", "B"), BY_TORCH, {"CUDA_VISIBLE_DEVICES": "1"}, TORCH, id="and one chosen"
        ),
        pytest.param(
            driver("A", "B"),
            BY_TORCH,
            {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            NVML,
            id="unequal cards in NVML's order",
        ),
        pytest.param(driver("A", "B"), (), {}, NVML, id="a Python without torch"),
        pytest.param(driver("A", sliced="A"), BY_TORCH, {}, TORCH, id="a card that is cut up"),
        pytest.param(None, BY_TORCH, {}, TORCH, id="no driver: an import of it fails"),
    ],
)
def test_torch_is_asked_where_nvml_does_not_number_the_cards_as_cuda_does(
    machine, nvml, by_torch, environment, by
):
    machine(nvml, by_torch, **environment)
    assert {card.driver for card in found_by("python")} == {by}
    assert (visible() == ()) == (nvml is None)


@pytest.mark.parametrize(
    ("functions", "memory"),
    [
        ({"mem_get_info": lambda index: (3, 8)}, [8, 3]),
        ({"recommended_max_memory": lambda: 8, "driver_allocated_memory": lambda: 2}, [8, 6]),
        ({"get_device_properties": lambda index: types.SimpleNamespace(total_memory=8)}, [8, 8]),
    ],
)
def test_each_kind_of_accelerator_reports_its_memory_in_its_own_way(
    monkeypatch, capsys, functions, memory
):
    torch = types.ModuleType("torch")
    kind = types.SimpleNamespace(type="xpu")
    torch.accelerator = types.SimpleNamespace(  # type: ignore[attr-defined]
        is_available=lambda: True, current_accelerator=lambda: kind, device_count=lambda: 1
    )
    torch.get_device_module = lambda kind: types.SimpleNamespace(**functions)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(
        accelerators.subprocess, "run", lambda command, **_: _run_here(command[2], capsys)
    )
    (card,) = ask_python("python")
    assert (card.kind, card.index, [card.total_bytes, card.free_bytes]) == ("xpu", 0, memory)
    assert card.others_bytes == 0, "so little is the question's own"


def _run_here(question, capsys):
    exec(question, {})
    return types.SimpleNamespace(stdout=capsys.readouterr().out)
