"""What an audit finds: each finding is a function of `_FINDERS`; its name is the code, its
docstring the condition.

An ordinary, sound script meets none of them.
"""

from collections.abc import Callable, Mapping, Sequence

from brimful.decide.audit import batches, loading, training
from brimful.decide.audit.observed import Observed, Texts
from brimful.decide.loaders_seen import main_loader
from brimful.values import Asked, Budget, Diagnostic, Machine, Setting, TrialResult
from brimful_inside.simulator.roofline import Kernel

_FINDERS: tuple[Callable[[Observed], Texts], ...] = (
    training.does_not_fit,
    batches.hidden_cap,
    batches.hidden_accumulation,
    batches.several_loaders,
    training.learning_rate,
    training.ignored_learning_rate,
    batches.batch_exceeds_dataset,
    loading.repeated_batches,
    loading.undrawn_samples,
    batches.split_batch,
    batches.evaluation_batch_exceeds_dataset,
    loading.loader_bound,
    loading.too_many_workers,
    loading.idle_workers,
    loading.replaced_workers,
    loading.long_evaluation,
    batches.remainder,
    training.ignored_setting,
    training.full_precision,
    training.frequent_reads,
    training.memory_idle,
    training.memory_grows,
)

CODES = tuple(find.__name__.replace("_", "-") for find in _FINDERS)


def findings(
    sample: TrialResult,
    requested: Mapping[str, Setting],
    budget: Budget | None = None,
    machine: Machine | None = None,
    script: Sequence[Asked] = (),
    kernels: Sequence[Kernel] = (),
) -> tuple[Diagnostic, ...]:
    """All findings of a trial, in the order of `CODES`; () for a sound script or a trial without a
    report. `kernels`: of a step, where an imaginary card showed them.
    """
    if not sample.reports:
        return ()
    report = sample.reports[0]
    iterated = [loader for loader in report.loaders if loader.batches_seen > 0]
    loaders = tuple(loader for loader in iterated if loader.role == "train")
    evaluations = tuple(loader for loader in iterated if loader.role == "eval")
    observed = Observed(
        sample,
        report,
        requested,
        evaluations,
        loaders,
        main_loader(sample),
        budget,
        machine,
        {asked.setting: asked for asked in script},
        kernels,
    )
    return tuple(
        Diagnostic(code, *texts)
        for code, find in zip(CODES, _FINDERS, strict=True)
        if (texts := find(observed))
    )
