"""The batch size that `predict` names on an imaginary card, against the largest that truly fits
under the same rule.

The truth is found by running the script itself at sizes around the answer, and by replaying sizes
extrapolated from those direct runs at every size between.
"""

import sys
from functools import partial
from pathlib import Path

import pytest

from brimful import predict
from brimful.ask.epochs import Epochs
from brimful.ask.reading import CardView
from brimful.ask.traces import Trials
from brimful.decide.memory.size_model import fit_size_model
from brimful.trials.session import Options, Session, opened
from brimful.values import Outcome, Record
from brimful_inside.simulator.program import program_of
from brimful_inside.simulator.trace import Trace
from tests.brimful.end_to_end.helper import environment

SCRIPT = Path(__file__).parents[3] / "bench" / "card" / "scripts" / "convnet.py"
FLAGS = "--amp fp16 --width 32 --depth 1 --image-size 64 --steps 20"


class Truth:
    """Direct runs of the very command of a record, on its card, with as much memory as they
    take.
    """

    def __init__(self, session: Session, record: Record):
        opened = record.opened
        self._trials = Trials(session, opened.command, opened.device, {})
        self._view = CardView(self._trials, opened.device, opened.budget, Epochs(self._trials))
        self._traces: dict[int, Trace] = {}

    def trace(self, size: int) -> Trace:
        if size not in self._traces:
            assert self._trials.result(size, limitless=True).outcome is Outcome.COMPLETED
            trace = self._trials.trace(size)
            assert trace is not None
            self._traces[size] = trace
        return self._traces[size]

    def fits(self, size: int) -> bool:
        trace = self.trace(size)  # the card's context is known by a first trace
        return self._view.card.fits(partial(self._view.card.replay, trace))

    def fitting_among(self, sizes: range) -> list[int]:
        """Sizes that fit by extrapolation from the three direct runs, each of which it must give to
        the byte.
        """
        programs = {size: program_of(trace) for size, trace in self._traces.items()}
        model = fit_size_model(programs)
        assert all(
            model.difference_from(program, size) is None for size, program in programs.items()
        )
        card = self._view.card
        return [size for size in sizes if card.fits(partial(model.replay_at, size, card.settings))]


@pytest.mark.heavy
def test_what_is_named_is_the_largest_that_fits(tmp_path, monkeypatch):
    for name, value in environment(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    command = (sys.executable, str(SCRIPT), "--batch-size", "{batch_size}", *FLAGS.split())
    record = predict(command, gpu_memory="3GiB", options=Options(home=tmp_path / "home"))
    named = record.prediction.largest_batch_size
    assert len(record.trials) <= 6
    assert {result.outcome for result in record.trials} == {Outcome.COMPLETED}
    assert named > 8, "a card on which there is something to search"

    beyond = int(named / 0.98) + 1  # if this fits, 98 % was missed
    with opened("truth", None, None, Options(home=tmp_path / "home")) as session:
        truth = Truth(session, record)
        assert truth.fits(named)
        assert not truth.fits(beyond)
        truth.fits((named + beyond) // 2)
    larger = truth.fitting_among(range(named + 1, int(1.2 * named) + 2))
    assert all(named >= 0.98 * size for size in larger), (named, larger)
