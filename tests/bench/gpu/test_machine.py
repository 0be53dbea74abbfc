import subprocess

import pytest

from bench.gpu import machine
from brimful.measure.accelerators import Accelerator


def seen(monkeypatch: pytest.MonkeyPatch, *used_mib: int) -> None:
    """NVML shows these, one a question, the last one from then on."""
    left = list(used_mib)

    def visible():
        used = left.pop(0) if len(left) > 1 else left[0]
        return (
            Accelerator(
                0, "cuda", "a card", 1 << 40, 0, driver="580.1", others_bytes=used * machine.MIB
            ),
        )

    monkeypatch.setattr(machine.accelerators, "visible", visible)


def test_what_is_in_use_is_read_until_it_falls_no_more(monkeypatch):
    seen(monkeypatch, 900, 400, 30, 30)
    assert machine.used_bytes_settled() == 30 * machine.MIB


def test_the_watch_keeps_the_highest_value(monkeypatch):
    seen(monkeypatch, 10, 700, 20)
    with machine.Watch() as watch:
        while watch.peak_bytes is None or watch.peak_bytes < 700 * machine.MIB:
            pass
    assert watch.peak_bytes == 700 * machine.MIB


def test_without_nvml_nvidia_smi_is_asked_and_without_both_nothing_is_known(monkeypatch):
    monkeypatch.setattr(machine.accelerators, "visible", tuple)
    answers = iter([(0, "580.65.06, 512\n"), *[(9, "")] * 9])
    monkeypatch.setattr(
        machine.subprocess,
        "run",
        lambda *args, **kwargs: subprocess.CompletedProcess([], *next(answers)),
    )
    assert machine.driver_and_used() == ("580.65.06", 512 * machine.MIB)
    assert machine.driver_and_used() == (None, None) and machine.used_bytes_settled() is None
    with machine.Watch() as watch:
        pass
    assert watch.peak_bytes is None


def test_what_torch_reports_of_the_card_is_read_from_among_other_lines():
    print_it = 'print("noise"); print(\'BRIMFUL{"card": {"name": "a card"}, "versions": {}}\')'
    assert machine.describe(question=print_it)["card"] == {"name": "a card"}
    with pytest.raises(LookupError, match="no CUDA card"):
        machine.describe(question="raise SystemExit('torch sees no CUDA card')")
