"""`predict --grid`: tables of one or two settings, in worlds where the truth is known."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from brimful import predict
from brimful.decide.memory import uneven
from brimful.errors import CommandFailed
from brimful.show.headline import headline
from brimful.show.markdown import render_markdown
from brimful.show.text import bytes_text
from brimful.values import Outcome, Trial
from brimful_inside.simulator.roofline import Kernel
from brimful_inside.simulator.trace import Free, Malloc
from tests.brimful.verbs.world import MIB, Uneven, World, work

COMMAND = ("my-train", "--batch-size", "{batch_size}", "--max-length", "{max_length}")
FOUR = {"batch_size": (1, 2, 4, 8), "max_length": (512, 1024, 2048, 4096)}


@dataclass
class Table(World):
    """A sample takes `linear` for each of `max_length` numbers; `odd` more allocations at batch
    sizes above it.
    """

    dataset: int | None = None
    linear: int = 128 * 1024
    odd: int | None = None
    clocked: bool = False
    extra: int = 0  # numbers of a sample beyond its length
    length: int = 1

    def _imaginary(self, trial: Trial, size: int, folder: Path):
        self.length = int(trial.settings.get("max_length", 1))
        sample = super()._imaginary(trial, size, folder)
        return replace(
            sample,
            reports=tuple(
                replace(report, loaders=[self._of_length(loader) for loader in report.loaders])
                for report in sample.reports
            ),
        )

    def _of_length(self, loader):
        batches = [
            replace(batch, shapes=[[batch.samples, self.length + self.extra]])
            for batch in loader.batches
        ]
        return replace(loader, batches=batches)

    def rows(self, size: int):
        rows = World(fixed=self.fixed, linear=self.linear * self.length).rows(size)
        if self.odd is not None and size > self.odd:
            rows[2:2] = [Malloc(5, MIB, "aten.cat"), Free(5)]
        work = Kernel("aten.mm.default", "memory", 0, 10_000 * size * self.length)
        return [*rows, work] if self.clocked else rows


def tabled(world, grid=FOUR, command=COMMAND, **more):
    return work(world, predict, command, **({"gpu_memory": "4GiB", "grid": grid} | more))


def at(record, **settings):
    return next(cell for cell in record.prediction.grid if cell.settings == settings)


def test_a_row_takes_two_small_traces_and_one_at_the_edge_and_each_cell_is_its_own_prediction():
    world = Table()
    cells = tabled(world).prediction.grid
    assert [tuple(cell.settings.values()) for cell in cells] == [
        (b, n) for b in FOUR["batch_size"] for n in FOUR["max_length"]
    ]
    assert len(world.launched) <= 13 and any(not cell.traced for cell in cells)
    assert {cell.verdict for cell in cells} == {"fits", "does_not_fit"}
    for cell in cells[::5]:  # one of each row and column
        prediction = work(
            Table(), predict, COMMAND, gpu_memory="4GiB", settings=cell.settings
        ).prediction
        assert (cell.verdict, cell.peak_bytes.value) == (
            prediction.verdict,
            prediction.peak.device_bytes,
        )


def test_where_the_operations_change_every_cell_of_the_row_is_traced():
    assert all(cell.traced for cell in tabled(Table(odd=2)).prediction.grid)


def test_the_best_cell_is_the_fastest_that_fits_it_is_traced_and_the_headline_names_it():
    record = tabled(Table())
    (best,) = [cell for cell in record.prediction.grid if cell.best]
    fitting = [cell for cell in record.prediction.grid if cell.verdict == "fits"]
    assert best in fitting and best.traced
    assert (
        record.prediction.peak.device_bytes == best.peak_bytes.value
        and record.prediction.batch_size == best.settings["batch_size"]
    )
    sentence = headline(record).sentence
    assert sentence.startswith(f"Of 16 combinations {len(fitting)} fit")
    assert (
        f"batch_size {best.settings['batch_size']}, max_length {best.settings['max_length']:,}"
        in sentence
    )
    words = record.prediction.next_command.line.split()
    assert words[-1] == str(best.settings["max_length"]) and words[2] == str(
        best.settings["batch_size"]
    )


def test_where_nothing_fits_the_cell_that_takes_least_is_answered_for():
    record = tabled(Table(fixed=5000 * MIB))
    assert record.prediction.verdict == "does_not_fit"
    assert at(record, batch_size=1, max_length=512).best
    assert headline(record).sentence.startswith("None of 16 combinations fits")


def test_one_setting_alone_makes_a_table_of_one_side():
    record = work(
        Table(),
        predict,
        COMMAND,
        gpu_memory="4GiB",
        grid={"max_length": (512, 4096, 40_000)},
        settings={"batch_size": 2},
    )
    assert [cell.verdict for cell in record.prediction.grid] == ["fits", "fits", "does_not_fit"]
    assert all(cell.traced for cell in record.prediction.grid), (
        "of three values none is left to extrapolate"
    )


def test_words_are_traced_and_a_cell_where_the_script_fails_says_why():
    command = ("my-train", "--batch-size", "{batch_size}", "--precision", "{precision}")
    world = Table(
        outcome_of=lambda trial, size: (
            Outcome.CRASHED if trial.settings["precision"] == "fp8" else None
        )
    )
    record = tabled(world, {"precision": ("fp16", "fp8"), "batch_size": (1, 2, 4, 8)}, command)
    assert at(record, precision="fp8", batch_size=1).verdict is None
    assert "precision fp8" in at(record, precision="fp8", batch_size=1).problem
    assert at(record, precision="fp16", batch_size=8).verdict == "fits"
    words_alone = tabled(
        Table(), {"precision": ("fp16", "fp8")}, command, settings={"batch_size": 3}
    )
    assert [cell.traced for cell in words_alone.prediction.grid] == [True, True]


def test_a_command_that_trains_in_no_cell_of_the_first_row_raises_its_error():
    world = Table(outcome_of=lambda trial, size: Outcome.CRASHED)
    with pytest.raises(CommandFailed, match="max_length 512"):
        tabled(world)
    assert len(world.launched) == 4


def test_batch_sizes_beyond_the_data_set_are_those_of_the_data_set():
    record = tabled(Table(dataset=3), {"batch_size": (1, 2, 4, 8)}, settings={"max_length": 512})
    peaks = [cell.peak_bytes for cell in record.prediction.grid]
    assert peaks[2] == peaks[3] != peaks[1]
    clocked = tabled(
        Table(dataset=3, clocked=True),
        {"batch_size": (1, 8)},
        settings={"max_length": 512},
        gpu="l4",
        gpu_memory=None,
    )
    (warning,) = [
        trial for trial in clocked.prediction.warnings if trial.code == "batch-exceeds-dataset"
    ]
    assert warning.problem == "the batch size is 8 and the data set has 3 samples"


@pytest.mark.parametrize(("extra", "in_tokens"), [(0, True), (1, False)])
def test_the_speed_is_in_tokens_where_one_side_is_the_length_of_the_samples(extra, in_tokens):
    record = tabled(Table(clocked=True, extra=extra), gpu="a100-40gb", gpu_memory=None)
    cell, other = (at(record, batch_size=8, max_length=length) for length in (512, 1024))
    assert cell.samples_per_s.value > other.samples_per_s.value
    if in_tokens:
        assert cell.tokens_per_s.value == 512 * cell.samples_per_s.value
        assert other.tokens_per_s.value == 1024 * other.samples_per_s.value
        assert "tokens/s" in headline(record).sentence
    else:
        assert cell.tokens_per_s is None and "samples/s" in headline(record).sentence


def test_a_setting_that_changes_neither_memory_nor_time_is_named_and_one_that_does_is_not():
    command = (*COMMAND, "--num-workers", "{num_workers}")
    sides = {"num_workers": (0, 2, 4), "max_length": (512, 1024)}
    warnings = tabled(Table(clocked=True), sides, command, settings={"batch_size": 2}).prediction
    (warning,) = [cell for cell in warnings.warnings if cell.code == "changes-nothing"]
    assert (
        warning.problem == "num_workers changes nothing: memory and time are the same at 0, 2 and 4"
    )
    assert not [
        cell for cell in tabled(Table()).prediction.warnings if cell.code == "changes-nothing"
    ]


CLOCKED_CARD = {"gpu": "t4", "gpu_memory": None, "budget": "4GiB"}


class Clocked(Uneven):
    """The larger a batch, the faster."""

    def rows(self, size):
        return [*super().rows(size), Kernel("aten.mm.default", "memory", 0, 10_000 * size)]


@pytest.fixture
def short_epochs(monkeypatch):
    monkeypatch.setattr(uneven, "MOST_STEPS", 60)


@pytest.mark.usefixtures("short_epochs")
def test_the_best_cell_fits_over_an_epoch_of_uneven_batches_and_so_do_cells_near_it():
    sides, world = {"batch_size": (8, 16, 36, 70, 80)}, Clocked()
    record = tabled(world, sides, settings={"max_length": 60}, **CLOCKED_CARD)
    cells = {cell.settings["batch_size"]: cell for cell in record.prediction.grid}
    drawn = [trial.settings["batch_size"] for trial in world.launched if trial.as_drawn]
    assert drawn == [80, 70] and cells[80].verdict != "fits" and cells[70].best
    assert cells[70].peak_bytes.value == record.prediction.peak.device_bytes
    assert {size for size, cell in cells.items() if cell.is_least} == {8, 16}
    alone = work(
        Clocked(), predict, COMMAND, settings={"batch_size": 8, "max_length": 60}, **CLOCKED_CARD
    ).prediction
    assert cells[8].peak_bytes.value == alone.largest_batches_peak.device_bytes
    page = render_markdown(record)
    assert f"over {bytes_text(cells[8].peak_bytes.value)} " in page
    assert "over: of the largest batch alone; samples vary, and over an epoch" in page
