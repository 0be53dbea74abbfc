"""A `Status` in words: the run at hand, and its machine. `draw` lays both out for a terminal, side
by side where it is wide enough."""

from dataclasses import replace

from rich.console import ConsoleRenderable, Group
from rich.table import Table as Grid
from rich.text import Text

from brimful.show.console import drawn
from brimful.show.progress import whole_seconds
from brimful.show.section import Column, Facts, Findings, Section, Table
from brimful.show.text import (
    ABSENT_TEXT,
    Cell,
    bytes_text,
    count_text,
    interval_text,
    memory_of,
    share_text,
    speed_text,
)
from brimful.units import GIB, counted
from brimful.values import CardStatus, Heartbeat, HostStatus, State, Status

SIDE_BY_SIDE = 116  # columns from which the machine stands beside the run
SILENT_S = 15.0  # what prints or reports nothing for so long is said to be silent. Assumed
_TONES = {State.GOING: "bold green", State.ENDED: "bold"}
_WHERE = {"device": "on the card", "host": "on the host", "reserved": "reserved by PyTorch"}


def draw(status: Status, width: int) -> ConsoleRenderable:
    """All of it in `width` columns."""
    half = width // 2 - 1 if width >= SIDE_BY_SIDE else width
    # why a finding matters stands in a report: here it would push the last lines off the screen
    short = tuple(replace(finding, explanation="") for finding in status.findings)
    command = [("command", Cell(status.command))] if status.command else []
    run = _group([Facts("", (*command, *_numbers(status))), Findings("Findings", short)], half)
    machine = _group([_cards(status.cards), Facts("Host", _host(status.host))], half)
    body = Grid.grid(padding=(0, 2, 0, 0))
    body.add_row(*([run, machine] if half < width else [Group(run, machine)]))
    lines = [(state_text(status), _TONES.get(status.state, "bold yellow"))]
    head = [*lines, ("Measured, unless it says otherwise.\n", "dim")]
    tail = [
        # lines that are too long are cut, so that the screen stands still
        Text(text, style, no_wrap=True, overflow="ellipsis")
        for stream, lines in status.tail.items()
        for text, style in ((f"Last lines of {stream}", "bold"), *((row, "dim") for row in lines))
    ]
    return Group(*(Text(*row) for row in head), body, *tail)


def _group(sections: list[Section], width: int) -> Group:
    """Those that are not empty, each with its title and a line below it."""
    parts: list[ConsoleRenderable] = []
    for section in sections:
        if section not in (Findings(section.title, ()), Facts(section.title, ()), _cards(())):
            parts += [Text(section.title, "bold")] if section.title else []
            parts += [drawn(section, width), Text("")]
    return Group(*parts)


def state_text(status: Status) -> str:
    """What is watched, and whether it goes on; else how it ended."""
    name = status.of + (f", {status.part}" if status.part else "")
    alive, own, beat = status.host.processes, status.command_exit_code, status.beat
    if status.state is State.GOING:
        return f"{name} goes on" + (f", {whole_seconds(beat.seconds)}" if beat else "")
    if status.state is State.UNKNOWN:
        return f"{name}: whether it goes on is not known (--pid names its process)"
    if status.state is State.CUT_OFF:
        left = f"; still running: {counted(alive, 'process', 'processes')}" if alive else ""
        return f"{name}: {status.message} brimful itself is gone{left}."
    code = "" if status.exit_code is None else f" with exit code {status.exit_code}"
    how = f"signal {-own}" if own is not None and own < 0 else f"exit code {own}"
    of_command = "" if own in (None, status.exit_code) else f" (its command: {how})"
    return f"{name} has ended{code}{of_command}: {status.message}"


def line(status: Status) -> str:
    """In one line: "2026…-run-gpt, attempt 1 goes on, 5 s; memory 1.2 GiB now …; step 20 …"."""
    numbers = (f"{name} {cell.text}" for name, cell in _numbers(status))
    return "; ".join((state_text(status), *(numbers if status.message is None else ())))


def _numbers(status: Status) -> tuple[tuple[str, Cell], ...]:
    """What is known of it."""
    beat, left, silent_s = status.beat or Heartbeat(None, 0, 0.0), status.left_s, status.silent_s
    lately, rate, plan = beat.rates_over_s, beat.samples_per_s, status.expected_samples_per_s
    over = f" in the last {whole_seconds(lately)} of training" if lately else ""
    planned = f"; {speed_text(plan.value)} {plan.source.value} {plan.note}" if plan else ""
    of_rank = f" in rank {beat.loss_rank}" if beat.ranks > 1 and beat.loss_rank is not None else ""
    phase = f"{beat.phase}, step {beat.steps:,}" if beat.phase else "no step yet"
    texts = {
        "device": status.device.label if status.device is not None else "",
        "memory": _memory(status),
        "phase" if status.message is None else "last seen": phase if status.beat else "",
        "ranks": str(beat.ranks) if beat.ranks > 1 else "",
        "loss": f"{beat.loss:.4g}{of_rank}" if beat.loss is not None else "",
        "speed": f"{speed_text(rate)} samples/s{over}{planned}" if rate is not None else "",
        "loading": f"{share_text(beat.loading_share)} of the time waited for data"
        if beat.loading_share is not None
        else "",
        "time left": f"about {whole_seconds(left.value)} to the end of {left.note} (estimate)"
        if left is not None
        else "",
        "silent": f"nothing printed or reported for {whole_seconds(silent_s)}"
        if silent_s is not None and silent_s >= SILENT_S
        else "",
    }
    return tuple((name, Cell(text)) for name, text in texts.items() if text)


def _memory(status: Status) -> str:
    """What it holds now, and of what kind; the peak that was expected of it; all that there is."""
    gpu = status.device.gpu if status.device is not None else None  # an imaginary one
    card = max(status.cards, key=lambda card: card.watched_bytes, default=None)
    reserved = status.beat.reserved_bytes if status.beat is not None else None
    peak, value, over = memory_of(status.peak), status.expected_peak_bytes, status.message
    processes, resident = status.host.processes or 0, status.host.processes_bytes
    parts, total = [], f"the host has {bytes_text(status.host.total_bytes)}"
    if (over or gpu is not None) and peak is not None:
        source = " (predicted)" if gpu is not None else ""
        parts = [f"peak {bytes_text(peak[1])} {_WHERE[peak[0]]} by its last report{source}"]
    elif card is not None and card.watched_bytes:
        parts = [f"{bytes_text(card.watched_bytes)} now on the card"]
    elif reserved is None and resident is not None and gpu is None:
        of = counted(processes, "process", "processes")
        divided = ", shared pages divided among them" if processes > 1 else ""
        parts = [f"{bytes_text(resident)} now, resident in {of}{divided}"]
    if reserved is not None and not over:
        parts.append(f"{bytes_text(reserved)} reserved by PyTorch")
    if value is not None:
        around = interval_text(value.low, value.high, value.value)
        size = bytes_text(value.value) + (f" ({around})" if around else "")
        parts.append(f"peak {value.source.value} {size} {value.note}")
    if gpu is not None:
        total = f"the card has {bytes_text(gpu.total_bytes.value)}"
    elif status.device is not None and status.device.kind != "cpu" and card is not None:
        total = f"the card has {bytes_text(card.total_bytes)}"
    return "; ".join([*parts, total] if parts else [])


def _host(host: HostStatus) -> tuple[tuple[str, Cell], ...]:
    used, total = bytes_text(host.total_bytes - host.free_bytes), bytes_text(host.total_bytes)
    limit = " (limit of the cgroup)" if host.cgroup_limit_bytes == host.total_bytes else ""
    texts = {
        "memory": f"{used} of {total} in use{limit}",
        "cores": f"{host.busy_cores} of {host.cores} busy",
        "watched": f"{counted(host.processes, 'process', 'processes')}, "
        f"{bytes_text(host.processes_bytes)}"
        if host.processes
        else "",
    }
    return tuple((name, Cell(text)) for name, text in texts.items() if text)


def _cards(cards: tuple[CardStatus, ...]) -> Table:
    numbers = ("memory, GiB", "busy", "power, W", "°C", "clock, MHz")
    columns = Column("#"), *(Column(name, right=True) for name in numbers)
    rows = [
        (
            str(card.index),
            _of(card.used_bytes / GIB, card.total_bytes / GIB, ".3g"),
            share_text(card.busy_share),
            _of(card.power_w, card.power_limit_w),
            count_text(card.temperature_c),
            _of(card.clock_mhz, card.highest_clock_mhz),
        )
        for card in cards
    ]
    notes = {
        card.index: [
            *(f"its clock is held down by {why}" for why in card.throttled_by),
            *(
                f"{p.name} ({p.pid}) {bytes_text(p.bytes)}{', watched' * p.watched}"
                for p in card.processes
            ),
        ]
        for card in cards
    }
    names = ", ".join(dict.fromkeys(card.name for card in cards))
    below = tuple(f"Card {index}: {'; '.join(texts)}." for index, texts in notes.items() if texts)
    cells = tuple(tuple(map(Cell, row)) for row in rows)
    return Table(f"{counted(len(cards), 'card')}: {names}", columns, cells, below)


def _of(value: float | None, most: float | None, digits: str = ",.0f") -> str:
    if value is None or most is None:
        return ABSENT_TEXT if value is None else f"{value:{digits}}"
    return f"{value:{digits}} of {most:{digits}}"
