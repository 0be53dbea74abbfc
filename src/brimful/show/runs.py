"""A run as rows, sentences and JSON, the same for the terminal, the page and the tables."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from brimful.outcomes import OUTCOMES
from brimful.show.words import ABSENT, NOTHING, Shown, bytes_text, memory_of, seconds_text, speed_text
from brimful.values import Attempt, Diagnostic, Failure, Outcome, PhasePeak, PlannedSetting, Record, Run, Setting, Source


@dataclass(frozen=True)
class AttemptRow:
    number: int
    settings: str
    changed: tuple[str, ...]  # of the settings those that differ between attempts; all of them where there is one attempt
    outcome: str
    completed: bool
    steps: str
    speed: Shown
    peak: Shown
    memory: str | None  # which memory `peak` is
    duration: str
    resumed: str  # "", "told to go on" or "started over"
    why: str
    traceback: str
    notes: tuple[str, ...]
    folder: str


def attempt_rows(run: Run) -> list[AttemptRow]:
    values = [_values(attempt) for attempt in run.attempts]
    names = dict.fromkeys(name for one in values for name in one)
    changed = [name for name in names if len(values) == 1 or len({one.get(name) for one in values}) > 1]
    return [_row(attempt, changed or list(names)) for attempt in run.attempts]


def notes_of(record: Record) -> tuple[Diagnostic, ...]:
    """What was said, each once: what holds of every restart was said at every restart."""
    return tuple(dict.fromkeys(record.notes))


def _values(attempt: Attempt) -> dict[str, Setting]:
    return {row.name: row.effective for row in attempt.settings if row.effective is not None}


def _row(attempt: Attempt, changed: Sequence[str]) -> AttemptRow:
    values = _values(attempt)
    peak = worst_memory(attempt)
    resumed = {None: "", True: "told to go on", False: "started over"}[attempt.resumed]
    rate = attempt.samples_per_s
    return AttemptRow(
        number=attempt.number,
        settings=", ".join(f"{name} {value}" for name, value in values.items()) or "as it stands",
        changed=tuple(f"{name} {values[name]}" for name in changed if name in values) or ("as it stands",),
        outcome=OUTCOMES[attempt.outcome].text,
        completed=attempt.outcome is Outcome.COMPLETED,
        steps=f"{attempt.steps:,}",
        speed=ABSENT if rate is None else Shown(speed_text(rate), Source.MEASURED),
        peak=ABSENT if peak is None else Shown(bytes_text(peak[1]), Source.MEASURED),
        memory=peak[0] if peak else None,
        duration=seconds_text(attempt.duration_s),
        resumed=resumed,
        why=reason_of(attempt),
        traceback=attempt.failure.traceback.rstrip() if attempt.failure and attempt.outcome is not Outcome.COMPLETED else "",
        notes=tuple(note for note in (*attempt.notes, attempt.output_cut) if note),
        folder=attempt.folder,
    )


def worst_memory(attempt: Attempt) -> tuple[str, int] | None:
    """The device's peak; on a CPU what all processes held together."""
    seen = memory_of(attempt.peak)
    if (seen is None or seen[0] == "host") and attempt.process_tree_host_bytes is not None:
        return "host", max(attempt.process_tree_host_bytes, seen[1] if seen else 0)
    return seen


def reason_of(attempt: Attempt) -> str:
    """What the script's exception said, in which rank and where; else how the process ended."""
    failure = attempt.failure
    if attempt.outcome is Outcome.COMPLETED:
        return ""
    if failure is None:
        code = attempt.exit_code
        return "" if not code else f"exit code {code}" if code > 0 else f"ended by signal {-code}"
    return failure_text(failure, attempt.failed_rank)


def failure_text(failure: Failure, rank: int | None) -> str:
    """The exception, the first line of what it said, the rank and the place."""
    first = (failure.message.strip().splitlines() or [""])[0]
    which = f" in rank {rank}" if rank is not None else ""
    where = f" ({failure.where})" if failure.where else ""
    return (f"{failure.type}: {first}" if first else failure.type) + which + where


def verdict_of(run: Run, torn: bool) -> tuple[str, str]:
    """(tone, sentence) of a run."""
    ended, count = run.ended, len(run.attempts)
    if ended is None:
        return (
            "unfinished",
            f"Cut off{' in the middle of a line' if torn else ''} after {_attempts(count)}: this run has no end.",
        )
    again = f", in attempt {count}" if count > 1 else ""
    trained = not run.attempts or not run.attempts[-1].reports or bool(run.attempts[-1].steps)
    tone = {
        Outcome.COMPLETED: "good" if trained else "unfinished",
        Outcome.INTERRUPTED: "unfinished",
        Outcome.TERMINATED: "unfinished",
    }
    sentence = ended.message[:1].upper() + ended.message[1:] + again
    return tone.get(ended.outcome, "bad"), sentence + "."


def _attempts(count: int) -> str:
    return f"{count or 'no'} attempt{'' if count == 1 else 's'}"


def settings_in_force(run: Run) -> tuple[PlannedSetting, ...]:
    """Of the last attempt."""
    return run.attempts[-1].settings if run.attempts else ()


def phases_of(run: Run) -> dict[str, PhasePeak]:
    """Of the last attempt, the one that came furthest into the training as it now is."""
    return run.attempts[-1].phases if run.attempts else {}


def command_of(run: Run) -> str:
    """The words that the last attempt was started with, as a shell takes them."""
    if not run.attempts:
        return NOTHING
    last = run.attempts[-1]
    return " ".join(
        [*(f"{name}={shlex.quote(value)}" for name, value in sorted(last.environment.items())), shlex.join(last.argv)]
    )


def run_json(record: Record, advice: list[dict[str, str]], phase_json: Any) -> dict[str, Any]:
    """The answer of `run`. Keys are added, never renamed; absent is null."""
    run = record.run
    assert run is not None
    started, ended = run.started, run.ended
    return {
        "schema": 1,
        "verdict": verdict_of(run, record.torn)[1],
        "outcome": ended.outcome.value if ended else None,
        "exit_code": ended.exit_code if ended else None,
        "message": ended.message if ended else None,
        "trained_by": {"source": started.source, "why": started.why, "plan_record": started.plan_record},
        "max_restarts": started.max_restarts,
        "resume_words": list(started.resume_words),
        "device": record.opened.device.label if record.opened.device else None,
        "attempts": [_attempt_json(attempt, phase_json) for attempt in run.attempts],
        "warnings": advice,
        "record": record.folder,
    }


def _attempt_json(attempt: Attempt, phase_json: Any) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "settings": [
            {"name": s.name, "requested": s.requested, "effective": s.effective, "why": s.why, "source": s.source.value}
            for s in attempt.settings
        ],
        "argv": list(attempt.argv),
        "environment": dict(attempt.environment),
        "resumed": attempt.resumed,
        "outcome": attempt.outcome.value,
        "reason": reason_of(attempt) or None,
        "failed_rank": attempt.failed_rank,
        "exit_code": attempt.exit_code,
        "ranks": len(attempt.reports),
        "steps": attempt.steps,
        "samples": attempt.samples,
        "samples_per_s": attempt.samples_per_s,
        "loading_share": attempt.loading_share,
        "peak": phase_json(attempt.peak),
        "phases": {name: phase_json(peak) for name, peak in attempt.phases.items()},
        "process_tree_host_bytes": attempt.process_tree_host_bytes,
        "duration_s": attempt.duration_s,
        "folder": attempt.folder,
        "notes": list(attempt.notes),
        "output_cut": attempt.output_cut,
    }
