"""`tune`: the settings with the highest throughput within memory, each run before it is named.

On a CPU memory and time have trials of their own, for what makes resident memory true makes steps
slower.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from brimful import command as commands
from brimful.decide.run.settings import BATCH_SIZE, EVAL_BATCH_SIZE, WORKERS
from brimful.errors import UsageError
from brimful.trials.devices import HERE
from brimful.trials.results import error_of, ignores_the_batch_size
from brimful.trials.session import Options
from brimful.trials.start import start, takes
from brimful.values import Objective, Record, Setting
from brimful.verbs import tune_measured as measured
from brimful.verbs.tune_plan import plan_of
from brimful.verbs.tuning import Tuning


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
    size fits, and the errors of `trials.results` when it does not train.
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
    goal, command = Objective(objective), commands.opened(began.command, WORKERS)
    elsewhere = (BATCH_SIZE, EVAL_BATCH_SIZE, WORKERS)
    others = replace(began, command=command).other_values(elsewhere, num_workers=0)
    with began.session("tune", goal) as session:
        session.limits_the_whole = True
        tuning = Tuning(session, began, goal, others, command, began.asked)

        # 1. Where the batch size goes, and what the script takes by itself.
        if not takes(command):
            measured.find_place(tuning)
        measured.learn_defaults(tuning)

        # 2. Memory at few batch sizes.
        memory, limits = measured.search_memory(tuning)
        if tuning.defaults and not measured.takes_defaults(tuning):
            measured.forget_defaults(tuning)
            memory, limits = measured.search_memory(tuning)
        session.keep(memory.estimate)
        if memory.estimate.ignores_batch_size and measured.same_samples(session.results):
            raise ignores_the_batch_size(tuning.command)
        if memory.largest is None:
            raise memory.stop or measured.nothing_fits(tuning)

        # 3. Speed: loader workers and batch sizes, by turns with the user's own.
        measured.place_workers(tuning)
        room = measured.room_for_loading(tuning, memory.largest)
        result, partial = measured.search_speed(tuning, memory, limits, room)
        if result.chosen is None:
            raise error_of(session, result.failure or session.results[-1])

        # 4. The plan.
        session.keep(result.speed)
        session.keep(plan_of(tuning, result, memory.estimate, room, partial))
    return session.record()
