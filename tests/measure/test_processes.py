"""The processes of a trial are found wherever they went, and ended for sure."""

import os
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from brimful.measure.processes import Family
from brimful_inside.wire import ORDERS_VARIABLE


def start(code: str, orders: str) -> subprocess.Popen:
    environment = {**os.environ, ORDERS_VARIABLE: orders}
    return subprocess.Popen([sys.executable, "-S", "-c", textwrap.dedent(code)], env=environment, stdout=subprocess.PIPE)


def living(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def orders(tmp_path):
    return str(tmp_path / "orders.json")


def test_a_grandchild_in_a_session_of_its_own_that_ignores_sigterm_is_ended(orders):
    process = start(
        """
        import subprocess, sys
        child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
        grandchild = subprocess.Popen([sys.executable, "-S", "-c", child], start_new_session=True, stdout=subprocess.PIPE)
        grandchild.stdout.readline()
        print(grandchild.pid, flush=True)
        import time; time.sleep(60)
        """,
        orders,
    )
    grandchild = int(process.stdout.readline())
    Family(process.pid, orders).end(grace_s=0.2)
    process.wait(timeout=10)
    assert not living(grandchild)


def test_an_orphan_whose_parent_is_gone_is_still_found(orders):
    process = start(
        """
        import subprocess, sys
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
        print(child.pid, flush=True)
        """,
        orders,
    )
    orphan = int(process.stdout.readline())
    process.wait(timeout=10)
    assert living(orphan)
    Family(process.pid, orders).end(grace_s=1.0)
    assert not living(orphan)


def test_processes_of_another_trial_are_left_alone(orders, tmp_path):
    ours = start("import time; time.sleep(60)", orders)
    other = start("import time; time.sleep(60)", str(tmp_path / "other.json"))
    try:
        time.sleep(0.1)
        Family(ours.pid, orders).end(grace_s=1.0)
        ours.wait(timeout=10)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_memory_of_the_family_counts_its_children(orders):
    process = start(
        """
        import subprocess, sys, time
        code = "x = b'1' * (64 << 20); print(1, flush=True); import time; time.sleep(60)"
        child = subprocess.Popen([sys.executable, "-S", "-c", code], stdout=subprocess.PIPE)
        child.stdout.readline()
        print("up", flush=True)
        time.sleep(60)
        """,
        orders,
    )
    family = Family(process.pid, orders)
    try:
        process.stdout.readline()
        assert family.host_bytes() > 64 << 20
    finally:
        family.end(grace_s=0.5)
        process.wait(timeout=10)
    assert family.host_bytes() == 0
