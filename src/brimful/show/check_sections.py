"""Sections of a check: the table of changes, what grew, and what is not as the jobs ask."""

from dataclasses import replace

from brimful.show.section import Column, Facts, Section, Sentences, Table
from brimful.show.text import ABSENT, CATEGORIES, Cell, bytes_text, capitalized, seconds_text
from brimful.units import counted, format_share, without_numbers
from brimful.values import Check, CheckedJob, Held, Judged

_NAMES = {
    "peak_device_bytes": "device peak",
    "peak_reserved_bytes": "reserved peak",
    "peak_allocated_bytes": "allocated peak",
    "step_s": "time of a step",
}
_NAMED = 8  # of what grew in a job


def check_sentence(check: Check) -> str:
    """ "1 of 2 jobs does not pass the limits in brimful.toml. gpt: device peak +8.1 % (7.35 GiB),
    at most +2 %. +1.9 GiB: activations of blocks.3.mlp, train.py:88."."""
    bad, of = [job for job in check.jobs if job.exit_code], counted(len(check.jobs), "job")
    texts = [f" {job.name}: {_why(job).rstrip('.')}." for job in bad]
    first = f"{len(bad)} of {of} {'does' if len(bad) == 1 else 'do'} not pass"
    if not bad:
        first = counted(len(check.jobs), "job passes", "jobs pass")
    written = f"; {check.lock} is written" if check.updated else ""
    return f"{first} the limits in {check.source}{written}.{''.join(texts)}"


def _why(job: CheckedJob) -> str:
    passed = [
        f"{_NAMES[row.code]} {_change(row)} ({_amount(row.code, row.now)}), at most {row.limit}"
        for row in job.judged
        if row.passed
    ]
    texts = [*job.failed, *passed, *map(_grown, _growth_of(job))]
    return ". ".join(texts[:1] + [capitalized(text) for text in texts[1:]])


def _growth_of(job: CheckedJob) -> list[Held]:
    """What grew most of the peaks that passed their limits, and what shrank most where that is more
    than a peak's growth."""
    peaks = {row.code: row for row in job.judged if row.passed and row.code != "step_s"}
    only_live = peaks.keys() == {"peak_allocated_bytes"}
    rows = [row for row in job.grown if not only_live or row.category != "cache"]
    if not peaks or not rows:
        return []
    growth = max(row.now - (row.before or 0) for row in peaks.values())
    return rows[:1] + [row for row in rows[-1:] if row.bytes < 0 and rows[0].bytes > growth]


def check_sections(check: Check) -> list[Section]:
    rows = tuple(
        _row(job, row)
        for job in check.jobs
        for row in job.judged
        if row.limit or row.code == "peak_device_bytes"
    )
    heads = ("baseline", "now", "change", "at most")
    columns = (Column("job"), Column("predicted"), *(Column(h, True) for h in heads), Column(""))
    parts: list[Section] = [Table("", columns, rows)] if rows else []
    for job in check.jobs:
        more = tuple(_grown(row, whole=True) for row in job.grown if row.bytes > 0)[:_NAMED]
        less = tuple(_grown(row, whole=True) for row in job.grown[::-1] if row.bytes < 0)[:_NAMED]
        said = tuple(map(capitalized, (*job.failed, *job.notes)))
        parts += [Sentences(f"What holds more at the peak, {job.name}", more)] if more else []
        parts += [Sentences(f"What holds less there, {job.name}", less)] if less else []
        parts += [Sentences(f"{job.name}, {job.gpu}", said)] if said else []
    commands = tuple((job.name, Cell(job.command_line, note=job.gpu)) for job in check.jobs)
    return [*parts, Facts("The jobs", commands, detail=True)]


def _row(job: CheckedJob, row: Judged) -> tuple[Cell, ...]:
    before = ABSENT if row.before is None else Cell(_amount(row.code, row.before))
    limit = ABSENT if row.limit is None else Cell(row.limit)
    unjudged = Cell("not judged" if row.limit and row.before else "")
    verdicts = {True: Cell("too much", tone="bad"), False: Cell("ok"), None: unjudged}
    now, change = Cell(_amount(row.code, row.now)), Cell(_change(row))
    return Cell(job.name), Cell(_NAMES[row.code]), before, now, change, limit, verdicts[row.passed]


def _amount(code: str, value: float) -> str:
    return seconds_text(value) if code == "step_s" else bytes_text(value)


def _change(row: Judged) -> str:
    """ "+8.1 %", "−3 %", "none"."""
    share = row.now / row.before - 1 if row.before else None
    if not share:
        return "new" if share is None else "none"
    return f"{'+' if share > 0 else '−'}{format_share(abs(share)).removeprefix('under ')}"


def _grown(row: Held, whole: bool = False) -> str:
    """ "+1.9 GiB: activations of blocks.3.mlp, train.py:88"; `whole`: with the line's text."""
    where = row.where if whole else row.where.partition(" in ")[0]
    return ("+" if row.bytes > 0 else "−") + held_text(replace(row, bytes=abs(row.bytes)), where)


def held_text(row: Held, where: str) -> str:
    """ "1.9 GiB: activations of 12 × blocks.*.mlp, train.py:88 in forward: x = self.mlp(x)"."""
    names = [CATEGORIES[row.category]]
    if len(row.modules) > 1:
        names.append(f"{len(row.modules)} × {without_numbers(row.modules[0])}")
    else:
        names += row.modules
    return f"{bytes_text(row.bytes)}: {' of '.join(names)}" + (f", {where}" if where else "")
