"""The committed rows, and made ones."""

from bench import accuracy, families
from brimful.decide.memory.intervals import committed_evidence


def test_what_intervals_rest_on_is_what_the_kept_rows_make():
    committed = {
        bench.situation: (bench.low_error, bench.high_error) for bench in committed_evidence()
    }
    for runs, ends in (
        (families.timm_runs(), accuracy.ends_by_families),
        (families.sharded_runs(), accuracy.ends_of_few),
    ):
        for situation in {run.situation for run in runs}:
            of = [run for run in runs if run.situation == situation]
            assert committed[situation] == ends(
                [run.error for run in of], [run.family for run in of]
            )
