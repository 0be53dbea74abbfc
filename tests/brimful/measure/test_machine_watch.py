"""This machine at one moment: cards by a stand-in for NVML, memory of real processes."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from brimful.measure import host
from brimful.measure.machine_watch import MachineWatch
from brimful.measure.process_tree import ProcessTree
from tests.brimful.measure.nvml import GIB, NVMLError, driver


@pytest.fixture
def watch(monkeypatch):
    def make(nvml, tree=None):
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        looks = MachineWatch()
        if tree is not None:
            looks.follow(tree)
        return looks

    return make


def test_of_eight_cards_each_has_its_own_numbers_and_reasons(watch):
    cards, _ = watch(driver(8)).read()
    assert [card.index for card in cards] == list(range(8))
    card = cards[1]
    assert (card.total_bytes, card.used_bytes) == (80 * GIB, 14 * GIB)
    assert (card.busy_share, card.power_w, card.power_limit_w) == (0.12, 160.0, 700.0)
    assert (card.temperature_c, card.clock_mhz, card.highest_clock_mhz) == (35, 1880, 1980)
    assert card.throttled_by == ("its power limit", "its temperature (software)")
    assert cards[0].throttled_by == cards[7].throttled_by == (), "the first one is idle"


def test_memory_is_told_by_process_the_largest_first_and_which_are_watched(watch):
    here = os.getpid()
    held = {0: {here: 3 * GIB, 2**22 + 5: 5 * GIB, 7: None}}
    cards, host_status = watch(driver(1, held), ProcessTree(here, "")).read()
    assert [(p.pid, p.bytes, p.watched) for p in cards[0].processes] == [
        (2**22 + 5, 5 * GIB, False),
        (here, 3 * GIB, True),
    ]
    assert cards[0].processes[0].name == "?", "a process of another container"
    assert host_status.processes >= 1 and host_status.processes_bytes > 1 << 20


def test_the_memory_of_one_process_is_what_ps_says_and_of_several_shared_pages_count_once(watch):
    code = "import os, time; x = b'a' * (64 << 20); {}; print(flush=True); time.sleep(30)"
    held = {}
    for fork in ("0", "os.fork()"):
        words = [sys.executable, "-c", code.format(fork)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
            assert process.stdout is not None
            for _ in range(1 + (fork != "0")):
                process.stdout.readline()
            _, status = watch(driver(0), ProcessTree(process.pid, "")).read()
            held[status.processes] = status.processes_bytes
            rss_bytes = psutil.Process(process.pid).memory_info().rss
            os.killpg(process.pid, signal.SIGKILL)
        if status.processes == 1:
            assert status.processes_bytes == pytest.approx(rss_bytes, rel=0.01)
    assert held[2] < held[1] + (32 << 20)


def test_what_a_card_does_not_say_is_not_known_and_old_drivers_are_asked_by_their_own_name(watch):
    def refuses(*_):
        raise NVMLError("Not Supported")

    names = ("UtilizationRates", "PowerUsage", "Temperature", "ComputeRunningProcesses")
    names += ("CurrentClocksEventReasons",)
    silent = {f"nvmlDeviceGet{name}": refuses for name in names}
    (card,), _ = watch(
        driver(1, nvmlDeviceGetCurrentClocksThrottleReasons=lambda card: 0x80, **silent)
    ).read()
    assert (card.busy_share, card.power_w, card.temperature_c, card.processes) == (
        *(None, None, None),
        (),
    )
    assert card.throttled_by == ("an external power brake",) and card.clock_mhz == 1980


def test_without_a_card_or_with_one_that_is_lost_there_is_the_host(watch):
    def lost(card):
        raise NVMLError("GPU is lost")

    for nvml in (None, driver(2, nvmlDeviceGetName=lost)):
        cards, here = watch(nvml).read()
        assert cards == ()
        assert here.total_bytes == host.total_bytes() and here.cores == host.cores()
        assert (here.processes, here.processes_bytes) == (None, None)
        assert 0 <= here.busy_cores <= here.cores
