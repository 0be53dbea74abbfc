"""A `Status` in words: the run at hand, and its machine. `draw` lays both out for a terminal, side
by side where it is wide enough."""

from dataclasses import replace

from rich.console import ConsoleRenderable, Group
from rich.table import Table as Grid
from rich.text import Text

from brimful import masking
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
    settings_text,
    share_text,
    speed_text,
)
from brimful.units import GIB, counted
from brimful.values import CardStatus, HostStatus, Source, State, Status

SIDE_BY_SIDE = 116  # columns from which the machine stands beside the run
SILENT_S = 15.0  # what prints or reports nothing for so long is said to be silent. Assumed
NEARLY_FULL = 0.95  # of a card or the host (assumed)


def draw(status: Status, width: int) -> ConsoleRenderable:
    """All of it in `width` columns."""
    run, machine = run_sections(status), machine_sections(status)
    if width < SIDE_BY_SIDE:
        body: ConsoleRenderable = Group(_group(run, width), _group(machine, width))
    else:
        half = (width - 2) // 2
        body = Grid.grid(padding=(0, 2, 0, 0))
        body.add_column(width=width - 2 - half)
        body.add_column(width=half)
        body.add_row(_group(run, width - 2 - half), _group(machine, half))
    first = Text(state_text(status), style=f"bold {_TONES[status.state]}")
    return Group(first, Text("Measured, unless it says otherwise.\n", "dim"), body, *_tail(status))


_WHERE = {
    "device": " on the card",
    "host": " on the host",
    "reserved": " reserved by PyTorch",
    "allocated": " allocated by PyTorch",
}
_TONES = {
    State.GOING: "green",
    State.ENDED: "",
    State.CUT_OFF: "yellow",
    State.UNKNOWN: "yellow",
}


def _group(sections: list[Section], width: int) -> Group:
    parts: list[ConsoleRenderable] = []
    for section in sections:
        if section.title:
            parts.append(Text(section.title, style="bold"))
        parts += [drawn(section, width), Text("")]
    return Group(*parts)


def _tail(status: Status) -> list[ConsoleRenderable]:
    """Lines that are too long are cut, so that the screen stands still."""
    parts: list[ConsoleRenderable] = []
    for stream, lines in status.tail.items():
        parts.append(Text(f"Last lines of {stream}", style="bold"))
        parts += [Text(line, "dim", no_wrap=True, overflow="ellipsis") for line in lines]
    return parts


def state_text(status: Status) -> str:
    """What is watched, and whether it goes on; else how it ended."""
    name = f"{status.verb} {status.of}" if status.verb else status.of
    part = f", {status.part}" if status.part else ""
    if status.state is State.GOING:
        since = f", {whole_seconds(status.beat.seconds)}" if status.beat is not None else ""
        return f"{name} goes on{part}{since}"
    if status.state is State.UNKNOWN:
        done = f": {status.message}" if status.message else ""
        return f"{name}: whether it goes on is not known without --pid{done}"
    if status.state is State.CUT_OFF:
        alive = status.host.processes
        runs = (
            "processes of its command still run"
            if alive != 1
            else "process of its command still runs"
        )
        left = f"; {alive} {runs}" if alive else ""
        return f"{name}: {status.message} brimful itself is gone{left}."
    code = "" if status.exit_code is None else f" with exit code {status.exit_code}"
    own = status.command_exit_code
    how = f"signal {-own}" if own is not None and own < 0 else f"exit code {own}"
    of_command = f" (the command's: {how})" if own is not None and own != status.exit_code else ""
    return f"{name} has ended{code}{of_command}: {status.message}"


def line(status: Status) -> str:
    """In one line: "run 2026…-gpt goes on, attempt 1, 5 s; train, step 20; 1.2 GiB now …"."""
    parts = (state_text(status), *(f"{name} {cell.text}" for name, cell in _numbers(status)))
    return "; ".join(parts if status.state is State.GOING else parts[:1])


def run_sections(status: Status) -> list[Section]:
    words = [("command", Cell(masking.text(status.command)))] if status.command else []
    settings = [("settings", Cell(settings_text(status.settings)))] if status.settings else []
    device = [("device", Cell(status.device.label))] if status.device is not None else []
    rows = (*words, *settings, *device, *_numbers(status))
    sections: list[Section] = [Facts("", rows)] if rows else []
    if status.findings:
        # why it matters stands in a report: here it would push the last lines off the screen
        short = tuple(replace(finding, explanation="") for finding in status.findings)
        sections.append(Findings("Findings", short))
    return sections


def _numbers(status: Status) -> list[tuple[str, Cell]]:
    """What is known of it."""
    beat, left = status.beat, status.left
    rows = {
        "memory": _memory(status),
        "phase" if status.message is None else "last seen": Cell(_phase_text(status))
        if beat is not None
        else None,
        "loss": Cell(f"{beat.loss:.4g}{_of_rank(status)}")
        if beat is not None and beat.loss is not None
        else None,
        "speed": _speed(status),
        "time left": Cell(f"about {whole_seconds(left.seconds)} to the end of {left.of} (estimate)")
        if left is not None
        else None,
        "loading": Cell(f"{share_text(beat.loading_share)} of the time waited for data")
        if beat is not None and beat.loading_share is not None
        else None,
        "learning": Cell(noise_text(status.noise_scale))
        if status.noise_scale is not None
        else None,
        "silent": Cell(f"nothing printed or reported for {whole_seconds(status.silent_s)}")
        if status.silent_s is not None and status.silent_s >= SILENT_S
        else None,
    }
    return [(name, cell) for name, cell in rows.items() if cell is not None]


def _phase_text(status: Status) -> str:
    beat = status.beat
    assert beat is not None
    if beat.phase is None and not beat.steps:
        return "no step yet"
    of = f" of {status.planned_steps:,}" if status.planned_steps is not None else ""
    ranks = f", {beat.ranks} ranks" if beat.ranks > 1 else ""
    return f"{beat.phase or 'train'}, step {beat.steps:,}{of}{ranks}"


def _of_rank(status: Status) -> str:
    beat = status.beat
    several = beat is not None and beat.ranks > 1 and beat.loss_rank is not None
    return f" in rank {beat.loss_rank}" if several and beat is not None else ""


def _speed(status: Status) -> Cell | None:
    beat, expected = status.beat, status.expected
    if beat is None or beat.samples_per_s is None:
        return None
    lately = (
        f" in the last {whole_seconds(beat.rates_over_s)} of training" if beat.rates_over_s else ""
    )
    text = f"{speed_text(beat.samples_per_s)} samples/s{lately}"
    planned = expected.samples_per_s if expected is not None else None
    if planned is not None and expected is not None:
        text += f"; {speed_text(planned.value)} {planned.source.value} by {expected.verb}"
    return Cell(text)


def _memory(status: Status) -> Cell | None:
    """What it holds now, of what kind; the peak that was expected of it; and all that there is."""
    beat, device, expected, host = status.beat, status.device, status.expected, status.host
    on_card = device is not None and device.kind != "cpu"
    gpu = device.gpu if device is not None else None
    reserved = beat.reserved_bytes if beat is not None else None
    peak = memory_of(status.peak, "device" if on_card else "host")
    total = status.card_bytes if on_card or status.device_bytes else host.total_bytes
    if status.state is not State.GOING or (
        gpu is not None and device and device.kind == "imaginary"
    ):
        source = Source.PREDICTED if gpu is not None else Source.MEASURED
        last = " by its last report" if status.exit_code is None else ""
        now = f"peak {bytes_text(peak[1])}{_WHERE[peak[0]]}{last} ({source.value})" if peak else ""
        total = int(gpu.total_bytes.value) if gpu is not None else total
    elif status.device_bytes is not None:
        now = f"{bytes_text(status.device_bytes)} now on the card"
        now += f" ({bytes_text(reserved)} reserved by PyTorch)" if reserved is not None else ""
    elif reserved is not None:
        now = f"{bytes_text(reserved)} now reserved by PyTorch on the card"
    elif host.processes_bytes is not None:
        of = counted(host.processes or 0, "process", "processes")
        now = f"{bytes_text(host.processes_bytes)} now, resident in {of}"
    else:
        now = ""
    parts = [now] if now else []
    if expected is not None and (expected.memory == "device") == on_card and expected.peak_bytes:
        value = expected.peak_bytes
        interval = interval_text(value.low, value.high, value.value)
        around = f" ({interval})" if interval else ""
        parts.append(
            f"peak {value.source.value} {bytes_text(value.value)}{around} by {expected.verb}"
        )
    if not parts:
        return None
    if status.budget is not None:
        parts.append(f"{bytes_text(status.budget.bytes)} allowed")
    if total is not None:
        parts.append(f"the {'card' if on_card else 'host'} has {bytes_text(total)}")
    return Cell("; ".join(parts))


def machine_sections(status: Status) -> list[Section]:
    """The cards, then the host."""
    cards = [_cards(status.cards)] if status.cards else []
    return [*cards, Facts("Host", _host(status.host))]


def _host(host: HostStatus) -> tuple[tuple[str, Cell], ...]:
    used = max(0, host.total_bytes - host.free_bytes)
    limited = host.cgroup_limit_bytes == host.total_bytes
    memory = f"{bytes_text(used)} of {bytes_text(host.total_bytes)} in use"
    full = used > NEARLY_FULL * host.total_bytes
    of = " (limit of the cgroup)" if limited else ""
    busy = f", {share_text(host.busy_share)} busy" if host.busy_share is not None else ""
    rows = [
        ("memory", Cell(memory + of, tone="bad" if full else "")),
        ("cores", Cell(f"{count_text(host.cores)}{busy}")),
    ]
    if host.processes:
        size = f", {bytes_text(host.processes_bytes)}" if host.processes_bytes else ""
        rows.append(("watched", Cell(counted(host.processes, "process", "processes") + size)))
    return tuple(rows)


def _cards(cards: tuple[CardStatus, ...]) -> Table:
    numbers = ("memory, GiB", "busy", "power, W", "°C", "clock, MHz")
    columns = Column("#"), *(Column(name, right=True) for name in numbers)
    notes = []
    for card in cards:
        if card.throttled_by:
            notes.append(
                f"Card {card.index}: its clock is held down by {' and '.join(card.throttled_by)}."
            )
        held = [
            f"{p.name} ({p.pid}) {bytes_text(p.bytes)}{', watched' if p.watched else ''}"
            for p in card.processes
        ]
        if held:
            notes.append(f"Card {card.index}: {'; '.join(held)}.")
    names = dict.fromkeys(card.name for card in cards)
    title = f"{counted(len(cards), 'card')}: {', '.join(names)}"
    return Table(title, columns, tuple(map(_card_row, cards)), tuple(notes))


def _card_row(card: CardStatus) -> tuple[Cell, ...]:
    full = card.used_bytes > NEARLY_FULL * card.total_bytes
    memory = _of(card.used_bytes / GIB, card.total_bytes / GIB, ".3g")
    return (
        Cell(str(card.index)),
        Cell(memory, tone="bad" if full else ""),
        Cell(share_text(card.busy_share)),
        Cell(_of(card.power_w, card.power_limit_w)),
        Cell(count_text(card.temperature_c)),
        Cell(_of(card.clock_mhz, card.highest_clock_mhz)),
    )


def _of(value: float | None, most: float | None, digits: str = ",.0f") -> str:
    if value is None:
        return ABSENT_TEXT
    return f"{value:{digits}}" if most is None else f"{value:{digits}} of {most:{digits}}"
