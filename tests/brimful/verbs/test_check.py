"""`check` in worlds whose memory is known: baselines, growth, and what is wrong with a file."""

import itertools
import json
import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest

from brimful.cli import app
from brimful.errors import BrimfulError, UsageError
from brimful.show.headline import headline
from brimful.show.markdown import render_markdown
from brimful.trials import session
from brimful.values import Outcome, Record
from brimful.verbs.check import FILE, LOCK, check
from brimful_inside.simulator.trace import At, Backward, Free, Malloc, Phase, Site, Step
from tests.brimful.verbs.world import MIB, World, work

JOBS = """
[jobs.gpt]
command = "my-train --batch-size 64"
gpu = "a100-40gb"
"""
TWO = JOBS + JOBS.replace("gpt", "wide").replace("64", "128")


@dataclass
class Blocks(World):
    """A block of it keeps so much for each sample until the backward pass."""

    line: int = 88

    def rows(self, size: int) -> list:
        where = f"train.py:{self.line} in forward: x = self.mlp(x)"
        rows = [
            Site(0, "", "train.py:9 in main: model = Net().cuda()"),
            Site(1, "blocks.3.mlp", where, "forward", "Net"),
            *(At(0), Malloc(1, self.fixed, "aten.randn"), Phase("train")),
        ]
        for step in (1, 2):
            rows += [At(1), Malloc(10 + step, self.linear * size, "aten.mm"), Backward(True)]
            rows += [Backward(False), Free(10 + step), Step(step)]
        return rows


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text(JOBS)
    return tmp_path


def checked(world: World | None = None, *names: str, update: bool = False) -> Record:
    return work(world or Blocks(), check, names, update=update)


def code(record: Record) -> int:
    return record.closed.exit_code


def refused(*names: str) -> BrimfulError:
    with pytest.raises(BrimfulError) as error:
        checked(None, *names)
    return error.value


def test_the_same_command_is_as_its_baseline_and_the_file_is_not_changed(folder: Path):
    assert code(checked(update=True)) == 0
    lock = (folder / LOCK).read_text()
    again = checked(Blocks(line=97))
    assert code(again) == 0 and again.check is not None
    assert [(row.before, row.passed) for row in again.check.jobs[0].judged if row.limit] == [
        (again.check.jobs[0].judged[0].now, False)
    ]
    assert headline(again).sentence == "1 job passes the limits in brimful.toml."
    assert code(checked(Blocks(line=97), update=True)) == 0
    assert (folder / LOCK).read_text() == lock, "a line that only moved changes nothing"
    assert str(folder) not in lock and json.loads(lock)["jobs"]["gpt"]["torch"] == "2.13.0"
    assert '"modules": ["blocks.3.mlp"], "where": "train.py in forward: x = self.mlp(x)"}' in lock


def test_what_grew_is_named_with_its_module_category_and_line_and_ends_with_3(folder: Path):
    checked(update=True)
    record = checked(Blocks(linear=4 * MIB, line=90))
    assert code(record) == 3
    assert (
        "at most +2 %. +192 MiB: activations of blocks.3.mlp, train.py:90."
        in headline(record).sentence
    )
    text = render_markdown(record)
    assert "| gpt | device peak | " in text and "| +2 % | too much |" in text
    assert "+192 MiB: activations of blocks.3.mlp, train.py:90 in forward: x = self.mlp(x)" in text
    assert "baseline" not in "".join(record.check.jobs[0].notes)


def test_a_check_took_the_time_of_all_its_jobs(monkeypatch: pytest.MonkeyPatch):
    now = itertools.count(1_000_000.0)
    monkeypatch.setattr(session.time, "time", lambda: next(now))
    record = checked(update=True)
    assert record.opened.started_unix_s == 1_000_000.0, "before the trials of its jobs"
    # the prediction's record was opened and closed in between
    assert record.closed.finished_unix_s - record.opened.started_unix_s == 3.0


def test_a_job_whose_command_fails_ends_with_5_and_the_others_are_judged(folder: Path):
    (folder / FILE).write_text(TWO)
    checked(update=True)
    lock = (folder / LOCK).read_text()
    world = Blocks(
        linear=4 * MIB,
        outcome_of=lambda trial, size: Outcome.CRASHED if size > 64 else None,
    )
    record = checked(world)
    assert code(record) == 5
    gpt, wide = record.check.jobs
    assert (gpt.exit_code, wide.exit_code) == (3, 5)
    [sentence] = wide.failed
    assert "; " in sentence and f"wide: {sentence}." in headline(record).sentence
    assert code(checked(world, update=True)) == 5
    assert (
        json.loads((folder / LOCK).read_text())["jobs"]["wide"] == json.loads(lock)["jobs"]["wide"]
    )


def test_a_job_that_does_not_fit_is_no_job_that_fails(folder: Path):
    (folder / FILE).write_text(JOBS.replace("64", "64000").replace("a100-40gb", "t4"))
    record = checked(Blocks(dataset=None), update=True)
    assert code(record) == 3 and "gpt: it does not fit." in headline(record).sentence
    may = JOBS.replace("64", "64000").replace("a100-40gb", "t4") + "must_fit = false\n"
    (folder / FILE).write_text(may)
    assert code(checked(Blocks(dataset=None))) == 0


def test_a_finding_that_is_forbidden_fails(folder: Path):
    (folder / FILE).write_text(JOBS + 'no_findings = ["hidden-cap"]\n')
    assert code(checked(Blocks(), update=True)) == 0
    record = checked(Blocks(cap=2))
    assert code(record) == 3 and "(hidden-cap)" in headline(record).sentence


def test_names_choose_jobs_and_leave_the_baselines_of_others(folder: Path):
    (folder / FILE).write_text(TWO)
    assert "job gpt has no baseline" in refused().problem
    checked(None, "wide", update=True)
    assert list(json.loads((folder / LOCK).read_text())["jobs"]) == ["wide"]
    assert code(checked(None, "wide")) == 0
    assert refused("gpt").suggestion.endswith("brimful check --update gpt")
    checked(update=True)
    before = (folder / LOCK).read_text()
    checked(None, "wide", update=True)
    assert (folder / LOCK).read_text() == before
    (folder / FILE).write_text(JOBS)
    checked(update=True)
    assert list(json.loads((folder / LOCK).read_text())["jobs"]) == ["gpt"], "that job is gone"


def test_a_job_may_stand_in_pyproject_and_its_settings_in_a_table(folder: Path):
    (folder / FILE).unlink()
    job = 'command = ["my-train", "--batch-size", "{batch_size}"]\ngpu_memory = "20GiB"\n'
    (folder / "pyproject.toml").write_text(
        f"[project]\nname = 'x'\n[tool.brimful.jobs.gpt]\n{job}set = {{ batch_size = 64 }}\n"
    )
    record = checked(update=True)
    assert code(record) == 0 and record.check.source == "pyproject.toml"
    assert json.loads((folder / LOCK).read_text())["jobs"]["gpt"]["batch_size"] == 64


@pytest.mark.parametrize(
    ("text", "problem", "suggestion"),
    [
        (JOBS + 'peak_devise = "+2 %"', "job gpt: peak_devise is not a key", "peak_device?"),
        (JOBS.replace("[jobs.", "[job."), "job is not a table", "did you mean jobs?"),
        (JOBS + "must_fit = 1", "Expected `bool`, got `int`", "for instance"),
        (JOBS.replace('"my-train', '"my-train \\"'), "No closing quotation", "for instance"),
        (JOBS.replace('"my-train --batch-size 64"', "[]"), "one without a command", "instance"),
        (JOBS.replace("command", "# command"), "missing required field `command`", "instance"),
        (JOBS.replace("64", "{batch_size}"), "leaves its batch size open", "set = {"),
        (JOBS.replace("a100-40gb", "l4,t4"), "names several cards", "a job of each"),
        (JOBS.replace("gpu =", "gpu"), "brimful.toml cannot be read", "for instance"),
        ("[jobs]\n", "it has no jobs", "for instance"),
        ("jobs = 3\n", "brimful.toml cannot be read", "for instance"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_before_anything_runs(
    folder: Path, text: str, problem: str, suggestion: str
):
    (folder / FILE).write_text(text)
    error = refused()
    assert isinstance(error, UsageError)
    assert problem in error.problem and suggestion in error.suggestion


def test_no_file_an_unknown_job_and_a_damaged_baseline_have_a_sentence_each(folder: Path):
    assert refused("gpr").suggestion == "did you mean gpt?"
    for text in ("{", '{"schema": 99, "jobs": {}}', '<<<<<<< HEAD\n{"schema": 1'):
        (folder / LOCK).write_text(text)
        assert f"{LOCK} cannot be read" in refused().problem
    (folder / FILE).unlink()
    error = refused()
    assert (
        "there is neither brimful.toml here" in error.problem and "[jobs.train]" in error.suggestion
    )


def test_a_baseline_that_cannot_be_written_has_a_sentence(folder: Path, monkeypatch):
    (folder / LOCK).mkdir()
    assert f"{LOCK} cannot be read" in refused().problem
    (folder / LOCK).rmdir()
    (folder / LOCK).symlink_to("gone/away.json")
    checked(update=True)
    assert not (folder / LOCK).is_symlink(), "a link that somebody committed is not followed"

    def refuses(path, content, mode=0):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("brimful.files.replace", refuses)
    with pytest.raises(UsageError, match="could not be written: Permission denied"):
        checked(update=True)


def test_a_folder_gets_the_predicted_run_of_each_job_for_the_memory_viewer(folder: Path):
    (folder / "file").touch()
    with pytest.raises(UsageError, match="the folder file/runs cannot be made: Not a directory"):
        work(Blocks(), check, (), update=True, snapshot=Path("file/runs"))
    record = work(Blocks(), check, (), update=True, snapshot=Path("runs/main"))
    files = [f"{job.name}.pickle" for job in record.check.jobs]
    assert sorted(path.name for path in (folder / "runs" / "main").iterdir()) == sorted(files)
    assert pickle.loads((folder / "runs" / "main" / files[0]).read_bytes())["segments"]


def test_the_command_line_prints_a_screen_markdown_or_data(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("BRIMFUL_HOME", str(folder / "home"))
    monkeypatch.setattr(session, "run_trial", Blocks().launch)
    assert app.run(["check"]) == 2
    assert "brimful check --update gpt" in capfd.readouterr().err
    assert app.run(["check", "--update"]) == 0
    assert "brimful.lock.json is written" in capfd.readouterr().out
    assert app.run(["check", "gpt", "--markdown"]) == 0
    assert capfd.readouterr().out.startswith("**brimful check**: 1 job passes")
    monkeypatch.setattr(session, "run_trial", Blocks(linear=4 * MIB).launch)
    assert app.run(["check", "--json"]) == 3
    [job] = json.loads(capfd.readouterr().out)["jobs"]
    assert job["judged"][0]["passed"] and job["grown"][0]["modules"] == ["blocks.3.mlp"]
    assert app.run(["report", "latest", "--format", "md"]) == 0
    assert app.run(["check", "--", "python"]) == 2
