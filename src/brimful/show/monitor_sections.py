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
    noise_text,
    share_text,
    speed_text,
)
from brimful.units import GIB, counted
from brimful.values import CardStatus, State, Status

SIDE_BY_SIDE = 116  # columns from which the machine stands beside the run
SILENT_S = 15.0  # what prints or reports nothing for so long is said to be silent. Assumed
_TONES = {State.GOING: "bold green", State.ENDED: "bold"}
_WHERE = {"device": "on the card", "host": "on the host", "reserved": "reserved by PyTorch"}


def draw(status: Status, width: int) -> ConsoleRenderable:
    """All of it in `width` columns."""
    half = width // 2 - 1 if width >= SIDE_BY_SIDE else width
    run, machine = _group(_run_sections(status), half), _group(_machine_sections(status), half)
    body = Grid.grid(padding=(0, 2, 0, 0))
    if half < width:
        body.add_row(run, machine)
    else:
        body.add_row(Group(run, machine))
    parts = [Text(state_text(status), _TONES.get(status.state, "bold yellow"))]
    parts.append(Text("Measured, unless it says otherwise.\n", "dim"))
    # lines that are too long are cut, so that the screen stands still
    tail = [
        Text(text, style, no_wrap=True, overflow="ellipsis")
        for stream, lines in status.tail.items()
        for text, style in ((f"Last lines of {stream}", "bold"), *((row, "dim") for row in lines))
    ]
    return Group(*parts, body, *tail)


def _group(sections: list[Section], width: int) -> Group:
    parts = [
        part
        for section in sections
        for part in (Text(section.title, "bold"), drawn(section, width), Text(""))
    ]
    return Group(*(part for part in parts if part != Text("", "bold")))


def state_text(status: Status) -> str:
    """What is watched, and whether it goes on; else how it ended."""
    name = status.of + (f", {status.part}" if status.part else "")
    alive, own = status.host.processes, status.command_exit_code
    match status.state:
        case State.GOING:
            beat = status.beat
            return f"{name} goes on" + (f", {whole_seconds(beat.seconds)}" if beat else "")
        case State.UNKNOWN:
            return f"{name}: whether it goes on is not known (--pid names its process)"
        case State.CUT_OFF:
            runs = f"; {alive} of its command's processes still run" if alive else ""
            return f"{name}: {status.message} brimful itself is gone{runs}."
    code = "" if status.exit_code is None else f" with exit code {status.exit_code}"
    how = f"signal {-own}" if own is not None and own < 0 else f"exit code {own}"
    of_command = "" if own in (None, status.exit_code) else f" (its command: {how})"
    return f"{name} has ended{code}{of_command}: {status.message}"


def line(status: Status) -> str:
    """In one line: "2026…-run-gpt, attempt 1 goes on, 5 s; memory 1.2 GiB now …; step 20 …"."""
    numbers = (f"{name} {cell.text}" for name, cell in _numbers(status))
    return "; ".join((state_text(status), *(numbers if status.message is None else ())))


def _run_sections(status: Status) -> list[Section]:
    command = [("command", Cell(status.command))] if status.command else []
    device = [("device", Cell(status.device.label))] if status.device is not None else []
    sections: list[Section] = [Facts("", (*command, *device, *_numbers(status)))]
    if status.findings:
        # why it matters stands in a report: here it would push the last lines off the screen
        short = tuple(replace(finding, explanation="") for finding in status.findings)
        sections.append(Findings("Findings", short))
    return sections


def _numbers(status: Status) -> list[tuple[str, Cell]]:
    """What is known of it."""
    beat, left, silent_s = status.beat, status.left_s, status.silent_s
    texts = {"memory": _memory(status)}
    if beat is not None:
        phase = f"{beat.phase}, step {beat.steps:,}" if beat.phase else "no step yet"
        ranks = f", {beat.ranks} ranks" if beat.ranks > 1 else ""
        rank = f" in rank {beat.loss_rank}" if ranks and beat.loss_rank is not None else ""
        texts["phase" if status.message is None else "last seen"] = phase + ranks
        texts["loss"] = f"{beat.loss:.4g}{rank}" if beat.loss is not None else ""
        lately = beat.rates_over_s
        over = f" in the last {whole_seconds(lately)} of training" if lately else ""
        plan = status.expected_samples_per_s
        planned = f"; {speed_text(plan.value)} {plan.source.value} {plan.note}" if plan else ""
        rate = f"{speed_text(beat.samples_per_s)} samples/s{over}{planned}"
        texts["speed"] = rate if beat.samples_per_s else ""
        waited = beat.loading_share
        texts["loading"] = f"{share_text(waited)} of the time waited for data" if waited else ""
    if left is not None:
        left_text = f"about {whole_seconds(left.value)} to the end of {left.note}"
        texts["time left"] = f"{left_text} ({left.source.value})"
    texts["learning"] = noise_text(status.noise_scale) if status.noise_scale else ""
    if silent_s is not None and silent_s >= SILENT_S:
        texts["silent"] = f"nothing printed or reported for {whole_seconds(silent_s)}"
    return [(name, Cell(text)) for name, text in texts.items() if text]


def _memory(status: Status) -> str:
    """What it holds now, and of what kind; the peak that was expected of it; all that there is."""
    gpu = status.device.gpu if status.device is not None else None  # an imaginary one
    card = max(status.cards, key=lambda card: card.watched_bytes, default=None)
    held = card.watched_bytes if card is not None else 0
    reserved = status.beat.reserved_bytes if status.beat is not None else None
    peak, value, over = memory_of(status.peak), status.expected_peak_bytes, status.message
    processes, resident = status.host.processes or 0, status.host.processes_bytes
    parts, total = (
        [],
        None if reserved is not None else f"host has {bytes_text(status.host.total_bytes)}",
    )
    if card is not None and held:
        total = f"card has {bytes_text(card.total_bytes)}"
    if (over or gpu is not None) and peak is not None:
        source = " (predicted)" if gpu is not None else ""
        parts = [f"peak {bytes_text(peak[1])} {_WHERE[peak[0]]} by its last report{source}"]
    elif held:
        parts = [f"{bytes_text(held)} now on the card"]
    elif reserved is None and resident is not None and gpu is None:
        parts = [
            f"{bytes_text(resident)} now, resident in {counted(processes, 'process', 'processes')}"
        ]
    if reserved is not None and not over:
        parts.append(f"{bytes_text(reserved)} reserved by PyTorch")
    if value is not None:
        around = interval_text(value.low, value.high, value.value)
        around = f" ({around})" if around else ""
        parts.append(f"peak {value.source.value} {bytes_text(value.value)}{around} {value.note}")
    if gpu is not None:
        total = f"card has {bytes_text(gpu.total_bytes.value)}"
    return "; ".join([*parts, f"the {total}"] if parts and total else parts)


def _machine_sections(status: Status) -> list[Section]:
    """The cards, then the host."""
    host = status.host
    used, watched = host.total_bytes - host.free_bytes, host.processes_bytes
    limit = " (limit of the cgroup)" if host.cgroup_limit_bytes == host.total_bytes else ""
    rows = {
        "memory": f"{bytes_text(used)} of {bytes_text(host.total_bytes)} in use{limit}",
        "cores": f"{host.busy_cores} of {host.cores} busy",
        "watched": counted(host.processes or 0, "process", "processes")
        + (f", {bytes_text(watched)}" if watched else ""),
    }
    texts = [(name, Cell(text)) for name, text in rows.items() if name != "watched" or watched]
    return [*_cards(status.cards), Facts("Host", tuple(texts))]


def _cards(cards: tuple[CardStatus, ...]) -> list[Section]:
    numbers = ("memory, GiB", "busy", "power, W", "°C", "clock, MHz")
    columns = Column("#"), *(Column(name, right=True) for name in numbers)
    rows, notes = [], []
    for card in cards:
        cells = (
            str(card.index),
            _of(card.used_bytes / GIB, card.total_bytes / GIB, ".3g"),
            share_text(card.busy_share),
            _of(card.power_w, card.power_limit_w),
            count_text(card.temperature_c),
            _of(card.clock_mhz, card.highest_clock_mhz),
        )
        rows.append(tuple(map(Cell, cells)))
        if card.throttled_by:
            why = " and ".join(card.throttled_by)
            notes.append(f"Card {card.index}: its clock is held down by {why}.")
        held = [
            f"{p.name} ({p.pid}) {bytes_text(p.bytes)}{', watched' if p.watched else ''}"
            for p in card.processes
        ]
        notes += [f"Card {card.index}: {'; '.join(held)}."] if held else []
    names = ", ".join(dict.fromkeys(card.name for card in cards))
    title = f"{counted(len(cards), 'card')}: {names}"
    return [Table(title, columns, tuple(rows), tuple(notes))] if cards else []


def _of(value: float | None, most: float | None, digits: str = ",.0f") -> str:
    if value is None or most is None:
        return ABSENT_TEXT if value is None else f"{value:{digits}}"
    return f"{value:{digits}} of {most:{digits}}"
