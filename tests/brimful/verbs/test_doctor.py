"""`doctor --calibrate`, with a child that answers as on a card."""

import io
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.errors import CommandFailed, NoSuchDevice
from brimful.measure.accelerators import Accelerator
from brimful.show.console import make_console, show_sections
from brimful.show.machine_sections import doctor_sections
from brimful.trials import devices
from brimful.verbs import doctor as verb
from tests.brimful.show import product

MIB, GIB = 1 << 20, 1 << 30
ANSWER = {
    "card": {
        "name": "NVIDIA H200",
        "total_bytes": 140 * GIB,
        "capability": [9, 0],
        "multiprocessors": 132,
    },
    "versions": {"torch": "2.13.0", "cuda": "13.0", "cudnn": 91300},
    "outside_bytes": {
        "bare": 900 * MIB,
        "tensor": 910 * MIB,
        "cublas": 950 * MIB,
        "training": 1000 * MIB,
        "cudnn": 1300 * MIB,
    },
    "rates": {"kernel_s": 2e-6, "bf16_flops": 7e14, "fp16_flops": None},
}


def child(folder: Path, answer: dict, code: int = 0) -> Path:
    path = folder / "child.py"
    path.write_text(
        f"import sys\nprint('noise')\nprint('BRIMFUL' + {json.dumps(answer)!r})\nsys.exit({code})"
    )
    return path


@pytest.mark.parametrize(("limit", "warns"), [(None, False), (8, True), (16, True), (17, False)])
def test_a_cgroup_that_allows_more_than_the_machine_has_is_no_limit(limit, warns):
    limit_bytes = limit and limit * GIB
    machine = replace(product.MACHINE, host_total_bytes=16 * GIB, cgroup_limit_bytes=limit_bytes)
    assert warns == any(one.code == "memory-limit" for one in verb._about_memory(machine))


def test_what_the_child_measured_is_kept_without_what_others_hold(tmp_path, monkeypatch):
    card = Accelerator(
        0, "cuda", "NVIDIA H200", 141 * GIB, 100 * GIB, driver="580.1", others_bytes=400 * MIB
    )
    monkeypatch.setattr(verb.accelerators, "visible", lambda: (card,))
    measured, path = verb.calibrate(sys.executable, tmp_path, child(tmp_path, ANSWER))
    assert path.is_file()
    assert measured.context_bytes == 600 * MIB and measured.cudnn_bytes == 300 * MIB
    assert measured.stages_bytes["bare"] == 500 * MIB and measured.others_bytes == 400 * MIB
    assert measured.rates == {"kernel_s": 2e-6, "bf16_flops": 7e14}
    assert measured.versions["driver"] == "580.1"
    assert (
        devices.cards(devices.CardRequest("h200"), tmp_path)[0].gpu.context_bytes.value == 600 * MIB
    )


def test_without_nvml_the_card_counts_as_free(tmp_path, monkeypatch):
    monkeypatch.setattr(verb.accelerators, "visible", tuple)
    measured, _ = verb.calibrate(sys.executable, tmp_path, child(tmp_path, ANSWER))
    assert measured.context_bytes == 1000 * MIB and measured.others_bytes is None


def test_without_a_card_it_is_no_such_device(tmp_path):
    with pytest.raises(NoSuchDevice, match="torch 2 sees no CUDA card") as error:
        verb.calibrate(
            sys.executable, tmp_path, child(tmp_path, {"none": "torch 2 sees no CUDA card"}, 4)
        )
    assert error.value.exit_code == 4 and not list(tmp_path.rglob("*.json"))


def test_a_child_that_fails_shows_its_traceback(tmp_path):
    path = tmp_path / "child.py"
    path.write_text("raise RuntimeError('CUDA error: out of memory')")
    with pytest.raises(CommandFailed) as error:
        verb.calibrate(sys.executable, tmp_path, path)
    assert "CUDA error: out of memory" in error.value.traceback


@pytest.mark.parametrize(
    ("load", "governor", "driver", "said"),
    [
        (9.0, "performance", "acpi-cpufreq", {"busy-machine"}),
        (0.5, "powersave", "acpi-cpufreq", {"slow-clock"}),
        (0.5, "powersave", "intel_pstate", set()),
    ],
)
def test_load_and_a_slow_clock_are_named_where_they_spoil_measurements(
    tmp_path, monkeypatch, load, governor, driver, said
):
    folder = tmp_path / "cpu0" / "cpufreq"
    folder.mkdir(parents=True)
    (folder / "scaling_governor").write_text(governor + "\n")
    (folder / "scaling_driver").write_text(driver + "\n")
    monkeypatch.setattr(verb, "_CPUS", tmp_path)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    machine = verb.host.machine()
    assert {row.code for row in verb._about_the_processor(machine)} == said


def found(monkeypatch, python: str | None, cards=(), seen=(), load: float = 0.1):
    """The codes of what `doctor` finds where the Python on the PATH has this release of torch."""
    monkeypatch.setattr(verb.accelerators, "visible", lambda: tuple(cards))
    monkeypatch.setattr(verb.accelerators, "ask_python", lambda interpreter: tuple(seen))
    own = {sys.executable: "2.13.0"}
    monkeypatch.setattr(verb.accelerators, "torch_version", lambda path: own.get(path, python))
    monkeypatch.setattr(
        verb.shutil, "which", lambda name: name if "/" in name else "/usr/bin/python"
    )
    monkeypatch.setattr(verb, "_about_memory", lambda machine: ())
    monkeypatch.setattr(verb, "_about_the_disk", lambda: ())
    monkeypatch.setattr(verb, "_CPUS", Path("/nowhere"))
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return [finding.code for finding in verb.doctor()[1]]


def test_what_matters_most_comes_first(monkeypatch):
    card = Accelerator(0, "cuda", "NVIDIA H200", 141 * GIB, 140 * GIB)
    assert found(monkeypatch, "2.13.0") == ["no-accelerator"]
    assert found(monkeypatch, "2.13.0", load=9.0) == ["busy-machine", "no-accelerator"]
    assert found(monkeypatch, "2.13.0", [card], [card]) == []
    assert found(monkeypatch, "2.13.0", [card], load=9.0)[0] == "torch-sees-no-card"
    screen = io.StringIO()
    show_sections(make_console(screen, width=200), doctor_sections(*verb.doctor()))
    assert screen.getvalue().startswith("the driver shows NVIDIA H200, and torch in ")


def test_a_python_without_torch_matters_where_brimful_has_none_to_take_in_its_place(monkeypatch):
    assert found(monkeypatch, None) == ["no-accelerator", "other-interpreter"]
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    card = Accelerator(0, "cuda", "NVIDIA H200", 141 * GIB, 140 * GIB)
    assert found(monkeypatch, None, [card]) == ["no-torch"], "of the card it says nothing"
