"""Memory as a test: the limits of a job, what passes one beside its baseline, and what grew."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from brimful.decide.audit.findings import CODES
from brimful.decide.memory.breakdown import CACHE, CATEGORIES, CONTEXT
from brimful.errors import UsageError, nearest
from brimful.units import parse_bytes, parse_duration, parse_per_cent, without_numbers
from brimful.values import (
    Baseline,
    Breakdown,
    CheckedJob,
    Diagnostic,
    Held,
    Job,
    Judged,
    Prediction,
    Verdict,
)

#: What can be limited; a job's key is without the unit.
FIGURES = ("peak_device_bytes", "peak_reserved_bytes", "peak_allocated_bytes", "step_s")
#: Of all that grew: what is less than this share of it is not named (assumed).
_LEAST_OF_GROWTH = 0.02
_FITS = {
    Verdict.TIGHT: "it fits only if what is uncertain turns out small",
    Verdict.DOES_NOT_FIT: "it does not fit",
}


def limits_of(job: Job, place: str = "") -> dict[str, str]:
    """By figure, as they are written. Raises UsageError for what cannot be meant; `place` names the
    job there."""
    require_known(job.no_findings, CODES, f"{place}, no_findings", "a finding")
    if (job.gpu is None) is (job.gpu_memory is None):
        raise UsageError(
            f"{place} names {'no card' if job.gpu is None else 'two cards'}",
            "a job is predicted for one that need not be here",
            'give gpu = "a100-40gb" (see `brimful gpus`) or gpu_memory = "20GiB"',
        )
    limits = {code: text for code in FIGURES if (text := getattr(job, code.rpartition("_")[0]))}
    for code, limit in limits.items():
        try:
            _most(code, limit, 0.0)
        except ValueError:
            example = "300 ms" if code == "step_s" else "20 GiB"
            raise UsageError(
                f"{place}: {limit!r} is no limit of {code.rpartition('_')[0]}",
                "a limit is what may be added to the baseline, or the most that is allowed",
                f'write it as "+2 %", as an amount with a plus, or as "{example}"',
            ) from None
    return limits


def grows(limit: str) -> bool:
    """Whether a limit is of what is added to the baseline."""
    return limit.startswith("+")


def _most(code: str, limit: str, before: float) -> float:
    """What a limit allows beside a baseline. Raises ValueError."""
    amount = limit.removeprefix("+").strip()
    if amount.endswith("%") and grows(limit):
        share = parse_per_cent(amount)
        if math.isnan(share):
            raise ValueError(f"{amount!r} is no share")
        return before * (1 + share)
    try:
        most = parse_duration(amount) if code == "step_s" else parse_bytes(amount)
    except UsageError as error:
        raise ValueError(str(error)) from error
    return most + before * grows(limit)


def require_known(names: Iterable[str], known: Sequence[str], place: str, what: str) -> None:
    """Raises UsageError for a name that is not `known`, with the one that is meant."""
    for name in (name for name in names if name not in known):
        close = nearest(name, known, 1)
        raise UsageError(
            f"{place}: {name} is not {what} that brimful knows",
            "" if close else f"it knows {', '.join(known)}",
            f"did you mean {close[0]}?" if close else "",
        )


def baseline_of(prediction: Prediction, gpu: str, torch: str, brimful: str) -> Baseline:
    """`torch`, `brimful`: versions."""
    peak, speed, breakdown = prediction.peak, prediction.speed, prediction.breakdown
    figures: dict[str, int | float] = {}
    if peak is not None:
        names = ("device_bytes", "reserved_bytes", "allocated_bytes")
        figures = {f"peak_{name}": getattr(peak, name) for name in names}
    if speed is not None:
        figures["step_s"] = float(f"{speed.step_s.value:.4g}")
    return Baseline(
        brimful=brimful,
        torch=torch.partition("+")[0],
        gpu=gpu,
        batch_size=prediction.in_force or prediction.batch_size,
        figures=figures,
        phase=breakdown.phase if breakdown is not None else "",
        held=held_of(breakdown),
    )


def held_of(breakdown: Breakdown | None) -> tuple[Held, ...]:
    """All that the device peak is made of: what is live, cache and context."""
    if breakdown is None:
        return ()
    parts = ((breakdown.parts[name], name) for name in (CACHE, CONTEXT))
    return (*breakdown.held, *(Held(size, name, (), "") for size, name in parts if size))


def to_keep(baseline: Baseline) -> Baseline:
    """Without the numbers of lines, which change where nothing else does, and in an order that
    sizes do not change."""
    sizes: Counter[tuple[int, str, tuple[str, ...]]] = Counter()
    for row in baseline.held:
        sizes[CATEGORIES.index(row.category), _unnumbered(row.where), row.modules] += row.bytes
    rows = [Held(sizes[key], CATEGORIES[key[0]], key[2], key[1]) for key in sorted(sizes)]
    return replace(baseline, held=tuple(rows))


def judged(
    job: Job,
    prediction: Prediction,
    findings: Sequence[Diagnostic],
    before: Baseline | None,
    now: Baseline,
    checked: CheckedJob,
    renews: bool,
) -> CheckedJob:
    """`checked` with what became of the job. `findings`: of an audit. `before`: None where there is
    no baseline. `renews`: `now` becomes the baseline, so growth fails nothing."""
    limits, notes = limits_of(job), []
    if before and not renews:
        # why figures may differ although the job is the same: then growth is no failure
        notes = [
            f"the baseline is of {what} {old}, and this is {new}: growth is shown, and fails "
            "nothing until `brimful check --update` renews the baseline"
            for what, old, new in (
                ("torch", before.torch, now.torch),
                ("brimful", before.brimful, now.brimful),
                ("card", before.gpu, now.gpu),
            )
            if old.split(".")[:2] != new.split(".")[:2]  # 2.9.0 and 2.9.1 are one release
        ]
    judges_growth, rows = not renews and not notes, []
    for code, value in now.figures.items():
        limit, known = limits.get(code), before.figures.get(code) if before is not None else None
        judges = limit is not None and (not grows(limit) or (judges_growth and known is not None))
        passed = value > _most(code, limit or "", known or 0.0) if judges else None
        rows.append(Judged(code, value, known, limit, passed))
    failed = [_FITS[v] for v in (prediction.verdict,) if job.must_fit and v in _FITS]
    failed += [
        f"`{code.rpartition('_')[0]}` has a limit and is not predicted"
        for code in limits
        if code not in now.figures
    ]
    failed += [
        f"{finding.problem} {finding.suggestion} ({finding.code})"
        for finding in findings
        if finding.code in job.no_findings
    ]
    if before is not None and before.batch_size != now.batch_size:
        notes.append(f"the batch size was {before.batch_size}, and is {now.batch_size}")
    if before is not None and before.phase != now.phase:
        notes.append(f"the peak was in {before.phase}, and is in {now.phase}")
    return replace(
        checked,
        exit_code=3 if failed or any(row.passed for row in rows) else 0,
        judged=tuple(rows),
        grown=grown(before, now) if before is not None else (),
        failed=tuple(failed),
        notes=tuple(notes),
    )


def grown(before: Baseline, now: Baseline) -> tuple[Held, ...]:
    """What holds more than in the baseline, and how much, the largest first, then what holds less,
    below 0; () where no peak grew. Modules whose paths differ in their numbers alone are together.
    """
    if all(_total(now, *left_out) <= _total(before, *left_out) for left_out in ((), (CACHE,))):
        return ()  # neither the device nor the allocated peak
    old, new = _shares(before), _shares(now)
    more = Counter(new)
    more.subtract(old)
    # as many bytes of a category at a line under another path: a module that moved, not one that
    # grew; an insertion into an nn.Sequential renames all that follow, so the last ones are paired
    renamed = defaultdict(list)
    for key, size in sorted(old.items() - new.items(), key=_place):
        renamed[key[:2], size].append(key)
    for key, size in sorted(new.items() - old.items(), key=_place, reverse=True):
        if names := renamed[key[:2], size]:
            more[key] -= size
            more[names.pop()] += size
    alike: dict[tuple[str, str], Counter[tuple[str, str]]] = defaultdict(Counter)
    for (category, line, module), size in more.items():
        alike[category, without_numbers(module)][line, module] += size
    lines = {_unnumbered(row.where): row.where for row in reversed(now.held)}  # of two, the larger
    rows = [_difference(category, sizes, lines) for (category, _), sizes in alike.items()]
    least = _LEAST_OF_GROWTH * sum(row.bytes for row in rows if row.bytes > 0)
    large = [row for row in rows if row.bytes and abs(row.bytes) >= least]
    return tuple(sorted(large, key=lambda row: -row.bytes))


def _total(baseline: Baseline, *left_out: str) -> int:
    return sum(row.bytes for row in baseline.held if row.category not in left_out)


def _difference(category: str, sizes: Counter[tuple[str, str]], lines: Mapping[str, str]) -> Held:
    """Of modules that are together: those that grew if all of them did, else those that shrank,
    and the line where most did. `lines`: with their numbers now, by those without."""
    total, by_module, by_line = sizes.total(), Counter[str](), Counter[str]()
    sign = 1 if total > 0 else -1
    for (line, module), size in sizes.items():
        by_module[module] += sign * size
        by_line[line] += sign * size
    line = max(by_line, key=lambda line: by_line[line])
    modules = tuple(module for module, size in by_module.items() if module and size > 0)
    return Held(total, category, modules, lines.get(line, line))


def _place(share: tuple[tuple[str, str, str], int]) -> list[tuple[int, str]]:
    """What sorts modules by their paths, with 10 after 9."""
    return [(len(part), part) for part in share[0][2].split(".")]


def _shares(baseline: Baseline) -> Counter[tuple[str, str, str]]:
    """Bytes by category, line without its number, and module."""
    shares: Counter[tuple[str, str, str]] = Counter()
    for row in baseline.held:
        modules = row.modules or ("",)
        for module in modules:
            shares[row.category, _unnumbered(row.where), module] += row.bytes // len(modules)
    return shares


def _unnumbered(where: str) -> str:
    """ "train.py in main: loss.backward()" of "train.py:57 in main: loss.backward()"."""
    return re.sub(r"^(\S+):\d+(?= in |$)", r"\1", where)
