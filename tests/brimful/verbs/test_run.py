"""A whole run, with commands that need no torch: restarts with smaller sizes, exit codes, what it
shows and keeps.
"""

import json
import os
import socket
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from brimful import run
from brimful.decide.run.smaller_batch_size import FittingSizes
from brimful.errors import DiskFull, NoSuchCommand, UsageError
from brimful.record import RecordWriter, list_records
from brimful.values import (
    Attempt,
    Command,
    EffectiveSetting,
    Failure,
    Outcome,
    Record,
    RunStarted,
    Source,
)
from brimful.verbs.run import RunOptions
from brimful.verbs.run_restart import next_attempt, nothing_trained, reason
from brimful.watcher import Watcher
from tests.brimful.measure.helper import REPORT

OTHER_NAMES = ("bs", "batchsize", "train_batch_size")
#: Prints what it was started with; out of host memory above the size that is its second argument.
SCRIPT = """
import sys
print("started", *sys.argv[1:], flush=True)
if int(sys.argv[1]) > int(sys.argv[2]):
    raise MemoryError
"""


class Notebook(Watcher):
    """Keeps what it is shown."""

    def __init__(self):
        self.messages: list[str] = []
        self.out = b""

    def message(self, text: str) -> None:
        self.messages.append(text)

    def output(self, stream: str, data: bytes) -> None:
        self.out += data if stream == "stdout" else b""

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


@pytest.fixture
def user():
    return Notebook()


@pytest.fixture
def trains(tmp_path, monkeypatch, user):
    """trains(*words, **options): runs SCRIPT (or `script=`) with these words."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, script: str = SCRIPT, settings=None, **more) -> Record:
        (tmp_path / "train.py").write_text(textwrap.dedent(script))
        options = RunOptions(home=tmp_path / "home", watcher=user, **more)
        argv = [sys.executable, "train.py", *words]
        return run(argv, device="cpu", settings=settings, options=options)

    return call


def sizes(record: Record, name: str = "batch_size") -> list[object]:
    return [next(s.effective for s in a.settings if s.name == name) for a in record.run.attempts]


def ended(record: Record) -> tuple[Outcome, int]:
    return record.run.ended.outcome, record.run.ended.exit_code


def test_out_of_memory_goes_on_with_smaller_sizes_until_it_fits(trains, user):
    record = trains("{batch_size}", "20", settings={"batch_size": 64})
    assert user.lines == ["started 64 20", "started 32 20", "started 16 20"]
    assert sizes(record) == [64, 32, 16] and ended(record) == (Outcome.COMPLETED, 0)
    assert record.closed is not None and record.closed.exit_code == 0


def test_without_a_plan_a_size_that_completed_in_an_earlier_run_comes_before_half(trains, user):
    trains("{batch_size}", "20", settings={"batch_size": 20})
    trains("{batch_size}", "30", settings={"batch_size": 30})  # another command
    user.out = b""
    record = trains("{batch_size}", "20", settings={"batch_size": 64})
    assert user.lines == ["started 64 20", "started 20 20"]
    why = record.run.attempts[1].settings[0].why  # type: ignore[union-attr]
    assert why == "the largest size at least a tenth smaller that ran before; 64 ran out of memory"


@pytest.mark.parametrize(
    ("limit", "settings", "started", "changed"),
    [
        ("20", {"batch_size": 64, "accumulation": 3}, ["64 20 3", "32 20 6", "16 20 12"], []),
        ("60", {"batch_size": 97}, ["97 60 1", "48 60 2"], ["from 97 to 96"]),
        ("10", {"batch_size": 50}, ["50 10 1", "24 10 2", "10 10 5"], ["from 50 to 48"]),
    ],
)
def test_accumulation_keeps_the_effective_batch_as_far_as_whole_numbers_can(
    trains, user, limit, settings, started, changed
):
    record = trains("{batch_size}", limit, "{accumulation}", settings=settings)
    assert user.lines == [f"started {words}" for words in started]
    problems = [note.problem for note in record.notes if note.code == "effective-batch"]
    assert problems == [f"the effective batch per rank drops {change}" for change in changed]


def test_the_script_resumes_from_the_second_attempt_on(trains, user):
    words = ("{batch_size}", "40", "{resume}")
    record = trains(*words, settings={"batch_size": 64}, resume_with="--resume 'the last'")
    assert user.lines == ["started 64 40", "started 32 40 --resume the last"]
    assert [a.resumed for a in record.run.attempts] == [None, True]  # type: ignore[union-attr]
    assert not [note for note in record.notes if note.code == "starts-over"]


def test_without_a_place_to_resume_or_accumulate_each_restart_says_so_and_explains_it_once(
    trains, user
):
    record = trains("{batch_size}", "20", settings={"batch_size": 64})
    problems = [note.problem for note in record.notes if note.code == "effective-batch"]
    assert problems[0] == "the effective batch per rank drops from 64 to 32"
    assert [a.resumed for a in record.run.attempts] == [None, False, False]  # type: ignore[union-attr]
    assert sum("STARTS OVER" in message for message in user.messages) == 2
    assert sum("--resume-with" in message for message in user.messages) == 1


@pytest.mark.parametrize(
    ("words", "settings", "says"),
    [
        (("{batch_size}", "20"), {}, "left no plan"),
        *((("--width", "8"), {name: 32}, "did you mean batch_size?") for name in OTHER_NAMES),
    ],
)
def test_an_open_placeholder_and_another_name_of_the_batch_size_are_refused_with_why(
    trains, words, settings, says
):
    with pytest.raises(UsageError) as caught:
        trains(*words, **({"settings": settings} if settings else {}))
    assert says in f"{caught.value.explanation}\n{caught.value.suggestion}"


def test_of_a_flag_given_twice_the_last_counts_and_the_user_is_shown_so(trains, user):
    trains("--batch-size", "64", "--batch-size", "32", script="pass")
    assert any(
        "stands there 2 times, and the last one counts" in message for message in user.messages
    )


@pytest.mark.parametrize(
    ("words", "more", "started", "why"),
    [
        (("{batch_size}", "0"), {"settings": {"batch_size": 4}}, [4, 2, 1], "nothing smaller"),
        (
            ("{batch_size}", "0"),
            {"settings": {"batch_size": 4}, "max_restarts": 1},
            [4, 2],
            "--max-restarts",
        ),
        (("64", "0"), {}, [64], "{batch_size}"),
    ],
)
def test_a_run_that_gets_no_smaller_does_not_fit_and_says_why(
    trains, user, words, more, started, why
):
    record = trains(*words, **more)
    assert user.lines == [f"started {size} 0" for size in started]
    assert ended(record) == (Outcome.OUT_OF_HOST_MEMORY, 3)
    assert why in record.run.ended.message  # type: ignore[union-attr]


def test_a_failure_of_the_scripts_own_is_not_repeated(trains, user):
    raises = SCRIPT + "raise KeyError('of mine')"
    record = trains("{batch_size}", "9", settings={"batch_size": 4}, script=raises)
    assert user.lines == ["started 4 9"] and ended(record) == (Outcome.CRASHED, 5)
    assert record.closed is not None and record.closed.exit_code == 5


def test_a_batch_size_behind_a_known_flag_is_what_becomes_smaller(trains, user):
    script = "import sys\nprint(sys.argv[2])\nif int(sys.argv[2]) > 40: raise MemoryError"
    record = trains("--batch-size", "64", script=script)
    assert user.lines == ["64", "32"]
    last = record.run.attempts[-1].settings[0]  # type: ignore[union-attr]
    assert (last.requested, last.effective) == (64, 32)


def test_a_smaller_host_limit_is_obeyed_and_counts_as_out_of_memory(trains):
    holds = "import os, sys, time\nmib = int(sys.argv[1])\nkept = os.urandom(mib << 20)\n"
    holds += "time.sleep(60 * (mib > 200))"  # until brimful ends it
    record = trains("{batch_size}", settings={"batch_size": 400}, script=holds, host_limit="300MiB")
    assert sizes(record) == [400, 200] and ended(record) == (Outcome.COMPLETED, 0)


def test_a_command_that_is_not_there_ends_with_its_name_and_leaves_no_record(tmp_path):
    with pytest.raises(NoSuchCommand, match="pythn"):
        run(["pythn", "train.py"], options=RunOptions(home=tmp_path))
    assert not list_records(tmp_path)


def test_a_training_that_goes_well_is_not_ended_by_a_disk_that_is_full(trains, user, monkeypatch):
    append, full = RecordWriter.append, []

    def until_full(self, entry):
        if full or isinstance(entry, Attempt):
            full.append(entry)
            raise DiskFull(str(self.folder), "some")
        return append(self, entry)

    monkeypatch.setattr(RecordWriter, "append", until_full)
    record = trains("{batch_size}", "40", settings={"batch_size": 64})
    assert user.lines == ["started 64 40", "started 32 40"]
    assert (sizes(record), ended(record)) == ([64, 32], (Outcome.COMPLETED, 0))
    assert sum("disk is full" in message for message in user.messages) == 1


# --- after an attempt, from values alone ---

ROWS = (EffectiveSetting("batch_size", 64, 64, "as the command says", Source.MEASURED),)
FULL = Failure(
    "out_of_device_memory",
    "torch.OutOfMemoryError",
    "CUDA out of memory. Tried to allocate 2.00 GiB.",
    "Traceback (most recent call last):\n  ...\ntorch.OutOfMemoryError",
    "/home/u/train.py:41 in train",
    "train",
    8211,
    False,
)
ATTEMPT = Attempt(
    number=1,
    settings=ROWS,
    argv=("python", "train.py"),
    environment={},
    resumed=None,
    steps=146_000,
    started_unix_s=0.0,
    outcome=Outcome.OUT_OF_DEVICE_MEMORY,
    duration_s=29_200.0,
    folder="attempt-001",
    exit_code=1,
    failure=FULL,
)


def after(attempt: Attempt):
    started = RunStarted("command", "the command as it stands", 10, ())
    command = Command(("python", "train.py", "{batch_size}"))
    return next_attempt(attempt, command, ROWS, started, FittingSizes(), attempt, {})


def test_memory_that_ran_out_leads_to_a_smaller_size_unless_the_engine_went_down_to_one_sample():
    (row,) = after(ATTEMPT).rows
    assert row.effective == 32
    message = "A single sample does not fit into memory in training: CUDA out of memory"
    final = replace(ATTEMPT, failure=replace(FULL, meaning="does-not-fit", message=message))
    why = after(final).ends_because
    assert message in why and "No smaller batch size would help" in why


def test_a_smaller_batch_size_comes_next_where_memory_is_full_and_not_in_pieces():
    full = "CUDA out of memory. Tried to allocate 20.00 MiB. 1.00 MiB is reserved by PyTorch but "
    attempt = replace(ATTEMPT, failure=replace(FULL, message=f"{full}unallocated."))
    restart = after(attempt)
    assert restart.rows[0].effective == 32 and restart.environment == {}


def test_an_exit_code_of_a_scripts_own_has_no_meaning():
    crashed = replace(
        ATTEMPT,
        outcome=Outcome.CRASHED,
        failure=None,
        exit_code=3,
        notes=("no DataLoader was used",),
    )
    assert "no Python exception" in reason(crashed) and "DataLoader" not in reason(crashed)
    killed = replace(crashed, outcome=Outcome.KILLED, notes=("killed, probably for memory",))
    assert reason(killed) == ": killed, probably for memory"


@pytest.mark.parametrize(
    ("steps", "reports", "nothing"), [(0, 1, True), (1, 1, False), (0, 0, False)]
)
def test_a_command_that_ended_well_without_a_step_trained_nothing_where_brimful_saw_its_processes(
    steps, reports, nothing
):
    advice = nothing_trained(replace(ATTEMPT, steps=steps, reports=(REPORT,) * reports))
    assert (advice is not None) is nothing
    assert advice is None or (
        "made no optimizer step" in advice.problem and "checkpoint" in advice.explanation
    )


IN_PIECES = """
import os, sys, torch
print("started", *sys.argv[1:], os.environ.get("PYTORCH_CUDA_ALLOC_CONF"), flush=True)
if "expandable_segments" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 8.00 GiB. "
        "Of the allocated memory 5.00 GiB is allocated by PyTorch, and " + sys.argv[2] +
        " is reserved by PyTorch but unallocated."
    )
"""


def test_memory_in_pieces_gets_expandable_segments_and_the_batch_size_stays(
    tmp_path, user, monkeypatch
):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128")
    words = [sys.executable, "-c", IN_PIECES, "{batch_size}", "1.69 GiB"]
    options = RunOptions(home=tmp_path, watcher=user)
    record = run(words, settings={"batch_size": 64}, options=options)
    conf = "max_split_size_mb:128,expandable_segments:True"
    assert user.lines == [
        "started 64 1.69 GiB max_split_size_mb:128",
        f"started 64 1.69 GiB {conf}",
    ]
    assert [attempt.outcome for attempt in record.run.attempts] == [
        Outcome.OUT_OF_DEVICE_MEMORY,
        Outcome.COMPLETED,
    ]
    assert any(conf in text and "keeps the batch size" in text for text in user.messages)


def test_the_script_gets_its_secrets_and_nothing_that_is_kept_or_shown_has_them(
    trains, user, tmp_path
):
    secrets = ("correct-horse", "hf_" + "aB3" * 11, "opensesame")
    words = ("--hub_token", secrets[0], secrets[1], "--note", "{api_key}")
    script = """
        import pathlib, sys
        pathlib.Path("got.txt").write_text(" ".join(sys.argv[1:]))
        raise ValueError(" ".join(sys.argv))
    """
    record = trains(*words, script=script, settings={"api_key": secrets[2]})
    assert all(secret in (tmp_path / "got.txt").read_text() for secret in secrets)
    kept = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    shown = [repr(record), *user.messages, *(path.read_text() for path in kept)]
    assert not [(s, text) for s in secrets for text in shown if s in text]
    assert any("***" in path.read_text() for path in kept if path.name.startswith("wire-"))
    assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
    assert (Path(record.folder)).stat().st_mode & 0o777 == 0o700


def test_files_of_a_command_that_was_killed_with_brimful_are_masked_by_the_next_one(
    trains, tmp_path, monkeypatch
):
    secret = "correct-horse-9"
    with monkeypatch.context() as patch:  # as a kill leaves them
        patch.setattr("brimful.measure.kept_files.mask", lambda folder: None)
        patch.setattr(RecordWriter, "append", lambda self, entry: None)
        trains("--hub_token", secret, script="import sys; print(sys.argv, flush=True)")
    (folder,) = (tmp_path / "home").glob("*-run*")
    opened_here = json.dumps({"hostname": socket.gethostname()})
    (folder / "record.jsonl").write_text(opened_here)
    monkeypatch.setattr("brimful.masking._learned", set())  # another process

    def with_secret() -> list[Path]:
        kept = (path for path in folder.rglob("*") if path.is_file())
        return [path for path in kept if secret in path.read_text()]

    assert {path.name.split("-")[0] for path in with_secret()} == {"stdout.txt", "wire"}
    monkeypatch.setenv("BRIMFUL_TRIAL_CONFIG", "")
    config = next(folder.glob("*/trial_config.json"))
    alive = {**os.environ, "BRIMFUL_TRIAL_CONFIG": str(config)}
    with subprocess.Popen(["sleep", "60"], env=alive) as left:
        trains("other")
        assert with_secret(), "a process of it still writes there"
        left.kill()
    (folder / "record.jsonl").write_text('{"hostname": "another-machine"}')
    trains("other")
    assert with_secret(), "what another machine writes to a shared home may be alive"
    (folder / "record.jsonl").write_text(opened_here)
    trains("other")
    assert with_secret() == [] and "***" in (config.parent / "stdout.txt").read_text()
