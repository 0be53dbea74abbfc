"""`tune`: the settings with the highest throughput within memory, each run before it is named."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from brimful import command as commands
from brimful.decide.run.settings import BATCH_SIZE, EVAL_BATCH_SIZE, WORKERS
from brimful.errors import UsageError
from brimful.values import Objective, Record, Setting
from brimful.verbs import tune_measured, tune_plan
from brimful.verbs.devices import HERE
from brimful.verbs.session import Options
from brimful.verbs.start import start, takes


def tune(
    argv: Sequence[str],
    *,
    device: str = "auto",
    objective: str = Objective.THROUGHPUT,
    settings: Mapping[str, Setting] | None = None,
    options: Options | None = None,
) -> Record:
    """Finds settings for the command on what is here. Returns the record, whose `plan` is the
    answer.

    Raises UsageError where the command takes no batch size or ignores it, DoesNotFit when no batch
    size fits, and the errors of `verbs.results` when it does not train.
    """
    began = start(argv, settings, options, device, HERE)
    if not takes(began.command) and not began.finds_places:
        raise commands.no_place_for_a_batch_size()
    if objective not in list(Objective):
        raise UsageError(
            f"--objective {objective}",
            "an objective is " + " or ".join(Objective),
            "leave it out for the highest throughput",
        )
    goal = Objective(objective)
    began = replace(began, command=commands.opened(began.command, WORKERS))
    others = began.other_values((BATCH_SIZE, EVAL_BATCH_SIZE, WORKERS), num_workers=0)
    with began.session("tune", goal) as session:
        session.limits_the_whole = True
        tune_measured.run(session, tune_plan.Task(began, goal, others))
    return session.record()
