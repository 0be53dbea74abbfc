from hypothesis import given
from hypothesis import strategies as st

from bench.card.jobs import EDGES, JOBS, drawn, in_order, memory_jobs
from bench.card.measured import RESOLUTION, edge


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_an_edge_is_found_from_below_and_from_above(start: int, largest: int):
    low, high = edge(lambda size: size <= largest, start)
    assert low is not None and high is not None and low <= largest < high
    assert high - low <= max(1, low // RESOLUTION)


def test_an_edge_is_told_as_far_as_it_was_seen():
    answers = iter([True, True, None])
    assert edge(lambda size: next(answers), 8) == (9, None)
    assert edge(lambda size: False, 5) == (None, 1), "not even one sample runs"


def test_drawn_networks_are_the_same_every_time_and_differ_from_each_other():
    jobs = [drawn(seed, 8) for seed in range(12)]
    assert jobs == [drawn(seed, 8) for seed in range(12)]
    assert len({of.flags for of in jobs}) == 12
    assert {of.script.stem for of in jobs} == {"gpt", "convnet"}


def test_runs_are_named_once_and_go_from_the_smallest_of_all_to_the_largest():
    runs, sizes = in_order(), [of.batch_sizes for of in JOBS]
    assert len(runs) == len(set(runs)) == sum(map(len, sizes))
    assert [size for _, size in runs[: len(JOBS)]] == [of[0] for of in sizes]
    assert [size for _, size in runs[len(JOBS) : 2 * len(JOBS)]] == [of[-1] for of in sizes]
    assert len(memory_jobs(tuple(range(8)))) == 16 and len(EDGES) == 8
    assert all(of.script.is_file() for of in (*JOBS, *EDGES))
