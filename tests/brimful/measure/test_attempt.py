"""One attempt of a run, with commands that need no torch: what reaches the user, what signals do,
how it ends.
"""

import os
import pty
import resource
import signal
import sys
import termios
import textwrap
from pathlib import Path

import psutil
import pytest

from brimful.errors import NoSuchCommand
from brimful.measure import attempt as attempts
from brimful.measure import process_tree, supervisor
from brimful.measure.attempt import run_attempt
from brimful.measure.output import OutputTee
from brimful.measure.supervisor import SignalForwarding
from brimful.values import Attempt, AttemptStarted, Device, Outcome
from brimful.watcher import Watcher

# Not by `print`: the signal that answers may come within it, and no handler may print there then.
READY = "import os, signal, sys, time\ndef ready(): os.write(1, b'ready\\n')\n"


class User(Watcher):
    """Who sees the output; `when_ready` is called once the command has printed "ready"."""

    def __init__(self, when_ready=lambda: None, terminals=None):
        self.terminals = terminals or {}
        self.seen = {"stdout": b"", "stderr": b""}
        self.when_ready = when_ready

    def output(self, stream: str, data: bytes) -> None:
        before, self.seen[stream] = self.seen[stream], self.seen[stream] + data
        if stream == "stdout" and b"ready" in self.seen[stream] and b"ready" not in before:
            self.when_ready()


def run(
    tmp_path: Path,
    script: str,
    user: User | None = None,
    signals: SignalForwarding | None = None,
    **more,
) -> Attempt:
    path = tmp_path / "script.py"
    path.write_text(READY + textwrap.dedent(script))
    argv = more.pop("argv", (sys.executable, str(path)))
    known = {"number": 1, "settings": (), "resumed": None, "started_unix_s": 0.0, "pid": 1}
    started = AttemptStarted(argv=argv, folder="attempt-001", **known)
    record, signals = tmp_path / "record", signals or SignalForwarding()
    return run_attempt(
        started, Device("cpu", "cpu"), {}, None, record, signals, user or User(), **more
    )


def signalled(tmp_path: Path, script: str, number: int, grace_s: float = 60.0) -> Attempt:
    """The attempt gets that signal once its script is ready."""
    signals = SignalForwarding(grace_s)
    return run(tmp_path, script, User(lambda: signals.receive(number)), signals)


def kept(tmp_path: Path, stream: str) -> bytes:
    return (tmp_path / "record" / "attempt-001" / f"{stream}.txt").read_bytes()


def test_output_reaches_the_user_while_the_command_goes_on(tmp_path):
    """The script waits for what the user does on seeing its first line; nobody would do it if the
    line came at the end.
    """
    user = User(lambda: (tmp_path / "seen").touch())
    ended = run(
        tmp_path,
        f"ready()\nwhile not os.path.exists({str(tmp_path / 'seen')!r}): "
        "time.sleep(0.01)\nprint('seen')",
        user,
    )
    assert ended.outcome is Outcome.COMPLETED
    assert user.seen["stdout"] == kept(tmp_path, "stdout") == b"ready\nseen\n"


def test_megabytes_on_both_streams_come_through_whole(tmp_path):
    user = User()
    run(tmp_path, "for n in range(3000): print('o' * 999); print('e' * 999, file=sys.stderr)", user)
    for name, letter in (("stdout", b"o"), ("stderr", b"e")):
        assert user.seen[name] == kept(tmp_path, name) == (letter * 999 + b"\n") * 3000


def test_on_a_terminal_the_command_has_a_terminal_of_the_same_size_and_line_ends_stay(tmp_path):
    outer, inner = pty.openpty()
    try:
        termios.tcsetwinsize(inner, (33, 77))
        user = User(terminals={"stdout": inner})
        run(tmp_path, "print(os.isatty(1), os.isatty(2), *os.get_terminal_size(1))", user)
        assert user.seen["stdout"] == kept(tmp_path, "stdout") == b"True False 77 33\n"
    finally:
        os.close(outer)
        os.close(inner)


def test_what_a_full_disk_does_not_keep_still_reaches_the_user(tmp_path):
    user = User()
    tee = OutputTee(tmp_path, user.output)
    os.dup2(os.open("/dev/full", os.O_WRONLY), tee._files["stdout"])
    for word in (b"one", b"two"):
        os.write(tee.child_streams["stdout"], word)
        tee.pump(1.0)
    tee.__exit__()
    assert user.seen["stdout"] == b"onetwo"
    assert tee.cut is not None and "No space left" in tee.cut


# Written into the script: what it prints, and where, once the signal has come, and how it ends.
WRITES_A_CHECKPOINT = """
    def save(number, frame):
        for part in range(5):
            print("part", part); time.sleep(0.1)
        sys.exit(7)
    signal.signal(signal.SIGTERM, save)
    ready()
    time.sleep(60)
    """
NOTES_A_SIGNAL = """
    signal.signal(signal.SIGUSR1, lambda *_: (print('noted'), sys.exit(0)))
    ready()
    time.sleep(60)
    """
# A daemon of multiprocessing reports in as a worker; a signal for everybody would end it before the
# script needs it.
NEEDS_ITS_WORKER = """
    import multiprocessing
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
    worker.start()
    pid = worker.pid
    def save(*_):
        time.sleep(0.3)
        print("worker lives:", worker.is_alive())
        worker.kill()
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    folder = os.path.dirname(os.environ["BRIMFUL_TRIAL_CONFIG"])
    while not os.path.exists(path := f"{folder}/wire-{pid}.jsonl"): time.sleep(0.01)
    while '"role": "worker"' not in open(path).read(): time.sleep(0.01)
    ready()
    time.sleep(60)
    """
OF_A_LAUNCHER = """
import os, signal, sys, time
def save(*_):
    time.sleep(1); print("saved", flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, save)
os.write(1, b"ready\\n")
time.sleep(60)
"""
LAUNCHES = f"import subprocess; subprocess.run([sys.executable, '-c', {OF_A_LAUNCHER!r}])"


@pytest.mark.parametrize(
    ("number", "script", "ending", "said"),
    [
        pytest.param(
            signal.SIGTERM,
            WRITES_A_CHECKPOINT,
            (Outcome.TERMINATED, 7),
            b"part 4\n",
            id="a checkpoint that is being written on SIGTERM is awaited",
        ),
        pytest.param(
            signal.SIGINT,
            "ready(); time.sleep(60)",
            (Outcome.INTERRUPTED, -signal.SIGINT),
            b"KeyboardInterrupt\n",
            id="an interrupted command prints its own traceback",
        ),
        pytest.param(
            signal.SIGUSR1,
            NOTES_A_SIGNAL,
            (Outcome.COMPLETED, 0),
            b"noted\n",
            id="a signal that ends nothing is passed on and the run goes on",
        ),
        pytest.param(
            signal.SIGTERM,
            NEEDS_ITS_WORKER,
            (Outcome.TERMINATED, 0),
            b"worker lives: True\n",
            id="loader workers are spared so that the script can finish its batch",
        ),
        pytest.param(
            signal.SIGTERM,
            LAUNCHES,
            (Outcome.TERMINATED, -signal.SIGTERM),
            b"saved\n",
            id="a script whose launcher falls at once may still write its checkpoint",
        ),
    ],
)
def test_a_signal_reaches_the_command_which_ends_in_its_own_way(
    tmp_path, number, script, ending, said
):
    ended = signalled(tmp_path, script, number)
    assert (ended.outcome, ended.exit_code) == ending
    assert (kept(tmp_path, "stdout") + kept(tmp_path, "stderr")).endswith(said)


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(tmp_path):
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN); ready(); time.sleep(60)"
    ended = signalled(tmp_path, script, signal.SIGTERM, grace_s=0.3)
    assert (ended.outcome, ended.exit_code) == (Outcome.TERMINATED, None)
    assert ended.duration_s > 0.3


def test_a_second_interrupt_shortens_the_grace_and_a_third_one_ends_it(tmp_path):
    now = [100.0]
    signals, sent = SignalForwarding(grace_s=60, clock=lambda: now[0]), []
    signals.forward_to(sent.append)
    signals.receive(signal.SIGINT)
    assert signals.deadline_s == 160
    signals.receive(signal.SIGINT)
    assert signals.deadline_s == 105
    signals.receive(signal.SIGINT)
    assert signals.overdue and sent == [signal.SIGINT] * 3
    assert signals.outcome is Outcome.INTERRUPTED


def test_real_signals_are_passed_on_and_handlers_are_put_back(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    with SignalForwarding() as signals:
        ended = run(
            tmp_path,
            "ready(); time.sleep(60)",
            User(lambda: os.kill(os.getpid(), signal.SIGTERM)),
            signals,
        )
    assert (ended.outcome, ended.exit_code) == (Outcome.TERMINATED, -signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before


def test_brimful_ends_what_a_command_leaves_behind_and_notes_it(tmp_path, monkeypatch):
    monkeypatch.setattr(supervisor, "LEFTOVERS_S", 0.2)
    script = (
        "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    )
    ended = run(tmp_path, script)
    assert ended.outcome is Outcome.COMPLETED
    note = ended.notes[0]
    assert note.startswith("brimful ended 1 process (sleep 60, process ") and "left behind" in note
    left = int(kept(tmp_path, "stdout"))
    assert not psutil.pid_exists(left) or psutil.Process(left).status() == psutil.STATUS_ZOMBIE


def test_a_forked_child_may_end_by_itself_and_is_named(tmp_path):
    script = "if os.fork() == 0: time.sleep(1); open('child_done', 'w').close(); os._exit(0)"
    ended = run(tmp_path, script)
    assert ended.outcome is Outcome.COMPLETED and (tmp_path / "child_done").exists()
    assert "brimful waited for 1 process (" in ended.notes[0]


def test_a_daemon_that_is_left_running_is_named(tmp_path):
    options = "env={}, start_new_session=True, stdin=-3, stdout=-3, stderr=-3"
    script = f"import subprocess; subprocess.Popen(['sleep', '60'], {options})"
    ended = run(tmp_path, script)
    (note,) = (note for note in ended.notes if note.startswith("the command left 1 process"))
    assert "(sleep 60, process " in note
    os.kill(int(note.rpartition("process ")[2].partition(")")[0]), signal.SIGKILL)
    assert note.endswith("running")


def test_a_memory_error_is_out_of_host_memory_without_torch_too(tmp_path):
    assert run(tmp_path, "bytearray(1 << 62)").outcome is Outcome.OUT_OF_HOST_MEMORY


def test_a_command_that_is_not_there_is_named_and_leaves_nothing(tmp_path):
    with pytest.raises(NoSuchCommand, match="pythn"):
        run(tmp_path, "", argv=("pythn", "train.py"))
    assert not (tmp_path / "record").exists()


def test_a_run_is_no_trial_for_what_it_writes_and_how_it_ends(tmp_path):
    run(
        tmp_path,
        "print(os.environ.get('PYTHONDONTWRITEBYTECODE'), os.environ.get('WANDB_MODE')); "
        "open('x.txt', 'w')",
    )
    assert kept(tmp_path, "stdout") == b"None None\n"
    config = (tmp_path / "record" / "attempt-001" / "trial_config.json").read_text()
    assert '"cut":false' in config and '"keep_out":false' in config
    assert Path("x.txt").exists()


def test_a_command_without_the_probe_runs_all_the_same_and_that_is_noted(tmp_path):
    ended = run(tmp_path, "", argv=(sys.executable, "-I", "-c", "print(1)"))
    assert (ended.outcome, ended.steps, ended.samples) == (Outcome.COMPLETED, 0, None)
    assert "no Python process of the command loaded the probe (`python -I`, " in ended.notes[0]


def test_heartbeats_come_while_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "HEARTBEAT_S", 0.05)
    heartbeats = []

    def heard(heartbeat):
        heartbeats.append(heartbeat)
        if len(heartbeats) == 3:
            (tmp_path / "heard").touch()

    run(tmp_path, "while not os.path.exists('heard'): time.sleep(0.01)", on_heartbeat=heard)
    assert len(heartbeats) >= 3
    assert heartbeats[-1].phase is None and heartbeats[-1].steps == 0
    assert 0 < heartbeats[-1].host_used_share < 1


@pytest.fixture(autouse=True)
def in_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)


def test_the_memory_of_an_attempt_is_seen_over_its_time(tmp_path):
    """The script goes on until a heartbeat has shown it."""

    def shown(heartbeat):
        if (heartbeat.process_tree_host_bytes or 0) > 200 << 20:
            (tmp_path / "shown").touch()

    script = """
        held = bytearray(os.urandom(1 << 20)) * 200
        while not os.path.exists("shown"): time.sleep(0.01)
        """
    ended = run(tmp_path, script, on_heartbeat=shown)
    assert ended.outcome is Outcome.COMPLETED
    assert ended.process_tree_host_bytes is not None and ended.process_tree_host_bytes > 200 << 20
    assert len(ended.course) >= 2 and ended.course[-1].process_tree_host_bytes
    assert all((point.loss, point.allocated_bytes) == (None, None) for point in ended.course)


@pytest.mark.parametrize(
    "script",
    [
        "held = b'1' * {held}",
        "import subprocess\nsubprocess.run([sys.executable, '-S', '-c', \"held = b'1' * {held}\"])",
    ],
    ids=["of the command", "of a process that it awaits"],
)
def test_memory_that_was_held_between_the_last_look_and_the_end_is_in_the_peak(
    tmp_path, monkeypatch, script
):
    # a child's peak begins with that of the process that started it: these tests, hundreds of MiB
    held = (400 << 20) + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    monkeypatch.setattr(process_tree, "LOOK_EVERY_S", 1000.0)  # one look, at the start
    ended = run(tmp_path, script.format(held=held))
    assert ended.outcome is Outcome.COMPLETED
    assert held < (ended.process_tree_host_bytes or 0) < held + (300 << 20)


def test_a_run_leaves_one_file_of_all_workers_that_it_had(tmp_path):
    ended = run(
        tmp_path,
        "for _ in range(12):\n"
        "    if os.fork() == 0:\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "time.sleep(2.5)",
    )
    names = [path.name for path in (tmp_path / "record" / ended.folder).glob("wire-*")]
    assert len(names) == 2 and "wire-ended.jsonl" in names
