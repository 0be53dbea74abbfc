from __future__ import annotations

from brimful.decide.beginnings import common_beginning
from brimful.decide.memory.program import Program, program_of
from brimful.decide.memory.size_model import SizeModel, fit_size_model
from tests.decide.programs import Script, affine

BEFORE = [("malloc", "w", affine(4096, 0)), ("malloc", "a", affine(0, 1000)), ("free", "a")]


def program(batch_size: int, *more: tuple) -> Program:
    return program_of(Script([*BEFORE, *more]).trace(batch_size))


def laws(*more: tuple) -> SizeModel:
    found = fit_size_model({size: program(size, *more) for size in (5, 12)})
    assert found is not None
    return found


def test_the_rows_before_the_first_other_event_are_in_common():
    begun = common_beginning(laws(("malloc", "b", affine(0, 2000))), program(100, ("phase", "eval")), 100)
    assert begun is not None
    assert begun.program.events == program(100).events
    assert begun.sizes_at(100) == [4096, 100_000]


def test_the_rows_before_the_first_other_number_of_bytes_are_in_common():
    kinked = ("malloc", "b", lambda b: 2000 * min(b, 50))
    begun = common_beginning(laws(kinked), program(100, kinked, ("free", "b")), 100)
    assert begun is not None and len(begun.sizes_at(100)) == 2
    assert begun.program.events == program(100).events


def test_a_trace_that_ends_earlier_confirms_what_it_has():
    begun = common_beginning(laws(("malloc", "b", affine(0, 2000)), ("free", "b")), program(100), 100)
    assert begun is not None and begun.program.events == program(100).events


def test_nothing_is_in_common_where_the_first_allocation_differs_already():
    other = program_of(Script([("malloc", "w", affine(8192, 0))]).trace(100))
    assert common_beginning(laws(), other, 100) is None


def test_workspaces_of_the_common_rows_keep_their_laws_and_the_others_are_gone():
    found = laws(("malloc", "b", affine(0, 2000)))
    named = SizeModel(found.program, found.laws, found.law_of, {0: ("of-a", ()), 2: ("of-b", ())}, found.fitted_at)
    object.__setattr__(named, "sizes_at", lambda batch_size: found.sizes_at(batch_size))
    begun = common_beginning(named, program(100, ("phase", "eval")), 100)
    assert begun is not None and set(begun.arg_laws) == {0}
