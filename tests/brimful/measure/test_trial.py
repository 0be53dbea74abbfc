"""One trial from start to result, with commands that need no torch: how they end, what is left of
them, what is kept.
"""

import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from brimful.errors import DiskFull, NoSuchCommand
from brimful.measure import supervisor
from brimful.measure.gpus import find_gpu
from brimful.measure.supervisor import environment_with_probe
from brimful.measure.trial import (
    _a_rank_is_without_the_probe,
    config_of,
    failure_text,
    run_trial,
)
from brimful.values import Command, Device, Outcome, Trial, TrialKind
from brimful_inside import wire
from brimful_inside.wire import Ends

CPU = Device("cpu", "cpu")
#: Written to the wire by a script of a test, in place of the probe.
REPORTS = """
import json, os, sys, time
folder = os.path.dirname(os.environ["BRIMFUL_TRIAL_CONFIG"])
def write(event, **fields):
    with open(os.path.join(folder, "wire-%d.jsonl" % os.getpid()), "a") as file:
        file.write(json.dumps({"event": event, **fields}) + "\\n")
"""


def trial(*argv: str, settings=None, **more) -> Trial:
    return Trial(
        Command(argv),
        settings or {},
        more.pop("device", CPU),
        more.pop("kind", TrialKind.AUDIT),
        **more,
    )


def imaginary_device(**more) -> Device:
    return Device("imaginary", "t4 (imaginary)", find_gpu("t4"), **more)


def launched(folder: Path, *argv: str, name: str = "t1", watch=lambda _: None, **more):
    return run_trial(trial(*argv, **more), folder / "record" / name, folder / "record", watch)


def run(
    tmp_path: Path,
    script: str,
    *arguments: str,
    python=(sys.executable,),
    watch=lambda _: None,
    **more,
):
    (tmp_path / "script.py").write_text(textwrap.dedent(script))
    return launched(tmp_path, *python, str(tmp_path / "script.py"), *arguments, watch=watch, **more)


def executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_a_file_that_no_machine_can_run_is_refused_with_the_systems_words(tmp_path):
    with pytest.raises(NoSuchCommand, match="could not be started"):
        launched(tmp_path, executable(tmp_path / "garbage", "\x00\x01 no program"))


def test_output_and_error_stream_are_kept_in_the_record(tmp_path):
    result = run(
        tmp_path,
        "import sys; print('to out'); sys.stderr.write('KeyError: 37'); sys.exit(3)",
    )
    assert (tmp_path / "record" / result.folder / "stdout.txt").read_text() == "to out\n"
    assert failure_text(result, tmp_path / "record") == "KeyError: 37"
    assert (result.outcome, result.exit_code) == (Outcome.CRASHED, 3)


@pytest.mark.parametrize("options", [["-I"], ["-S"]])
def test_a_python_that_reads_no_environment_does_not_load_the_probe(tmp_path, options):
    result = run(tmp_path, "print('trained')", python=(sys.executable, *options))
    assert result.outcome is Outcome.PROBE_NOT_LOADED


def test_why_a_process_could_not_be_entered_reaches_the_result(tmp_path):
    result = run(
        tmp_path,
        REPORTS + "open(os.path.join(folder, 'probe-error-1.txt'), 'w').write('3.7\\nTraceback "
        "...\\nSyntaxError: no walrus here\\n')",
    )
    assert result.outcome is Outcome.PROBE_NOT_LOADED
    assert "SyntaxError: no walrus here" in result.notes[0]


def test_a_probe_that_cannot_be_installed_is_not_called_a_script_that_does_not_train(tmp_path):
    fake = tmp_path / "path" / "torch"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text(
        "__version__ = '9.9'\nclass version:\n    cuda = None\n"
    )  # no torch.optim in it
    result = run(
        tmp_path,
        f"import sys; sys.path.insert(0, {str(fake.parent)!r}); import torch; print('trained')",
    )
    assert result.outcome is Outcome.PROBE_NOT_LOADED
    assert "could not load its probe" in result.notes[0]


@pytest.mark.parametrize("line", ["PYTHONPATH=/mine {python} {script}", "env -i {python} {script}"])
def test_a_shell_script_that_takes_the_path_away_does_not_load_the_probe(tmp_path, line):
    (tmp_path / "script.py").write_text("print('trained')\n")
    text = "#!/bin/sh\n" + line.format(python=sys.executable, script=tmp_path / "script.py") + "\n"
    assert (
        launched(tmp_path, executable(tmp_path / "train.sh", text)).outcome
        is Outcome.PROBE_NOT_LOADED
    )
    kept = executable(
        tmp_path / "kept.sh", text.replace("=/mine", "=/mine:$PYTHONPATH").replace("env -i ", "")
    )
    assert launched(tmp_path, kept, name="t2").outcome is Outcome.NO_STEP, (
        "the bootstrap loads where the path is kept"
    )


def test_more_host_memory_than_allowed_ends_the_trial_before_the_machine_suffers(tmp_path):
    result = run(
        tmp_path,
        """
        import time
        held = []
        for _ in range(80):
            held.append(b"x" * (1 << 20) * 5)
            time.sleep(0.02)
        time.sleep(600)
        """,
        host_limit_bytes=300 << 20,
        time_limit_s=60,
    )
    assert result.outcome is Outcome.OUT_OF_HOST_MEMORY
    assert "more host memory than the budget" in result.notes[0]
    assert 300 << 20 < result.process_tree_host_bytes < 700 << 20


def test_an_interrupt_ends_all_processes_and_gives_a_result(tmp_path):
    output = tmp_path / "record" / "t1" / "stdout.txt"

    def interrupt() -> None:
        while not output.exists() or not output.read_text():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    before = set(psutil.Process().children(recursive=True))  # of other tests' forked trials
    threading.Thread(target=interrupt, daemon=True).start()
    result = run(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    assert result.outcome is Outcome.INTERRUPTED
    living = [
        p
        for p in set(psutil.Process().children(recursive=True)) - before
        if p.status() != psutil.STATUS_ZOMBIE
    ]
    assert not [p for p in living if "script.py" in str(p.cmdline())]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, (
        "Ctrl-C works again afterwards"
    )


def test_an_interrupt_while_the_command_is_being_started_ends_it_too(tmp_path, monkeypatch):
    started, popen = [], supervisor.StartedProcess

    def interrupted(*words, **more):
        process = popen(*words, **more)
        started.append(process)
        os.kill(os.getpid(), signal.SIGINT)
        return process

    monkeypatch.setattr(supervisor, "StartedProcess", interrupted)
    result = run(tmp_path, "import time\ntime.sleep(600)\n")
    assert result.outcome is Outcome.INTERRUPTED
    assert [process.poll() is not None for process in started] == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_full_disk_before_the_trial_names_what_is_kept(tmp_path, monkeypatch):
    def full(path, content, mode):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("brimful.files.replace", full)
    with pytest.raises(DiskFull) as caught:
        run_trial(trial("true"), tmp_path / "t1", tmp_path)
    assert "the trials before this one" in caught.value.explanation


def test_the_heartbeat_shows_where_the_script_is(tmp_path):
    """It goes on until it was shown."""
    shown = []

    def watch(progress):
        shown.append(progress and (progress.phase, progress.steps))
        if shown[-1] == ("eval", 7):
            (tmp_path / "shown").touch()

    waits = f"while not os.path.exists({str(tmp_path / 'shown')!r}): time.sleep(0.01)"
    reports = "write('progress', phase='eval', steps=7, unix_s=time.time())\n"
    result = run(tmp_path, REPORTS + reports + waits, watch=watch, time_limit_s=60)
    assert result.outcome is Outcome.NO_STEP and ("eval", 7) in shown


def test_the_child_gets_the_bootstrap_in_front_of_its_own_path_and_the_users_variables(
    tmp_path, monkeypatch
):
    for name, value in {
        "PYTHONPATH": "/mine",
        "HOME": "/home/me",
        "CUDA_VISIBLE_DEVICES": "1",
    }.items():
        monkeypatch.setenv(name, value)
    variables = environment_with_probe(CPU, {"MINE": "1"}, tmp_path / "trial_config.json")
    first, *rest = variables["PYTHONPATH"].split(os.pathsep)
    assert sorted(os.listdir(first)) == ["sitecustomize.py"] or set(os.listdir(first)) == {
        "sitecustomize.py",
        "__pycache__",
    }
    assert rest == ["/mine"]
    assert (variables["HOME"], variables["MINE"]) == ("/home/me", "1")
    assert variables[wire.TRIAL_CONFIG_VARIABLE] == str(tmp_path / "trial_config.json")
    assert variables["CUDA_VISIBLE_DEVICES"] == "", "a trial on the CPU sees no card"
    monkeypatch.delenv("PYTHONPATH")
    empty = environment_with_probe(Device("accelerator", "cuda:0"), {}, tmp_path)
    assert os.pathsep not in empty["PYTHONPATH"], "an empty entry would be the working folder"
    assert empty["CUDA_VISIBLE_DEVICES"] == "1"


@pytest.mark.parametrize(
    ("kind", "more", "measures"),
    [
        (
            TrialKind.TRACE,
            {"capacity_bytes": 7},
            {"trace": True, "worst_batch": True, "capacity_bytes": 7, "measure_host_memory": False},
        ),
        (
            TrialKind.MEMORY,
            {},
            {"measure_host_memory": True, "worst_batch": True, "trace": False, "card": None},
        ),
        (
            TrialKind.SPEED,
            {"settings": {"batch_size": 8}},
            {
                "measure_host_memory": False,
                "worst_batch": False,
                "audits": False,
                "settings": {"batch_size": 8},
            },
        ),
        (TrialKind.TRACE, {"as_drawn": True}, {"worst_batch": False}),
        (
            TrialKind.TRACE,
            {"as_drawn": True, "largest_at": 4},
            {"worst_batch": True},
        ),
        (TrialKind.SPEED, {"ends": Ends(settles_after=50)}, {"ends": Ends(settles_after=50)}),
        # an audit looks at the loader's own batches
        (TrialKind.AUDIT, {}, {"audits": True, "worst_batch": False}),
    ],
)
def test_what_a_trial_is_for_decides_what_the_child_measures(tmp_path, kind, more, measures):
    device = imaginary_device() if kind is TrialKind.TRACE else CPU
    config = config_of(trial("true", device=device, kind=kind, **more), tmp_path)
    assert vars(config).items() >= measures.items()
    assert config.card is None or config.card.name == "Tesla T4"


def test_the_child_gets_the_allocators_settings_with_which_replays_begin(tmp_path, monkeypatch):
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    assert config_of(trial("true", device=imaginary_device()), tmp_path).allocator_conf == ""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert (
        config_of(trial("true", device=imaginary_device()), tmp_path).allocator_conf
        == "expandable_segments:True"
    )


def test_the_child_gets_the_scans_of_earlier_trials(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    show = "import json, os; print(json.load(open(os.environ['BRIMFUL_TRIAL_CONFIG']))['scans'])"
    result = run_trial(
        trial(sys.executable, "-c", show),
        tmp_path / "t1",
        tmp_path,
        scans=[Path("t0/scans-1.jsonl")],
    )
    absolute = [str(tmp_path / "t0" / "scans-1.jsonl")]
    assert (tmp_path / result.folder / "stdout.txt").read_text() == f"{absolute}\n", (
        "a script may change its folder"
    )


def test_a_trial_that_filled_the_disk_is_not_taken_for_a_probe_that_was_not_loaded(
    tmp_path, monkeypatch
):
    real = os.statvfs(tmp_path)
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result([*real[:3], 1, 1, *real[5:10]]))
    with pytest.raises(DiskFull, match="disk is full"):
        run_trial(trial("true"), tmp_path / "t1", tmp_path)


def test_imaginary_cards_are_not_hidden_by_the_choice_of_real_ones(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    for own in ({}, {"CUDA_VISIBLE_DEVICES": "0"}):
        variables = environment_with_probe(imaginary_device(), own, Path("trial_config.json"))
        assert variables.get("CUDA_VISIBLE_DEVICES") == own.get("CUDA_VISIBLE_DEVICES")
    assert config_of(trial("true", device=imaginary_device(cards=3)), Path()).cards == 3


def test_one_rank_is_started_without_its_launcher_and_has_the_environment_of_all(tmp_path):
    script = (
        "import os, sys\nprint(*map(os.environ.get, ('RANK', 'WORLD_SIZE', 'LOCAL_RANK')), "
        "sys.argv[1:])"
    )
    launcher = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "8")
    device = imaginary_device(cards=8, ranks=64, as_rank=10)
    run(tmp_path, script, "--lr", "3", python=launcher, device=device)
    assert (tmp_path / "record" / "t1" / "stdout.txt").read_text().split("\n")[
        0
    ] == "10 64 2 ['--lr', '3']"


RANK = '{"event": "process_started", "role": "rank"}\n'


def test_a_process_without_the_probe_ends_the_trial_when_no_rank_reports_in_for_a_while(tmp_path):
    error = tmp_path / "probe-error-8.txt"
    error.write_text("SyntaxError")
    assert not _a_rank_is_without_the_probe(tmp_path)
    os.utime(error, (time.time() - 60, time.time() - 60))
    assert _a_rank_is_without_the_probe(tmp_path)
    (tmp_path / "wire-9.jsonl").write_text(RANK)  # the first one was a helper, and gone
    assert not _a_rank_is_without_the_probe(tmp_path)


def test_a_time_limit_ends_the_trial(tmp_path):
    result = run(tmp_path, "import time; time.sleep(600)", time_limit_s=1.0)
    assert result.outcome is Outcome.TIMED_OUT
    assert result.exit_code is None, "brimful ended it, so its exit code says nothing"


@pytest.mark.parametrize("role", ["rank", "worker"])
def test_a_rank_that_wrote_a_probe_error_ends_the_trial_and_a_worker_does_not(tmp_path, role):
    (tmp_path / "wire-7.jsonl").write_text(RANK.replace("rank", role))
    assert not _a_rank_is_without_the_probe(tmp_path)
    (tmp_path / "probe-error-7.txt").write_text("ImportError")
    assert _a_rank_is_without_the_probe(tmp_path) == (role == "rank")
