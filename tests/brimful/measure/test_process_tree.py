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
from brimful.measure.process_tree import Memory, MemorySampler, OtherLoad, ProcessTree
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
        assert sum(memory.resident_bytes for memory in tree.memory().values()) > 64 << 20
    finally:
        tree.end(grace_s=0.5)
        process.wait(timeout=10)
    assert tree.memory() == {}


MIB = 1 << 20


class FakeTree:
    """Holds what the test sets, in MiB; counts how often its pages are walked over."""

    def __init__(self):
        self.held: dict[int, Memory] = {}
        self.proportional: dict[int, int] = {}
        self.walked = 0

    def set(self, **processes):
        """p1=(resident, highest, proportional)."""
        for name, (resident, highest, proportional) in processes.items():
            self.held[int(name[1:])] = Memory(resident * MIB, highest * MIB)
            self.proportional[int(name[1:])] = proportional * MIB

    def memory(self, also_new):
        return dict(self.held)

    def proportional_bytes(self, pid):
        self.walked += pid == next(iter(self.held))
        return self.proportional[pid]


class Watched:
    """A sampler of a fake tree, on a machine with `free` MiB, looked at when it wants to be."""

    def __init__(self, limit=None, cgroup_peak=None):
        self.tree, self.free, self.now_s, self.looks = FakeTree(), 10_000, 0.0, 0
        self.sampler = MemorySampler(
            self.tree,
            limit and limit * MIB,
            lambda: self.free * MIB,
            lambda: cgroup_peak and cgroup_peak * MIB,
        )

    def go_on(self, seconds=0.6, **processes):
        self.tree.set(**processes)
        until_s = self.now_s + seconds
        while (now_s := max(self.now_s, self.sampler.next_s)) < until_s:
            self.sampler.poll(now_s)
            self.looks += 1
            if self.sampler.over_limit:
                break  # as the command would be ended
        self.now_s = until_s

    @property
    def peak(self):
        return self.sampler.peak_bytes // MIB


def test_a_spike_between_two_looks_is_part_of_the_peak_and_counts_once():
    watched = Watched()
    watched.go_on(p1=(100, 100, 100))
    watched.go_on(p1=(120, 900, 120))
    watched.go_on(p1=(120, 900, 120), p2=(50, 50, 50))
    assert (watched.peak, watched.sampler.latest_bytes // MIB, watched.tree.walked) == (900, 170, 1)


def test_a_process_that_came_later_holds_what_it_has_grown_by_until_its_pages_are_walked_over():
    watched = Watched()
    watched.go_on(p1=(3000, 3000, 3000), p2=(10, 10, 10))  # the first walk
    watched.go_on(p1=(3000, 3000, 1500), p3=(3000, 3000, 1500))  # forked
    assert watched.peak == 3010
    watched.go_on(p3=(3200, 3300, 1700))
    assert (watched.peak, watched.tree.walked) == (3310, 1)


def test_of_pages_that_were_shared_all_are_the_first_processs_once_the_others_have_ended():
    watched = Watched()
    watched.go_on(p1=(3000, 3000, 1500), p2=(3100, 3100, 1600))
    assert watched.sampler.latest_bytes // MIB == 3100
    del watched.tree.held[2]
    watched.go_on(p1=(3500, 3500, 3500))
    assert (watched.sampler.latest_bytes // MIB, watched.tree.walked) == (3500, 1)


@pytest.mark.parametrize(("cgroup_peak", "peak"), [(None, 600), (450, 450), (100, 400)])
def test_several_spikes_add_up_to_the_most_that_their_cgroup_has_held(cgroup_peak, peak):
    watched = Watched(cgroup_peak=cgroup_peak)
    quiet, gone_up = (100, 100, 100), (100, 300, 100)
    watched.go_on(p1=quiet, p2=quiet)
    watched.go_on(p1=gone_up, p2=gone_up)
    assert watched.peak == peak


@pytest.mark.parametrize(
    ("proportional", "over_limit", "walked"),
    [(500, True, 2), (300, False, 2)],
    ids=["grown", "more is shared"],
)
def test_a_tree_that_may_have_come_to_its_limit_is_walked_over_before_it_is_ended(
    proportional, over_limit, walked
):
    watched = Watched(limit=1000)
    watched.go_on(p1=(500, 500, 500), p2=(10, 10, 10))
    watched.go_on(p2=(600, 600, proportional + 10))
    assert (watched.sampler.over_limit, watched.tree.walked) == (over_limit, walked)


def test_pages_that_workers_write_to_are_counted_once_free_memory_has_shrunk_by_all_the_room():
    watched = Watched(limit=4000)
    watched.go_on(p1=(3000, 3000, 1500), p2=(3000, 3000, 1500))
    watched.tree.set(p1=(3000, 3000, 3000), p2=(3000, 3000, 3000))
    watched.free -= 900
    watched.go_on(3.0)
    assert not watched.sampler.over_limit
    watched.free -= 200
    watched.go_on(3.0)
    assert watched.sampler.over_limit


def test_looks_come_often_near_the_limit_alone():
    watched = Watched(limit=3000)
    watched.go_on(1.0, p1=(1000, 1000, 1000))
    far, watched.looks = watched.looks, 0
    watched.go_on(1.0, p1=(2990, 2990, 2990))
    assert (far, watched.looks > 25, watched.sampler.over_limit) == (5, True, False)


def test_walks_over_all_pages_take_three_thousandths_of_the_time():
    watched = Watched()
    large = (1024, 1024, 1024)
    watched.go_on(1000.0, p1=large, p2=large, p3=large)
    assert watched.tree.walked == pytest.approx(1000 * 0.003 / (3 * 0.045), abs=1)


SPIKES = """
    import mmap, time
    time.sleep(0.5)
    block = mmap.mmap(-1, 256 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(block), 4096):
        block[at] = 1
    time.sleep(0.05)
    block.close()
    print("spiked", flush=True)
    time.sleep(60)
    """


def test_a_spike_of_50_ms_of_a_real_process_is_not_lost(config):
    process = start(SPIKES, config)
    tree = ProcessTree(process.pid, config)
    sampler = MemorySampler(tree)
    try:
        sampler.poll(0.0)
        process.stdout.readline()
        sampler.poll(sampler.next_s)
        assert sampler.latest_bytes < 128 * MIB < 256 * MIB < sampler.peak_bytes < 320 * MIB
    finally:
        tree.end(grace_s=0.5)
        process.wait(timeout=10)


def test_a_member_that_is_gone_and_strangers_are_not_looked_at_again(config, monkeypatch):
    looked_at, ask = [], process_tree._parent_of
    monkeypatch.setattr(process_tree, "_parent_of", lambda pid: looked_at.append(pid) or ask(pid))
    code = "import time; print('up', flush=True); time.sleep(60)"
    process = start(code, config)
    process.stdout.readline()
    tree = ProcessTree(process.pid, config)
    assert [member.pid for member in tree.members()] == [process.pid]
    assert len(looked_at) > 1
    looked_at.clear()
    tree.members()
    process.kill()
    process.wait()
    assert tree.members() == []
    assert len(looked_at) < 10, "those that the machine has started meanwhile"


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
