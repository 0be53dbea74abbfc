"""What every verb shares: an open record, a device, and trials that are numbered, shown and kept as
they happen.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from brimful import command as commands
from brimful import masking
from brimful.codec import SCHEMA, Entry
from brimful.decide.batch_size_place import AUTO
from brimful.errors import STOPS, BrimfulError, DiskFull, Interrupted, Terminated, TimeIsUp
from brimful.measure import carry_over, host, kept_files, sources
from brimful.measure.shared_imports import SharedImports
from brimful.measure.trial import run_trial
from brimful.outcomes import OUT_OF_MEMORY, OUTCOMES
from brimful.record import RecordWriter, new_record_id, record_home, replay
from brimful.units import counted, format_duration
from brimful.values import (
    Budget,
    Closed,
    Command,
    Device,
    Diagnostic,
    Objective,
    Opened,
    Outcome,
    Plan,
    Prediction,
    Record,
    Setting,
    Trial,
    TrialResult,
)
from brimful.watcher import Watcher

PARTIAL = "partial"  # the code of what is said of an answer that was cut short
_NOT_OF_DATA = ("batch_size", "eval_batch_size", "accumulation", "num_workers", "lr")


@dataclass(frozen=True)
class Options:
    """What the verbs that run trials have in common."""

    home: Path | None = None  # where records live; None: BRIMFUL_HOME, else .brimful here
    budget: str | None = None  # "90%" of what is free, or bytes: "20GiB"
    max_batch_size: int | None = None
    # Of one trial, where nothing is searched for; of all trials of `tune`.
    time_limit_s: float | None = None
    steps: int | None = None  # measured steps of a trial; None: as the verb needs
    # `decide.batch_size_place`: "auto", "flag", "script", "loader" or "none".
    batch_size_from: str = AUTO
    reach: tuple[str, ...] = ()  # "train.py:88": lines that each trial is to come to
    watcher: Watcher = field(default_factory=Watcher)


class Session:
    """One verb at work. Use `opened`; `run` gives results; everything is in the record at once."""

    def __init__(self, writer: RecordWriter, options: Options):
        self.writer, self.folder, self.opened = writer, writer.folder, writer.opened
        self.options = options
        self.results: list[TrialResult] = []
        self.entries: list[Entry] = [writer.opened]
        self.started = time.monotonic()
        self.limits_the_whole = False  # --time-limit is of all trials together
        self.imports = SharedImports(self.folder / "imports")
        self.failed_unforked: set[Outcome] = set()  # how trials failed with a fork and without one
        self.exit_code = 0  # of a verb that ends without an error
        self.stop: BaseException | None = None  # what cut the work short: no trial runs after it
        self.outlives_a_full_disk = False  # what goes on matters more than its record
        self._disk_is_full = False

    def run(
        self,
        trial: Trial,
        expected_total: int | None = None,
        named: Callable[[TrialResult], TrialResult] = lambda result: result,
    ) -> TrialResult:
        """One trial, kept in the record; `named` adds what is known at its end alone. Raises
        Interrupted or Terminated after the record has it, TimeIsUp where the time of all trials is
        up, and what cut the work short before; other outcomes are the caller's."""
        if self.stop is not None:
            raise self.stop
        try:
            return self._run(trial, expected_total, named)
        except STOPS as stop:
            self.stop = stop
            raise

    def _run(
        self,
        trial: Trial,
        expected_total: int | None,
        named: Callable[[TrialResult], TrialResult],
    ) -> TrialResult:
        trial, was_last = self._in_time(trial)
        number, watcher = len(self.results) + 1, self.options.watcher
        watcher.trial_started(trial, number, expected_total)
        result = named(
            self._one_result(trial, number, None)
            if expected_total == 1
            else self._result(trial, number, expected_total)
        )
        self.results.append(result)
        self.keep(result)
        watcher.trial_ended(result)
        if told_to_end := OUTCOMES[result.outcome].told_to_end:
            what = f"{OUTCOMES[result.outcome].text} in the middle of a trial"
            raise told_to_end(what, f"the record is kept in {self.folder}")
        if result.outcome is Outcome.TIMED_OUT and was_last:
            raise self._time_is_up()
        return result

    def _result(self, trial: Trial, number: int, expected_total: int | None) -> TrialResult:
        """Where a process that was forked with its imports fails as no unforked one has, an
        unforked one shows whether the fork is the reason. The files of the forked one stay beside
        it."""
        result = self._one_result(trial, number, self.imports)
        fine = result.outcome in (
            Outcome.COMPLETED,
            *OUT_OF_MEMORY,
            *self.failed_unforked,
        )
        # of a trial that may take only so much of this computer none is made again
        hangs = trial.host_limit_bytes is None and not any(
            report.steps for report in result.reports
        )
        fine = fine or OUTCOMES[result.outcome].told_to_end is not None
        if not self.imports.forked or fine or (result.outcome is Outcome.TIMED_OUT and not hangs):
            return result
        folder = self.writer.trial_folder(number)
        folder.rename(folder.with_name(f"{folder.name}-forked"))
        self.options.watcher.trial_started(trial, number, expected_total)  # its time begins anew
        again = self._one_result(self._in_time(trial)[0], number, None)
        if again.outcome is result.outcome:
            self.failed_unforked.add(again.outcome)
        else:
            self.imports.stop_using()
        return again

    def _one_result(self, trial: Trial, number: int, imports: SharedImports | None) -> TrialResult:
        folder = self.writer.trial_folder(number)
        data = _of_data(trial)
        same_data = [result for result in self.results if _of_data(result.trial) == data]
        carry_over.carry_over_files(same_data, self.folder, folder)
        scans = carry_over.scan_files(self.results, self.folder)
        return run_trial(
            trial, folder, self.folder, self.options.watcher.trial_progress, scans, imports
        )

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    def _in_time(self, trial: Trial) -> tuple[Trial, bool]:
        """The trial with its time limit, and whether that is what is left of all trials' time."""
        limit_s = self.options.time_limit_s
        if limit_s is None or not self.limits_the_whole:
            return replace(trial, time_limit_s=limit_s or trial.time_limit_s), False
        left_s = limit_s - self.elapsed_s
        if left_s <= 0:
            raise self._time_is_up()
        # The first may take all that the user allows, for imports or data; how long others take
        # it then shows.
        longest_s = max((result.duration_s for result in self.results), default=left_s)
        own_s = max(trial.time_limit_s, 2 * longest_s)
        return replace(trial, time_limit_s=min(own_s, left_s)), left_s <= own_s

    def _time_is_up(self) -> TimeIsUp:
        return TimeIsUp(
            f"the time limit of {format_duration(self.options.time_limit_s or 0.0)} was up before "
            f"any {'settings' if self.opened.verb == 'tune' else 'size'} could be named",
            f"{counted(len(self.results), 'trial')} ran; the record is kept in {self.folder}",
            "allow more with --time-limit, or let the script begin to train sooner (a smaller "
            "data set, a cache)",
        )

    def ended_early(self, stop: BaseException) -> str:
        """What ended a search of which something is known; the verb then runs no more trials, and
        ends with the exit code of that.
        """
        self.stop = stop
        if not isinstance(stop, TimeIsUp):
            self.exit_code = getattr(stop, "exit_code", Interrupted.exit_code)
        ended = "the time limit was up" if isinstance(stop, TimeIsUp) else "interrupted"
        return f"{ended} after {counted(len(self.results), 'trial')}"

    def partial(self, stop: BaseException, left_out: str, known: str = "") -> Diagnostic:
        """What to say where this cut the work short: what was left out, and what is known."""
        again = "allow more with --time-limit" if isinstance(stop, TimeIsUp) else "ask again"
        return Diagnostic(PARTIAL, f"{self.ended_early(stop)}: {left_out}", known, again)

    def keep(self, entry: Entry) -> None:
        """On the disk and in `record`, a plan or prediction with the files that it was found with.
        Raises DiskFull, but where the work matters more than its record; `record` has the entry
        even so."""
        if isinstance(entry, Plan | Prediction) and self.opened.command is not None:
            entry = replace(
                entry,
                sources=sources.digests(commands.signature(self.opened.command), self.results),
            )
        self.entries.append(entry)
        if self._disk_is_full:
            return
        try:
            self.writer.append(entry)
        except DiskFull as error:
            if not self.outlives_a_full_disk:
                raise
            self._disk_is_full = True
            self.message(
                f"{error.problem} The run goes on; its record stays as it is. {error.suggestion}"
            )

    def note(self, advice: Diagnostic, said: Diagnostic | None = None) -> None:
        """Keeps and says it: in full the first time, the problem alone where it repeats. `said`:
        what is said of it, where the record has more."""
        repeats = advice in self.entries
        self.keep(advice)
        said = said or advice
        parts = [said.problem, *(() if repeats else (said.explanation, said.suggestion))]
        self.message(" ".join(map(_sentence, filter(None, parts))))

    def message(self, text: str) -> None:
        self.options.watcher.message(masking.text(text))

    def record(self) -> Record:
        return replay(map(masking.value, self.entries), self.folder)


def _sentence(text: str) -> str:
    """With a capital, but where it begins with the name of a setting or an option."""
    first = text.split(maxsplit=1)[0].rstrip(",:;")
    return f"{text[0].upper() if first.isalpha() else text[0]}{text[1:].rstrip('.')}."


def _of_data(trial: Trial) -> dict[str, Setting]:
    """The settings by which a script may prepare its data."""
    return {name: value for name, value in trial.settings.items() if name not in _NOT_OF_DATA}


@contextmanager
def opened(
    verb: str,
    command: Command | None,
    device: Device | None,
    options: Options,
    budget: Budget | None = None,
    objective: Objective | None = None,
    started_unix_s: float | None = None,
) -> Iterator[Session]:
    """A session with an open record, closed with the exit code of whatever ends it.
    `started_unix_s`: where the call did its work before it opened the record; now if absent."""
    masking.learn(command.argv if command else ())
    entry = Opened(
        schema=SCHEMA,
        record_id=new_record_id(verb, command),
        verb=verb,
        brimful_argv=tuple(sys.argv),
        command=command,
        device=device,
        machine=host.machine(),
        started_unix_s=time.time() if started_unix_s is None else started_unix_s,
        budget=budget,
        objective=objective,
        working_folder=os.getcwd(),
    )
    kept_files.mask_cut_off(record_home(options.home))
    session = Session(RecordWriter.create(record_home(options.home), entry), options)
    if command is not None:
        _report_flags(session, command)
    try:
        yield session
    except KeyboardInterrupt as error:
        session.keep(Closed(Interrupted.exit_code, time.time(), "interrupted"))
        raise Interrupted("interrupted", f"the record is kept in {session.folder}") from error
    except BrimfulError as error:
        if isinstance(error, Terminated) and not error.explanation:
            error.explanation = f"the record is kept in {session.folder}"
        session.keep(Closed(error.exit_code, time.time(), error.problem))
        raise
    except BaseException as error:
        session.keep(Closed(1, time.time(), f"{type(error).__name__}: {error}"))
        raise
    else:
        session.keep(Closed(session.exit_code, time.time()))
    finally:
        session.imports.close()
        kept_files.mask(session.folder / "imports")
        session.writer.close()


def _report_flags(session: Session, command: Command) -> None:
    """Reports, where no placeholder stood, which flag brimful took for which setting."""
    for name, flag in command.found_flags.items():
        times = commands.times_given(command, flag)
        last = ""
        if times > 1:
            last = f"; it stands there {times} times, and the last one counts, as in argparse"
        value = f"({command.given.get(name)}{last})"
        session.message(f"{name}: brimful sets the value behind {flag} in your command {value}")
