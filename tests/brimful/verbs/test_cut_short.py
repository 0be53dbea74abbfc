"""Each verb, with each of its trials in turn ended by Ctrl-C, SIGTERM or the time limit: what is
known by then is the answer, it claims no more than that, and no trial runs after it.
"""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from brimful import predict, tune
from brimful.cli import main, views
from brimful.errors import BrimfulError, Interrupted, Terminated, TimeIsUp
from brimful.show.headline import headline
from brimful.show.markdown import render_markdown
from brimful.values import NOT_LOOKED_AT, Outcome, Record
from brimful.verbs.audit import audit
from brimful.verbs.check import FILE, LOCK, check
from brimful.verbs.compare import Until, compare
from brimful.verbs.request import request
from tests.brimful.ask import test_cards as test_which_card
from tests.brimful.ask import test_grid
from tests.brimful.trials import test_locate
from tests.brimful.verbs import test_check, test_solve
from tests.brimful.verbs.test_compare import WORDS
from tests.brimful.verbs.world import COMMAND, GIB, Learning, Uneven, World, reporting, work

PREDICT = sys.modules["brimful.verbs.predict"]
BY = {Interrupted: 130, KeyboardInterrupt: 130, Terminated: 143, TimeIsUp: 0}
OUTCOMES = {Interrupted: Outcome.INTERRUPTED, Terminated: Outcome.TERMINATED}


class Case(NamedTuple):
    world: Callable[[], World]
    more: dict[str, Any]
    argv: tuple[str, ...] = COMMAND
    verb: Callable[..., Any] = predict


class End(NamedTuple):
    trials: int
    record: Record | None
    error: BrimfulError | None
    text: str


def ended(case: Case, by: type[BaseException] = Interrupted, number: int = 0) -> End:
    """The end of a verb whose trial of this number ends so; 0: none does."""
    world, trials = case.world(), []
    launch = world.launch

    def launched(trial, *rest, **more):
        trials.append(trial)
        if len(trials) != number:
            return launch(trial, *rest, **more)
        if by not in OUTCOMES:
            raise by()
        result = launch(trial, *rest, **more)
        return replace(result, outcome=OUTCOMES[by], reports=(), phases={}, peak=None)

    world.launch = launched  # type: ignore[method-assign]
    try:
        record = work(world, case.verb, case.argv, **case.more)
    except BrimfulError as error:
        return End(len(trials), None, error, error.problem)
    record = record[0] if isinstance(record, tuple) else record
    render_markdown(record)  # whatever is known has a page
    return End(len(trials), record, None, headline(record).sentence)


def asked(size: int) -> tuple[str, ...]:
    return ("my-train", "--batch-size", str(size))


def alike(world: World | None = None) -> World:
    return reporting(world=world, alike=[[8, 0], [8, 9], [9, 0]])


HERE, SMALL, CARDS = {"device": "cpu", "budget": "4GiB"}, {"gpu_memory": "4GiB"}, {"gpu": "t4,l4"}
CASES = {
    "open": Case(World, SMALL),
    "asked": Case(World, SMALL, asked(64)),
    "does not fit": Case(lambda: World(fixed=3 * GIB, dataset=None), SMALL, asked(4000)),
    "changes": Case(World, SMALL | {"what_if": True}, asked(64)),
    "uneven": Case(lambda: Uneven(dataset=None), SMALL),
    "uneven, asked": Case(lambda: Uneven(dataset=None), SMALL, asked(64)),
    "evaluation": Case(lambda: World(eval_bytes=3 * GIB), SMALL),
    "place": Case(test_locate.world, SMALL, test_locate.COMMAND),
    "no place": Case(Uneven, SMALL, test_locate.COMMAND),
    "cards": Case(alike, CARDS | {"gpu": test_which_card.FOUR}),
    "cards, asked": Case(alike, CARDS, asked(9000)),
    "cards, place": Case(lambda: alike(test_locate.world()), CARDS, test_locate.COMMAND),
    "cards, uneven": Case(lambda: alike(Uneven(dataset=None)), CARDS),
    "cards, solve": Case(test_solve.Shaped, CARDS | {"solve": "max_length"}, test_solve.COMMAND),
    "grid": Case(test_grid.Table, SMALL | {"grid": test_grid.FOUR}, test_grid.COMMAND),
    "grid, odd": Case(
        lambda: test_grid.Table(odd=3), SMALL | {"grid": test_grid.FOUR}, test_grid.COMMAND
    ),
    "solve": Case(test_solve.Shaped, SMALL | {"solve": "max_length"}, test_solve.COMMAND),
    "tune here, largest": Case(World, HERE | {"objective": "largest"}, COMMAND, tune),
    "tune here": Case(World, HERE, asked(24), tune),
    "compare": Case(Learning, {"device": "cpu", "until": Until(60.0)}, WORDS, compare),
    "compare, predicted": Case(World, {"gpu": "l4"}, WORDS, compare),
    "request": Case(alike, CARDS, asked(24), request),
    "audit": Case(World, SMALL, asked(24), audit),
}
# So many trials are needed before something can be said, where it is not one.
NEEDS = {
    "tune here": 4,  # the first that shows a speed
    "compare": 2,  # a pair
    # what rests on whole predictions has none before its end
    "compare, predicted": 99,
    "request": 99,
}


@pytest.mark.parametrize("name", CASES)
def test_whichever_trial_is_the_last_what_is_known_is_the_answer_and_no_other_runs(name):
    case = CASES[name]
    whole = ended(case)
    for number in range(1, whole.trials + 1):
        by = list(BY)[number % len(BY)]
        end = ended(case, by, number)
        assert end.trials == number, "no trial after it"
        if number <= NEEDS.get(name, 1):
            assert isinstance(end.error, Interrupted if by is KeyboardInterrupt else by)
            continue
        assert end.error is None, end.text
        assert end.record is not None and end.record.closed.exit_code == BY[by]
        if case.verb is predict:
            claims_no_more(end, whole)


def claims_no_more(end: End, whole: End) -> None:
    assert re.match(r"(Interrupted|The time limit was up) after \d+ trials?: ", end.text)
    assert "stops growing" not in end.text
    answer, of_all = end.record.prediction, whole.record.prediction
    if answer.gpu == of_all.gpu:  # of several cards another one may be the first then
        assert answer.largest_batch_size in (None, of_all.largest_batch_size)
    assert not answer.exact or of_all.exact


def test_a_size_that_was_asked_for_and_not_looked_at_is_named():
    end = ended(CASES["asked"], Interrupted, 2)
    assert "and 64 was not looked at; ask again. Batch size 5 fits" in end.text


def test_where_no_epoch_of_uneven_batches_was_looked_at_what_fits_says_so():
    for name, number in (("uneven", 3), ("no place", 2)):
        end = ended(CASES[name], Interrupted, number)
        assert "nor was an epoch of uneven batches, which may take more than is said" in end.text


def test_a_search_that_came_to_its_end_is_known_although_a_trial_after_it_was_cut_short():
    end = ended(Case(lambda: Uneven(dataset=None), SMALL, asked(65)), Interrupted, 6)
    assert (
        "batch size 65 was not looked at" in end.text and "The largest that fits is 61" in end.text
    )


def test_the_trial_before_a_place_was_found_is_of_the_command_as_it_stands_on_its_own_card_alone():
    assert "The command fits a card" in ended(CASES["place"], Terminated, 2).text
    which = ended(CASES["cards, place"], Terminated, 3).record.prediction.which
    assert [(line.gpu.key, line.problem) for line in which] == [("l4", ""), ("t4", NOT_LOOKED_AT)]


def test_a_value_that_was_solved_for_is_named_by_its_setting():
    end = ended(CASES["solve"], Interrupted, 3)
    assert ". max_length 12 fits a card" in end.text and end.record.prediction.next_command is None


def test_cards_and_combinations_that_were_not_looked_at_are_counted_apart():
    end = ended(CASES["cards"], Terminated, 4)
    assert "not every card was looked at; ask again. Of 3 cards looked at 3 fit" in end.text
    end = ended(CASES["grid"], TimeIsUp, 5)
    assert "Of 5 combinations looked at 5 fit" in end.text
    cells = end.record.prediction.grid
    assert len(cells) == 16 and sum(cell.problem == NOT_LOOKED_AT for cell in cells) == 11
    assert "fails" not in render_markdown(end.record)


@pytest.mark.parametrize("stage", ["explain", "speed_of", "_sizes", "after_prediction"])
@pytest.mark.parametrize("by", [KeyboardInterrupt, Terminated])
def test_an_interrupt_after_the_last_trial_leaves_the_answer(monkeypatch, stage, by):
    real, calls = getattr(PREDICT, stage), []

    def once(*arguments, **more):
        calls.append(stage)
        if len(calls) == (2 if stage == "speed_of" else 1):  # the first is of what stood so far
            raise by
        return real(*arguments, **more)

    whole = ended(CASES["asked"]).record.prediction
    monkeypatch.setattr(PREDICT, stage, once)
    end = ended(CASES["asked"])
    assert end.record is not None and end.record.closed.exit_code == BY[by]
    answer = end.record.prediction
    assert (answer.peak, answer.largest_batch_size) == (whole.peak, whole.largest_batch_size)
    assert "the answer is there" in end.text


@pytest.mark.parametrize(("by", "code"), [(Interrupted, 130), (Terminated, 143)])
def test_a_check_that_is_cut_short_keeps_the_jobs_before_and_no_baseline_of_a_part(
    tmp_path: Path, monkeypatch, by, code
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text(test_check.TWO)
    end = ended(Case(test_check.Blocks, {"update": True}, (), check), by, 4)
    assert end.trials == 4 and end.record.closed.exit_code == code
    assert [job.exit_code for job in end.record.check.jobs] == [0, code]
    assert '"gpt"' in (tmp_path / LOCK).read_text() and "wide" not in (tmp_path / LOCK).read_text()
    (tmp_path / LOCK).unlink()
    assert isinstance(ended(Case(test_check.Blocks, {"update": True}, (), check), by, 2).error, by)
    assert not (tmp_path / LOCK).exists()


def test_a_job_whose_time_is_up_has_no_baseline_and_others_go_on(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / FILE).write_text(test_check.TWO)
    end = ended(Case(test_check.Blocks, {"update": True}, (), check), TimeIsUp, 2)
    assert [job.exit_code for job in end.record.check.jobs] == [TimeIsUp.exit_code, 0]
    assert '"gpt"' not in (tmp_path / LOCK).read_text()


@pytest.mark.parametrize(("by", "code"), [(Interrupted, 130), (Terminated, 143), (TimeIsUp, 0)])
def test_the_command_line_ends_with_the_code_of_what_cut_a_prediction_short(by, code, capsys):
    end = ended(CASES["open"], by, 3)
    assert views.show_prediction(end.record, json=False) == code
    assert "Interrupted" in capsys.readouterr().out or by is TimeIsUp


def test_an_audit_that_is_cut_short_says_what_its_steps_showed():
    def cut(result):
        return replace(result, outcome=Outcome.TERMINATED)

    record = work(reporting(cut), audit, asked(24), gpu_memory="8GiB")
    assert record.audit is not None and record.closed.exit_code == 143
    assert [note.code for note in record.notes if "the steps that ran" in note.problem] == [
        "partial"
    ]


def test_an_interrupt_while_brimful_is_imported_ends_without_a_traceback(monkeypatch):
    class Interrupts:
        @staticmethod
        def find_spec(name, *rest):
            if name == "brimful.cli.app":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "brimful.cli.app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Interrupts, *sys.meta_path])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130
