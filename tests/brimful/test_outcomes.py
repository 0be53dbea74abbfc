from brimful.outcomes import EXHAUSTED, OUT_OF_MEMORY, OUTCOMES, SCRIPT_FAILED
from brimful.values import Outcome


def test_the_table_has_a_row_for_every_outcome():
    assert set(OUTCOMES) == set(Outcome)


def test_only_an_outcome_out_of_memory_ends_a_run_with_the_exit_code_of_what_does_not_fit():
    assert {outcome for outcome, row in OUTCOMES.items() if row.exit_code == 3} == set(
        OUT_OF_MEMORY
    )
    assert not set(OUT_OF_MEMORY) & set(SCRIPT_FAILED)


def test_a_resource_with_a_remedy_of_its_own_is_never_answered_with_a_smaller_batch():
    assert len(EXHAUSTED) == 5
    assert not set(EXHAUSTED) & {*OUT_OF_MEMORY, *SCRIPT_FAILED}
