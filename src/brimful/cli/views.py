"""What each command prints: one JSON object on standard output, or a screen for people. Talk goes to standard error."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brimful import codec
from brimful.errors import BrimfulError, DiskFull, UsageError
from brimful.show import as_json, console
from brimful.show.progress import Progress
from brimful.values import Record

DOES_NOT_FIT = 3
_NO_WIDTH = 10_000


def progress() -> Progress:
    """Who looks on: standard error, so that standard output stays data."""
    return Progress(sys.stderr, sys.stderr.isatty())


def show_prediction(record: Record, json: bool) -> int:
    prediction = record.prediction
    assert prediction is not None  # the verb returns no record without one
    if json:
        _print_json({**as_json.prediction_json(prediction), **_about(record)})
    else:
        console.show_prediction(console.make_console(), prediction)
        print(f"Record: {record.folder}", file=sys.stderr)
    return 0 if prediction.verdict == "fits" else DOES_NOT_FIT


def show_audit(record: Record, json: bool) -> int:
    assert record.audit is not None
    if json:
        _print_json({**as_json.audit_json(record.audit), **_about(record)})
    else:
        console.show_audit(console.make_console(), record.audit)
    return 0


def _about(record: Record) -> dict[str, Any]:
    """What every answer says besides: where its record is, and behind which flags settings were found in the command."""
    command = record.opened.command
    return {"record": record.folder, "found_flags": command.found_flags if command else {}}


def show_plan(record: Record, json: bool, page: bool) -> int:
    """The plan; with `page`, the page is written into the record and its place is told."""
    written = write(record, "html", None) if page else None
    if json:
        about = {"found_flags": _about(record)["found_flags"], "page": str(written) if written else None}
        _print_json({**as_json.plan_json(record), **about})
    else:
        console.show_record(console.make_console(), record)
        if written:
            print(f"Page: {written}")
    return 0


def show_run(record: Record, json: bool) -> int:
    """How the run ended. Standard output is the command's own: the screen goes to standard error."""
    assert record.run is not None and record.run.ended is not None
    if json:
        _print_json(as_json.run_json(record))
    else:
        console.show_run(console.make_console(sys.stderr), record)
        print(f"Record: {record.folder}", file=sys.stderr)
    return record.run.ended.exit_code


def show_report(name: str | None, out: Path | None, format: str, home: Path | None, json: bool) -> int:
    from brimful.verbs.report import find_record

    record = find_record(name, home)
    if format == "text":
        console.show_record(console.make_console(), record)
        return 0
    written = write(record, format, out)
    if json:
        _print_json({"schema": 1, "record": record.folder, "page": str(written), "format": format})
    else:
        print(written)
    return 0


def write(record: Record, format: str, out: Path | None) -> Path:
    """Writes a record as html or md and answers where. Raises UsageError, DiskFull."""
    if format == "html":
        from brimful.show.html import render_page as render
    elif format == "md":
        from brimful.show.markdown import render_markdown as render
    else:
        raise UsageError(
            problem=f"--format {format}", explanation="a report is html, md or text", suggestion="give one of them"
        )
    path = out or Path(record.folder) / f"report.{format}"
    try:
        path.write_text(render(record), encoding="utf-8")
    except OSError as error:
        if DiskFull.caused(error):
            raise DiskFull(str(path), kept="the record itself") from error
        raise UsageError(
            problem=f"{path} could not be written: {error.strerror}", suggestion="name another place with --out"
        ) from error
    return path


def show_gpus(json: bool) -> int:
    from brimful.measure.gpus import all_gpus
    from brimful.measure.gpus.calibrations import calibrated

    cards = tuple(calibrated(gpu) for gpu in all_gpus())
    if json:
        _print_json(as_json.gpus_json(cards))
    else:
        console.show_gpus(console.make_console(), cards)
    return 0


def show_doctor(json: bool, calibrate: bool = False) -> int:
    from brimful.verbs.doctor import doctor

    if calibrate:
        return _show_calibration(json)
    machine, found = doctor()
    if json:
        _print_json(as_json.doctor_json(machine, found))
    else:
        console.show_doctor(console.make_console(), machine, found)
    return 0


def _show_calibration(json: bool) -> int:
    from brimful.show import calibration as show
    from brimful.verbs.calibrate import calibrate, python_here

    measured, path = calibrate(python_here())
    if json:
        _print_json(show.calibration_json(measured, str(path)))
    else:
        console.show_calibration(console.make_console(), measured, str(path))
    return 0


def show_error(error: BrimfulError, json: bool) -> None:
    """The sentences on standard error, the script's own traceback before them; with --json the same as data."""
    unbroken = None if sys.stderr.isatty() else _NO_WIDTH  # paths and messages in a log stay in one piece
    console.show_error(console.make_console(sys.stderr, width=unbroken), error)
    if json:
        _print_json(as_json.error_json(error.code, error.exit_code, error.problem, error.explanation, error.suggestion))


def _print_json(value: Mapping[str, Any]) -> None:
    print(codec.to_json(value, indent=2))
