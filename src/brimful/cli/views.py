"""What each command prints: one JSON object on standard output, or a screen for people. Progress
goes to standard error.
"""

import errno
import io
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.live import Live

from brimful import codec, files
from brimful.errors import BrimfulError, DiskFull, PartMissing, UsageError
from brimful.record import read_record
from brimful.show import console, monitor_sections
from brimful.show.headline import planned_batch_size
from brimful.show.machine_sections import calibration_sections, doctor_sections, gpu_sections
from brimful.show.markdown import render_markdown
from brimful.show.progress import PLAIN_EVERY_S, Progress, RunProgress
from brimful.show.queues import queue_text, request_facts
from brimful.show.section import Section
from brimful.units import printable
from brimful.values import QueueRequest, Record, Status, Verdict

DOES_NOT_FIT = 3
_NO_WIDTH = 10_000
_LOOK_EVERY_S = 2.0  # reading it takes some hundredths of a second


def say(text: str, stream: TextIO | None = None) -> None:
    """A line on standard error, or on `stream`."""
    print(printable(text), file=stream or sys.stderr, flush=True)


def progress() -> Progress:
    """Progress on standard error, so that standard output stays data."""
    return Progress(sys.stderr, sys.stderr.isatty())


def run_progress(json: bool) -> RunProgress:
    """With --json the command's standard output goes to standard error, since standard output is
    data.
    """
    out = sys.stderr if json else sys.stdout
    streams = {"stdout": out, "stderr": sys.stderr}
    terminals = {name: stream.fileno() for name, stream in streams.items() if stream.isatty()}
    return RunProgress(
        getattr(out, "buffer", io.BytesIO()), sys.stderr, terminals, live="stderr" in terminals
    )


def show_prediction(record: Record, json: bool, full: bool = False) -> int:
    assert record.prediction is not None  # the verb returns no record without one
    interrupted = _show(record, full, record.prediction if json else None)
    for file in record.prediction.written:
        say(f"Written: {file.path}: {file.what}; {file.how}")
    return interrupted or (0 if record.prediction.verdict == Verdict.FITS else DOES_NOT_FIT)


def show_request(
    record: Record, request: QueueRequest, queue: str | None, json: bool, full: bool = False
) -> int:
    """What to ask for, alone on standard output: lines for a queue to paste, or plain words."""
    text = None if queue is None else queue_text(request, queue)
    if full:
        console.show_record(console.make_console(sys.stderr), record)
    if json:
        say(codec.answer(request, text=text, record=record.folder), sys.stdout)
    elif text is not None:
        say(text, sys.stdout)
    else:
        console.show_sections(console.make_console(), [request_facts(request)])
    say(f"Record: {record.folder}")
    return 0


def show_audit(record: Record, json: bool, full: bool = False) -> int:
    return _show(record, full, record.audit if json else None)


def show_plan(record: Record, json: bool, full: bool = False) -> int:
    return _show(
        record,
        full,
        record.plan if json else None,
        page=True,
        batch_size=planned_batch_size(record),
        device=record.opened.device.label if record.opened.device else None,
        budget=record.opened.budget,
        memory=record.memory,
        speed=record.speed,
        notes=record.notes,
        # the record keeps the reports
        trial_results=[replace(trial, reports=()) for trial in record.trials],
    )


def show_comparison(record: Record, json: bool, full: bool = False) -> int:
    return _show(record, full, record.comparison if json else None, page=True)


def show_check(record: Record, json: bool, markdown: bool) -> int:
    """What became of the jobs."""
    if not markdown or json:
        return _show(record, False, record.check if json else None)
    print(render_markdown(record), end="")
    return record.closed.exit_code if record.closed is not None else 0


def show_run(record: Record, json: bool) -> int:
    """How the run ended. Standard output is the command's own: the screen goes to standard
    error.
    """
    run = record.run
    assert run is not None and run.ended is not None
    if json:
        attempts = [replace(attempt, reports=(), course=()) for attempt in run.attempts]
        _show(record, False, run, attempts=attempts, notes=record.notes)
    else:
        said = replace(record, notes=())  # each was said when it was noted
        console.show_record(console.make_console(sys.stderr), said, full=False)
        say(f"Record: {record.folder}")
    return run.ended.exit_code


def _show(record: Record, full: bool, value: Any, page: bool = False, **more: Any) -> int:
    """Prints `value` and `more` as JSON, with the record and the flags in which settings were
    found; None: the screen. `page`: whether the page is written.
    Returns the exit code of the record: 130 of what an interrupted search found so far.
    """
    code = record.closed.exit_code if record.closed is not None else 0
    if value is not None:
        if page:
            more["page"] = _page(record)
        command = record.opened.command
        print(
            codec.answer(
                value,
                **more,
                record=record.folder,
                found_flags=command.found_flags if command else {},
            )
        )
        return code
    console.show_record(console.make_console(), record, full)
    hint = "" if full else " (more: --details, or `brimful report` for a page)"
    say(f"Record: {record.folder}{hint}")
    if page and (written := _page(record)):
        say(f"Page: {written}")
    return code


def _page(record: Record) -> Path | None:
    """The page in the record's folder; None, and a line that says why, where it cannot be made: the
    answer does not hang on it.
    """
    try:
        return write(record, "html", None)
    except BrimfulError as error:
        say(f"The page is left out: {error.problem}")
        return None


def show_report(
    name: str | None, out: Path | None, format: str, home: Path | None, json: bool
) -> int:
    record = read_record(name or "latest", home)
    written = None
    try:
        if format != "text" or out is not None or json:
            written = write(record, format, out)
    except PartMissing as error:
        if out is not None:
            raise
        say(f"The page is left out: {error.problem}")
    if written is None and not json:
        console.show_record(console.make_console(), record)
        return 0
    answer = codec.answer(record=record.folder, page=written, format=format)
    say(answer if json else str(written), sys.stdout)
    return 0


def write(record: Record, format: str, out: Path | None) -> Path:
    """Writes a record as html or md and answers where. Raises UsageError, DiskFull."""
    if format == "html":
        try:
            from brimful.show.html import render_page as render
        except ImportError as error:
            raise PartMissing("a page", error, "install it, or use --format text") from error
    elif format == "md":
        render = render_markdown
    elif format == "text":
        render = console.render_text
    else:
        raise UsageError(
            problem=f"--format {format}",
            explanation="a report is html, md or text",
            suggestion="give one of them",
        )
    path = out or Path(record.folder) / f"report.{format}"
    content = render(record).encode(errors="backslashreplace")
    try:
        if out is not None:
            files.write_named(path, content)
        elif files.is_own_folder(path.parent):
            files.replace(path, content)
        else:
            raise PermissionError(errno.EPERM, "the record is another user's, or behind a link")
    except OSError as error:
        if DiskFull.caused(error):
            raise DiskFull(str(path), kept="the record itself") from error
        raise UsageError(
            problem=f"{path} could not be written: {error.strerror}",
            suggestion="name another place with --out",
        ) from error
    return path


def show_monitor(read: Callable[[], Status], once: bool, json: bool) -> int:
    """How it stands: once, or live on a terminal; off one, a line every few seconds until its
    end."""
    if not (once or json) and sys.stdout.isatty():
        with suppress(KeyboardInterrupt):
            watch(read, console.make_console())
        return 0
    while True:
        status, screen = read(), console.make_console()
        if json:
            say(codec.answer(status), sys.stdout)
        elif once:
            screen.print(monitor_sections.draw(status, screen.width))
        else:
            say(monitor_sections.line(status), sys.stdout)
        if once or json or status.message is not None:
            return 0
        time.sleep(PLAIN_EVERY_S)


def watch(read: Callable[[], Status], to: Console) -> None:
    """Draws on the whole terminal until the run ends; its last screen stays."""
    with Live(console=to, screen=True, auto_refresh=False) as live:
        while True:
            status = read()
            last = monitor_sections.draw(status, to.width)
            live.update(last, refresh=True)
            if status.message is not None:
                break
            time.sleep(_LOOK_EVERY_S)
    to.print(last)


def show_gpus(json: bool, prices: Path | None) -> int:
    from brimful.measure.gpus import CARDS
    from brimful.measure.gpus import prices as kept
    from brimful.measure.gpus.calibrations import calibrated

    if prices is not None:
        say(f"Prices: kept in {kept.keep(prices)}")
    cards, per_hour = tuple(calibrated(gpu) for gpu in CARDS), kept.prices()
    _print(json, gpu_sections(cards, per_hour), codec.answer(gpus=cards, prices_per_h=per_hour))
    return 0


def show_doctor(json: bool, calibrate: bool = False) -> int:
    from brimful.verbs import doctor

    if calibrate:
        measured, path = doctor.calibrate()
        _print(json, calibration_sections(measured, str(path)), codec.answer(measured, file=path))
    else:
        machine, findings = doctor.doctor()
        answer = codec.answer(machine=machine, findings=findings)
        _print(json, doctor_sections(machine, findings), answer)
    return 0


def show_bundle(home: Path | None, json: bool) -> int:
    """What the archive holds, then, unless a person at the terminal says no, the archive."""
    from brimful.verbs import bundle

    path, parts = bundle.contents(home)
    for name, content in parts.items():
        say(f"{len(content):>9,} bytes  {name}")
    if sys.stdin.isatty() and sys.stderr.isatty() and not json:
        say(f"No output of your script but the end of its errors. Write {path}? [y/N]")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            return 0
    bundle.write(path, parts)
    sizes = {name: len(content) for name, content in parts.items()}
    say(codec.answer(file=path, bytes=sizes) if json else f"Written: {path}", sys.stdout)
    return 0


def _print(json: bool, sections: list[Section], answer: str) -> None:
    if json:
        print(answer)
    else:
        console.show_sections(console.make_console(), sections)


def show_error(error: BrimfulError, json: bool) -> None:
    """The sentences on standard error, the script's own traceback before them; with --json the same
    as data.
    """
    # paths and messages in a log stay in one piece
    width = None if sys.stderr.isatty() else _NO_WIDTH
    console.show_error(console.make_console(sys.stderr, width), error)
    if json:
        names = ("code", "exit_code", "problem", "explanation", "suggestion")
        print(codec.answer(error={name: getattr(error, name) for name in names}))
