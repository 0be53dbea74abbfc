"""The processes of a trial are found wherever they went, and ended for sure."""

import os
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from brimful.measure.process_tree import MemorySampler, ProcessTree
from brimful_inside.wire import TRIAL_CONFIG_VARIABLE


def start(code: str, config: str) -> subprocess.Popen:
    environment = {**os.environ, TRIAL_CONFIG_VARIABLE: config}
    return subprocess.Popen([sys.executable, "-S", "-c", textwrap.dedent(code)], env=environment, stdout=subprocess.PIPE)


def living(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def config(tmp_path):
    return str(tmp_path / "trial_config.json")


def test_a_grandchild_in_a_session_of_its_own_that_ignores_sigterm_is_ended(config):
    process = start(
        """
        import subprocess, sys
        child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
        grandchild = subprocess.Popen([sys.executable, "-S", "-c", child], start_new_session=True, stdout=subprocess.PIPE)
        grandchild.stdout.readline()
        print(grandchild.pid, flush=True)
        import time; time.sleep(60)
        """,
        config,
    )
    grandchild = int(process.stdout.readline())
    ProcessTree(process.pid, config).end(grace_s=0.2)
    process.wait(timeout=10)
    assert not living(grandchild)


def test_an_orphan_whose_parent_is_gone_is_still_found(config):
    process = start(
        """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
        print(child.pid, flush=True)
        """,
        config,
    )
    orphan = int(process.stdout.readline())
    process.wait(timeout=10)
    assert living(orphan)
    ProcessTree(process.pid, config).end(grace_s=1.0)
    assert not living(orphan)


def test_processes_of_another_trial_are_left_alone(config, tmp_path):
    ours = start("import time; time.sleep(60)", config)
    other = start("import time; time.sleep(60)", str(tmp_path / "other.json"))
    try:
        time.sleep(0.1)
        ProcessTree(ours.pid, config).end(grace_s=1.0)
        ours.wait(timeout=10)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_memory_of_the_family_counts_its_children(config):
    process = start(
        """
        import subprocess, sys, time
        code = "x = b'1' * (64 << 20); print(1, flush=True); import time; time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
        child.stdout.readline()
        print("up", flush=True)
        time.sleep(60)
        """,
        config,
    )
    family = ProcessTree(process.pid, config)
    try:
        process.stdout.readline()
        assert family.host_bytes() > 64 << 20
    finally:
        family.end(grace_s=0.5)
        process.wait(timeout=10)
    assert family.host_bytes() == 0


class FakeFamily:
    """Weighs what it is told to; counts how often."""

    def __init__(self):
        self.proportional = self.resident = self.weighed = 0

    def host_bytes(self):
        self.weighed += 1
        return self.proportional

    def resident_bytes(self):
        return self.resident


def test_a_family_is_weighed_now_and_then_where_it_has_room():
    family = FakeFamily()
    scale = MemorySampler(family, None, every_s=1.0)
    assert [scale.look(now) for now in (0.0, 0.5, 0.9, 1.1)] == [True, False, False, True]
    assert family.weighed == 2


def test_a_family_that_grew_by_all_its_room_is_weighed_at_once():
    family = FakeFamily()
    scale = MemorySampler(family, 100, every_s=1000.0)
    family.proportional, family.resident = 40, 70  # 30 are shared
    scale.look(0.0)
    family.proportional, family.resident = 95, 125
    scale.look(0.01)
    assert family.weighed == 1, "it grew by 55 and had room for 60"
    family.proportional, family.resident = 105, 135
    scale.look(0.02)
    assert (family.weighed, scale.over, scale.peak_bytes) == (2, True, 105)


def test_pages_that_are_shared_are_no_cause_to_end_a_trial():
    family = FakeFamily()
    scale = MemorySampler(family, 100, every_s=1000.0)
    scale.look(0.0)
    family.proportional, family.resident = 60, 400  # workers came, and share what their parent has
    scale.look(0.01)
    assert not scale.over
    assert family.weighed == 2
    scale.look(0.02)
    assert family.weighed == 2, "and they are not weighed again until they grow"
