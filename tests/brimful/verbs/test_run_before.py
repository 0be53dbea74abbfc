"""A run that was killed, and the same command again: it goes on, and writes over nothing newer."""

import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from brimful import record as record_module
from brimful import run
from brimful.codec import read_wire_leniently
from brimful.errors import UsageError
from brimful.record import RecordWriter, list_records, read_record
from brimful.show.headline import headline
from brimful.show.sections import sections
from brimful.values import Outcome
from brimful.verbs import run_before
from brimful.verbs.run import RunOptions
from brimful_inside import wire
from tests.brimful.end_to_end.helper import environment, start
from tests.brimful.measure.helper import REPORT
from tests.brimful.verbs.test_run import Notebook

#: Counts in a file, as a script that begins anew does; behind --resume it goes on from the file.
COUNTS = """
import os, sys, time
resumes = "--resume" in sys.argv and os.path.exists("count.txt")
count = int(open("count.txt").read() or 0) if resumes else 0
open("count.txt", "a").close()
open("began.txt", "a").write(f"{os.getpid()} {count}\\n")
while count < 400 or not os.path.exists("ends"):
    count += 1
    with open("new.txt", "w") as file:
        file.write(str(count))
    os.replace("new.txt", "count.txt")
    time.sleep(0.01)
"""
WORDS = ("run", "--device", "cpu", "--resume-with", "--resume last")


def wait_for(path: Path, lines: int) -> list[str]:
    for _ in range(6000):
        if path.exists() and len(read := path.read_text().splitlines()) >= lines:
            return read
        time.sleep(0.02)
    raise AssertionError(f"nothing began in {path}")


@pytest.mark.heavy
def test_after_kills_no_older_state_is_written_over_a_newer_one(tmp_path):
    (tmp_path / "train.py").write_text(COUNTS)
    words = (*WORDS, "--", sys.executable, "train.py", "{resume}")
    draw, reached = random.Random(4), 0
    for number, whom in enumerate(("parent", "child", "both"), 1):
        parent = start(tmp_path, *words)
        pid, began_at = map(int, wait_for(tmp_path / "began.txt", number)[-1].split())
        assert began_at >= reached
        time.sleep(draw.uniform(0.1, 0.6))
        for target in {"parent": [parent.pid], "child": [pid]}.get(whom, [parent.pid, pid]):
            os.kill(target, signal.SIGKILL)
        parent.communicate(timeout=60)
        for _ in range(3000):  # the command of a killed brimful gets SIGTERM
            if not Path(f"/proc/{pid}").exists():
                break
            time.sleep(0.02)
        reached = int((tmp_path / "count.txt").read_text() or 0)
        assert reached >= began_at
    (tmp_path / "ends").touch()
    last = start(tmp_path, *words)
    _, said = last.communicate(timeout=120)
    assert last.returncode == 0 and int((tmp_path / "count.txt").read_text()) >= 400
    assert "was cut off in attempt 1" in " ".join(said.split())
    assert "going on with --resume last" in " ".join(said.split())


# --- what a run that was cut off leaves, made by hand ---


@pytest.fixture
def cuts(tmp_path, monkeypatch):
    """cuts(*words, steps=…): a run of these words whose record has no end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import sys; print('started', *sys.argv[1:])")
    kept = RecordWriter.append

    def cut(*words: str, steps: int | None, report: bool = False, **more) -> None:
        def append(self, entry):
            if type(entry).__name__ not in ("Attempt", "RunEnded", "Closed"):
                kept(self, entry)

        with monkeypatch.context() as patch:
            patch.setattr(RecordWriter, "append", append)
            again(*words, **more)
        attempt = Path(newest().folder) / newest().run.going.folder
        for path in attempt.glob("*.jsonl"):
            path.unlink()
        if steps is not None:
            writer = wire.Writer(str(attempt), 1)
            writer.write(wire.ProcessStarted(1, "rank", 0, []))
            writer.write(wire.TorchImported("2.9"))
            writer.replace(wire.Progress("train", steps, 1.0))
            if report:
                writer.replace(replace(REPORT, resumes_itself=True))

    def again(*words: str, **more):
        user, settings = Notebook(), more.pop("settings", None)
        more = {"resume_with": "--resume last"} | more
        options = RunOptions(home=tmp_path / "home", watcher=user, **more)
        argv = [sys.executable, "train.py", *words]
        return user, run(argv, device="cpu", settings=settings, options=options)

    def newest():
        return read_record("latest", tmp_path / "home")

    cut.again, cut.newest = again, newest  # type: ignore[attr-defined]
    return cut


def test_a_script_that_says_that_it_resumes_by_itself_goes_on_without_words(cuts):
    cuts(steps=17, report=True, resume_with=None)
    user, record = cuts.again(resume_with=None)
    assert record.run.started.goes_on is not None and record.run.attempts[0].resumed
    assert "the script goes on from its own newest checkpoint" in " ".join(user.messages).lower()


def test_the_record_says_where_it_was_cut_off(cuts):
    cuts("{resume}", steps=17)
    record = cuts.newest()
    assert (record.run.going.number, record.run.going_steps) == (1, 17)
    assert headline(record).sentence == (
        "Interrupted in attempt 1 after 17 steps; brimful did not see it end."
    )
    (attempts,) = [part for part in sections(record) if part.title == "Attempts"]
    assert [cell.text for cell in attempts.rows[0]][1:4] == ["as given", "no end", "17"]


def test_what_the_processes_of_a_run_wrote_is_read_once_to_go_on(cuts, monkeypatch):
    cuts("{resume}", steps=17)
    read = []

    def reads(path):
        read.append(path)
        return read_wire_leniently(path)

    monkeypatch.setattr(record_module, "read_wire_leniently", reads)
    cuts.again("{resume}")
    assert read and len(read) == len(set(read))


def test_the_same_command_goes_on_and_says_so_and_so_does_the_one_after_it(cuts):
    cuts("{resume}", "--epochs", "3", steps=17)
    cuts("{resume}", "--epochs", "3", steps=0)  # this one had not come so far
    user, record = cuts.again("--epochs", "4", "{resume}")
    assert user.lines == ["started --epochs 4 --resume last"]
    assert record.run.attempts[0].resumed is True
    said = " ".join(user.messages)
    assert "was cut off in attempt 1 after 0 steps: going on with --resume last" in said
    user, _ = cuts.again("{resume}", "--epochs", "3")  # that one came to its end
    assert user.lines == ["started --epochs 3"]


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (("--seed", "1", "--lr", "0.1", "{resume}"), {"fresh": True}),
        (("--seed", "2", "--lr", "0.1", "{resume}"), {}),
        (("--seed", "1", "--lr", "0.1", "--deep", "{resume}"), {}),
        (("--seed", "1", "--lr", "0.2", "{resume}"), {}),
    ],
)
def test_another_training_and_a_fresh_one_begin_at_their_beginning(cuts, words, more):
    cuts("--seed", "1", "--lr", "0.1", "{resume}", steps=17)
    user, record = cuts.again(*words, **more)
    assert "last" not in user.lines[0] and record.run.started.goes_on is None


@pytest.mark.parametrize(("steps", "begins"), [(0, "started"), (None, "started --resume last")])
def test_a_run_that_made_no_step_is_begun_anew_and_one_of_which_nobody_knows_goes_on(
    cuts, steps, begins
):
    cuts("{resume}", steps=steps)
    assert cuts.again("{resume}")[0].lines == [begins]


def test_without_a_place_for_the_words_nothing_is_started(cuts, tmp_path):
    cuts(steps=17, resume_with=None)
    before = list_records(tmp_path / "home")
    with pytest.raises(UsageError) as caught:
        cuts.again(resume_with=None)
    assert "was cut off in attempt 1 after 17 steps, and the command has no {resume}" in str(
        caught.value
    )
    assert "--resume-with" in caught.value.suggestion and "--fresh" in caught.value.suggestion
    assert list_records(tmp_path / "home") == before
    assert cuts.again("{resume}")[0].lines == ["started --resume last"]


def test_the_smaller_batch_size_of_the_run_before_stays_in_force(cuts):
    source = "import sys\nprint(*sys.argv[1:])\nif int(sys.argv[1]) > 40: raise MemoryError"
    Path("train.py").write_text(source)
    user, record = cuts.again("{batch_size}", "{resume}", settings={"batch_size": 64})
    assert user.lines == ["64", "32 --resume last"]
    path = Path(record.folder) / "record.jsonl"
    ends = ('"entry":"run_ended"', '"entry":"closed"')
    lines = [line for line in path.read_text().splitlines() if not any(end in line for end in ends)]
    path.write_text("\n".join(line for line in lines) + "\n")
    user, record = cuts.again("{batch_size}", "{resume}", settings={"batch_size": 64})
    assert user.lines == ["32 --resume last"]
    assert "in force when the previous run was cut off" in record.run.attempts[0].settings[0].why
    cuts("{batch_size}", "{resume}", steps=3, settings={"batch_size": 20})
    user, _ = cuts.again("{batch_size}", "{resume}", settings={"batch_size": 24})
    assert user.lines == ["24 --resume last"]  # what the user asks for now


@pytest.mark.parametrize(
    ("ending", "outcome", "begins"),
    [
        ("os.kill(os.getpid(), 9)", Outcome.KILLED, "train.py --resume last"),
        (
            "raise OSError(24, 'Too many open files')",
            Outcome.NO_FILE_DESCRIPTORS,
            "train.py --resume last",
        ),
        ("raise OSError(28, 'No space')", Outcome.FULL_DISK, "train.py --resume last"),
        ("sys.exit(3)", Outcome.CRASHED, "train.py"),
    ],
    ids=["killed", "no more open files", "no more room", "an error of the script's own"],
)
def test_a_run_that_was_killed_or_had_no_more_of_something_goes_on_and_after_an_error_begins_anew(
    cuts, ending, outcome, begins
):
    Path("train.py").write_text(f"import os, sys\nprint(*sys.argv, flush=True)\n{ending}")
    _, record = cuts.again("{resume}")
    assert record.run.ended.outcome is outcome
    assert cuts.again("{resume}")[0].lines == [begins]


@pytest.mark.parametrize(
    ("number", "outcome"),
    [(signal.SIGTERM, Outcome.TERMINATED), (signal.SIGINT, Outcome.INTERRUPTED)],
)
def test_a_run_that_was_told_to_end_goes_on_as_after_a_kill(cuts, number, outcome):
    Path("train.py").write_text(
        "import os, sys, time\nprint(*sys.argv)\n"
        f"os.kill(os.getppid(), {int(number)})\ntime.sleep(60)"
    )
    _, record = cuts.again("{resume}")
    assert record.run.ended.outcome is outcome
    Path("train.py").write_text("import sys; print(*sys.argv)")
    user, _ = cuts.again("{resume}")
    assert user.lines == ["train.py --resume last"]
    assert f"was cut off in attempt 1 ({outcome})" in " ".join(user.messages)
    assert cuts.again("{resume}")[0].lines == ["train.py"], "that one came to its end"


def test_without_words_to_resume_a_run_that_ctrl_c_ended_is_begun_anew_and_says_so(cuts):
    Path("train.py").write_text(
        "import os, signal, time\nos.kill(os.getppid(), signal.SIGINT)\ntime.sleep(60)"
    )
    cuts.again(resume_with=None)
    Path("train.py").write_text("import sys; print(*sys.argv)")
    user, record = cuts.again(resume_with=None)
    assert user.lines == ["train.py"] and record.run.started.goes_on is None
    assert "was cut off in attempt 1 (interrupted): started again" in " ".join(user.messages)


def test_what_fails_before_its_first_step_is_to_go_on_again_and_a_missing_checkpoint_is_guessed(
    cuts,
):
    cuts("{resume}", steps=17)
    Path("train.py").write_text("import sys; print(*sys.argv); raise FileNotFoundError('last.pt')")
    user, _ = cuts.again("{resume}")
    assert "Perhaps the run that was cut off had written no checkpoint yet" in str(user.messages)
    Path("train.py").write_text("import sys; print(*sys.argv)")
    assert cuts.again("{resume}")[0].lines == ["train.py --resume last"]


def test_a_second_run_is_refused_while_the_first_one_lives(cuts, tmp_path, monkeypatch):
    Path("train.py").write_text("import time; print('x', flush=True); time.sleep(60)")
    words = (*WORDS, "--", sys.executable, "train.py", "{resume}")
    first = start(tmp_path, *words)
    try:
        assert first.stdout is not None and first.stdout.readline() == "x\n"
        with pytest.raises(UsageError, match=f"still going on .process {first.pid}"):
            cuts.again("{resume}")
    finally:
        first.terminate()
        first.communicate(timeout=60)


def test_a_command_that_outlived_brimful_is_named(cuts, tmp_path, monkeypatch):
    monkeypatch.setattr(run_before, "LEFTOVERS_S", 0.2)
    cuts("{resume}", steps=17)
    attempt = (Path(cuts.newest().folder) / "attempt-001").resolve()
    variables = environment(tmp_path / "home") | {
        "BRIMFUL_TRIAL_CONFIG": str(attempt / "trial_config.json")
    }
    with subprocess.Popen(["sleep", "60"], env=variables) as orphan:
        try:
            # Popen returns a moment before Linux shows the environment of what it started.
            while not Path(f"/proc/{orphan.pid}/environ").read_bytes():
                time.sleep(0.01)
            with pytest.raises(UsageError, match=f"processes still run: {orphan.pid}"):
                cuts.again("{resume}")
        finally:
            orphan.kill()
