"""The processes of a trial are found wherever they went, and ended for sure."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import namedtuple

import psutil
import pytest

from brimful.measure import process_tree
from brimful.measure.process_tree import MemorySampler, OtherLoad, ProcessTree
from brimful_inside.wire import TRIAL_CONFIG_VARIABLE


def start(code: str, config: str) -> subprocess.Popen:
    environment = {**os.environ, TRIAL_CONFIG_VARIABLE: config}
    return subprocess.Popen(
        [sys.executable, "-S", "-c", textwrap.dedent(code)], env=environment, stdout=subprocess.PIPE
    )


def living(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.fixture
def config(tmp_path):
    return str(tmp_path / "trial_config.json")


IGNORES_SIGTERM = """
    import subprocess, sys
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    child += "print('up', flush=True); time.sleep(60)"
    apart = dict(start_new_session=True, stdout=subprocess.PIPE)
    grandchild = subprocess.Popen([sys.executable, "-S", "-c", child], **apart)
    grandchild.stdout.readline()
    print(grandchild.pid, flush=True)
    import time; time.sleep(60)
    """
LEAVES_AN_ORPHAN = """
    import subprocess, sys
    sleep = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
    child = subprocess.Popen(sleep, start_new_session=True)
    print(child.pid, flush=True)
    """


@pytest.mark.parametrize("code", [IGNORES_SIGTERM, LEAVES_AN_ORPHAN])
def test_a_grandchild_in_a_session_of_its_own_and_an_orphan_are_found_and_ended(config, code):
    process = start(code, config)
    grandchild = int(process.stdout.readline())
    if code == LEAVES_AN_ORPHAN:
        process.wait(timeout=10)
    assert living(grandchild)
    ProcessTree(process.pid, config).end(grace_s=0.2)
    process.wait(timeout=10)
    assert not living(grandchild)


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


def test_where_no_config_is_asked_for_a_process_with_an_empty_one_is_no_member(config):
    code = "import time; print('up', flush=True); time.sleep(60)"
    started = [start(code, ""), start(code, config)]
    try:
        for process in started:
            process.stdout.readline()
        members = [ProcessTree(0, path).members(thorough=True) for path in ("", config)]
        assert members == [[], [psutil.Process(started[1].pid)]]
    finally:
        for process in started:
            process.kill()
            process.wait()


def test_a_program_that_is_just_being_started_is_found_by_an_environment_that_comes(
    config, monkeypatch
):
    shown, ask = [], psutil.Process.environ
    pid = start("import time; time.sleep(60)", config).pid
    tree = ProcessTree(0, config)

    def environ(process):
        if process.pid != pid:
            return {}
        shown.append(ask(process) if len(shown) == 2 else {})
        return shown[-1]

    monkeypatch.setattr(psutil.Process, "environ", environ)
    monkeypatch.setattr(psutil.Process, "cmdline", lambda process: [])
    monkeypatch.setattr(psutil.Process, "exe", lambda process: "x" * (process.pid == pid))
    try:
        assert [member.pid for member in tree.members(thorough=True)] == [pid]
    finally:
        os.kill(pid, signal.SIGKILL)


def test_memory_of_the_tree_counts_its_children(config):
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
    tree = ProcessTree(process.pid, config)
    try:
        process.stdout.readline()
        assert tree.host_bytes() > 64 << 20
    finally:
        tree.end(grace_s=0.5)
        process.wait(timeout=10)
    assert tree.host_bytes() == 0


class FakeTree:
    """Holds what the test sets; counts how often it is sampled."""

    def __init__(self):
        self.proportional = self.resident = self.sampled = 0

    def host_bytes(self):
        self.sampled += 1
        return self.proportional

    def resident_bytes(self):
        return self.resident


def test_with_a_share_of_the_time_early_samples_come_sooner():
    tree = FakeTree()
    sampler = MemorySampler(tree, None, every_s=5.0, time_share=0.5)
    for tenth in range(200):
        sampler.poll(tenth / 10)
    assert 7 <= tree.sampled <= 10, "at 0, 0.1, 0.2, 0.4, ... and then every 5 s"


@pytest.mark.parametrize(
    ("held", "sampled", "over_limit", "peak"),
    [
        # it grew by 55 and had room for 60, then by 65; 30 are shared
        ([(40, 70), (95, 125), (105, 135)], [1, 1, 2], True, 105),
        # workers came, and share what their parent has; they are not sampled until they grow
        ([(0, 0), (60, 400), (60, 400)], [1, 2, 2], False, 60),
    ],
    ids=["grown by all its room", "shared pages"],
)
def test_a_tree_that_grew_by_all_its_room_is_sampled_at_once_and_shared_pages_end_no_trial(
    held, sampled, over_limit, peak
):
    tree, counts = FakeTree(), []
    sampler = MemorySampler(tree, 100, every_s=1000.0)
    for hundredth, (tree.proportional, tree.resident) in enumerate(held):
        sampler.poll(hundredth / 100)
        counts.append(tree.sampled)
    assert (counts, sampler.over_limit, sampler.peak_bytes) == (sampled, over_limit, peak)


Times = namedtuple("Times", "user system idle iowait steal guest")


@pytest.fixture
def machine(monkeypatch):
    """Two cores, of which each second one process of the command takes 0.5 s and others
    `others` s.
    """
    state = {"now": 0.0, "others": 0.0}
    monkeypatch.setattr(process_tree.time, "monotonic", lambda: state["now"])
    monkeypatch.setattr(process_tree.time, "process_time", lambda: 0.0)
    monkeypatch.setattr(process_tree, "allowed_cores", lambda: [0, 1])

    def cpu_times(percpu):
        now, others = state["now"], state["others"]
        return [
            Times(0.5 * now, 0, 0.5 * now, 3.0, 0, 0),
            Times(0, 0, now - others * now, 0, others * now, 0),
        ]

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    tree = ProcessTree(os.getpid(), "/nowhere")
    monkeypatch.setattr(tree, "processor_s", lambda: 0.5 * state["now"])
    return state, tree


@pytest.mark.parametrize(
    ("seconds", "others", "share"),
    [(10.0, 0.0, 0.0), (10.0, 0.6, 0.3), pytest.param(0.5, 0.6, None, id="too short to say")],
)
def test_what_others_take_is_all_that_the_cores_do_but_the_commands_own_and_stolen_time_is_others(
    machine, seconds, others, share
):
    state, tree = machine
    load = OtherLoad(tree)
    state |= {"now": seconds, "others": others}
    assert load.share() == pytest.approx(share)


def test_a_process_that_has_ended_counts_as_it_was_last_seen():
    tree = ProcessTree(os.getpid(), "/nowhere")
    tree.members()
    seen = tree.processor_s()
    tree._known = {}
    assert tree.processor_s() >= seen > 0
