"""A phase's peak belongs to it: reset at its start, read at its end, whatever ran before."""

from hypothesis import given
from hypothesis import strategies as st

from brimful_inside.probe.memory.host_memory import HostMeter
from brimful_inside.probe.memory.phases import Phases


class Memory:
    """Stands for both meters: `now` bytes are used, and the mark is reset at each start."""

    is_true = True

    def __init__(self):
        self.now = self.mark = 0
        self.starts = []

    def use(self, nbytes):
        self.now = nbytes
        self.mark = max(self.mark, nbytes)

    def start(self, name):
        self.starts.append(name)
        self.mark = self.now

    def phase_was(self, name):
        self.starts.append("was " + name)

    def reset(self):
        self.mark = self.now

    def peaks(self):
        return self.mark, self.mark + 1, self.mark + 2

    def peak_bytes(self):
        return self.mark


def phases():
    memory = Memory()
    return memory, Phases(memory, memory)


def test_named_phases_nest_and_hold_against_what_is_seen_inside_it():
    memory, seen = phases()
    seen.to("train")
    visit = seen.enter("encoding")
    memory.use(700)
    assert not seen.to("eval") and seen.named
    memory.use(20)
    inner = seen.enter("tokenizing")
    seen.leave(inner, cached=False)
    assert seen.current == "encoding"
    seen.leave(visit, cached=False)
    seen.leave(inner, cached=False)  # once more, out of order: nothing happens
    assert seen.current == "train" and not seen.named
    peaks = seen.read()
    assert peaks["encoding"].allocated_bytes == 700 and "eval" not in peaks


def test_what_is_left_in_the_cache_by_a_phase_that_was_tried_does_not_count_as_the_one_before():
    memory, seen = phases()
    memory.use(10)
    visit = seen.enter("train")
    memory.use(700)
    seen.leave(visit, cached=False, then="train")
    assert seen.current == "train" and not seen.named
    assert seen.read()["setup"].reserved_bytes == 11 and seen.read()["train"].allocated_bytes == 700
    outer = seen.enter("tuning")
    seen.leave(seen.enter("eval"), cached=False, then="train")
    assert seen.current == "tuning", "what the script named holds on"
    seen.leave(outer, cached=False)
    assert seen.current == "train"


def test_a_visit_that_was_not_cached_wins_over_those_that_were():
    memory, seen = phases()
    for cached, nbytes in ((True, 900), (False, 30), (True, 900)):
        visit = seen.enter("encoding")
        memory.use(nbytes)
        memory.use(0)
        seen.leave(visit, cached)
        if seen.read()["encoding"].visits == 1:
            assert seen.read()["encoding"].cached and seen.read()["encoding"].host_bytes is None
    peak = seen.read()["encoding"]
    assert not peak.cached and peak.allocated_bytes == 30 and peak.visits == 3


def test_what_was_taken_for_an_evaluation_can_be_counted_as_training():
    memory, seen = phases()
    seen.to("eval")
    memory.use(300)
    seen.to("train", closing_as="train")
    memory.use(100)
    peaks = seen.read()
    assert peaks["train"].allocated_bytes == 300 and "eval" not in peaks


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["train", "eval", "test"]), st.lists(st.integers(0, 1000), max_size=4)
        ),
        max_size=12,
    )
)
def test_peaks_do_not_depend_on_what_ran_before(stretches):
    memory, seen = phases()
    expected, visits, starts, now = {"setup": 0}, {"setup": 1}, ["setup"], "setup"
    for name, uses in stretches:
        assert seen.to(name) == (name != now)
        starts += [name] * (name != now)
        visits[name], now = visits.get(name, 0) + (name != now), name
        expected[name] = max(expected.get(name, 0), memory.now, *uses, 0)
        for nbytes in uses:
            memory.use(nbytes)
    for name, peak in seen.read().items():
        highest = expected[name]
        assert (peak.allocated_bytes, peak.host_bytes, peak.visits) == (
            highest,
            highest,
            visits[name],
        )
        assert (peak.reserved_bytes, peak.device_bytes) == (highest + 1, highest + 2)
    assert seen.read().keys() == expected.keys() and memory.starts == starts
    assert seen.whole().allocated_bytes == max(expected.values())


def test_where_the_kernel_names_no_high_water_mark_the_peak_of_the_whole_process_counts(
    monkeypatch, tmp_path
):
    (tmp_path / "status").write_bytes(b"Name:\tpython\nVmRSS:\t1 kB\n")
    monkeypatch.setattr(
        "builtins.open", lambda *_, real=open, **more: real(tmp_path / "status", "rb", **more)
    )
    assert HostMeter.peak_bytes() > 10 << 20
