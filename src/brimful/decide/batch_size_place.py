"""Where the batch size of a script without a flag is set, from what trials showed: the literal of
its text that the training loader's number comes from, or the loader. And where its loader workers
are: at the loader."""

from collections.abc import Sequence
from dataclasses import replace

from brimful.decide.loaders_seen import input_size, main_loader, samples_of
from brimful.decide.run.settings import BATCH_SIZE
from brimful.errors import UsageError
from brimful.outcomes import OUT_OF_MEMORY
from brimful.values import Command, Diagnostic, Outcome, Place, Report, TrialResult
from brimful_inside.wire import LoaderSeen

FLAG, SCRIPT, LOADER, NONE, AUTO = "flag", "script", "loader", "none", "auto"
CHOICES = (AUTO, FLAG, SCRIPT, LOADER, NONE)
WORKERS_ALONE = "workers"  # of the places that a trial can find
_NAMED = 3  # other places of the same number


def require_choice(text: str | None) -> str:
    """What --batch-size-from asks for. Raises UsageError."""
    if text not in (None, *CHOICES):
        raise UsageError(
            f"--batch-size-from {text}",
            "the batch size is set by a flag, in the script's text, where the loader is made, or "
            "not at all",
            f"name one of {', '.join(CHOICES)}",
        )
    return text or AUTO


def places_in(result: TrialResult, wants: str = AUTO) -> tuple[Place, ...]:
    """Where the training loader's number can be set, best first: in the script's text, then at the
    loader. Without a loader, where the text has the size of the model's input."""
    train, report = main_loader(result), next(iter(result.reports), None)
    if report is None:
        return ()
    others = [loader for loader in report.loaders if loader is not train and loader.role != "train"]
    places = report.places if train is None else [_alone(place, others) for place in train.places]
    return tuple(place for place in places if wants in (AUTO, place.kind))


def workers_place_in(results: Sequence[TrialResult]) -> Place | None:
    """Where the training loader's number of workers can be set, as the first of these trials that
    saw it shows.
    """
    loaders = map(main_loader, results)
    return next(
        (
            loader.workers_place
            for loader in loaders
            if loader is not None and loader.workers_place is not None
        ),
        None,
    )


def eval_place_in(result: TrialResult, training: Place) -> Place | None:
    """Where the evaluation loader's number is set without the training loader's; None where the two
    are one.
    """
    evaluated, train = main_loader(result, "eval"), main_loader(result)
    if evaluated is None or train is None:
        return None
    for place in evaluated.places:
        same = [
            (known.file, known.line, known.column, known.calls)
            for known in (*train.places, training)
        ]
        if (place.file, place.line, place.column, place.calls) not in same:
            return _alone(place, [train])
    return None


def _alone(place: Place, others: list[LoaderSeen]) -> Place:
    """Loaders made by other calls keep their numbers."""
    if place.kind != LOADER:
        return place
    calls = [
        known.calls
        for other in others
        for known in other.places
        if known.kind == LOADER and known.calls != place.calls
    ]
    return replace(place, not_calls=calls)


def limited_at(result: TrialResult, place: Place) -> str | None:
    """The line in which the script's own `min` or `max` sets another number beside this one, of
    which the loader gets one: "train.py:25 (`batch = min(batch, 4)`)". None without one, and where
    that number is no smaller than the data set.
    """
    train = main_loader(result)
    if train is None or place.limit is None:
        return None
    samples = samples_of(train)
    return place.limited_at if samples is None or place.limit < samples else None


def doubt(
    first_result: TrialResult, second_result: TrialResult, place: Place, size: int
) -> str | None:
    """Why `place` is not that of the batch size alone, by a trial at the script's own number and
    one at `size`; else None.
    """
    if second_result.outcome in OUT_OF_MEMORY or not first_result.reports:
        return None
    if second_result.outcome is not Outcome.COMPLETED or not any(
        report.steps for report in second_result.reports
    ):
        return f"the script fails with {size:,} there"
    before, after = _parameters(first_result.reports[0]), _parameters(second_result.reports[0])
    if before != after and first_result.outcome is Outcome.COMPLETED:
        return (
            f"the model follows it as well ({before:,} parameters with {place.number:,}, "
            f"{after:,} with {size:,})"
        )
    first, second = main_loader(first_result), main_loader(second_result)
    if not place.loader:
        drawn, scaled = input_size(first_result.reports[0]), input_size(second_result.reports[0])
        follows = drawn is not None and scaled is not None and scaled * place.number == drawn * size
        return (
            None
            if follows
            else f"with {size:,} there the model's input has {scaled or 'no'} samples"
        )
    if first is None or second is None or first.batch_size is None or second.batch_size is None:
        return None
    if abs(second.batch_size - first.batch_size * size / place.number) >= 1:
        return f"with {size:,} there the loader is made with {second.batch_size:,}"
    if _is_in_samples(first, second):
        return (
            f"the samples follow it as well ({_shapes(first)} with {place.number:,}, "
            f"{_shapes(second)} with {size:,})"
        )
    return None


def _parameters(report: Report) -> int:
    return sum(optimizer.parameters for optimizer in report.optimizers)


def _shapes(loader: LoaderSeen) -> str:
    return " and ".join("×".join(map(str, shape)) for shape in loader.batches[0].shapes[:2])


def _is_in_samples(first: LoaderSeen, second: LoaderSeen) -> bool:
    """Whether a batch has its size in a second dimension too, at both sizes."""
    if not first.batches or not second.batches:
        return False
    for shape, other in zip(first.batches[0].shapes, second.batches[0].shapes, strict=False):
        pairs = list(zip(shape, other, strict=False))
        if pairs and pairs[0][0] != pairs[0][1] and pairs[0] in pairs[1:]:
            return True
    return False


def with_place(command: Command, name: str, place: Place) -> Command:
    """The command whose setting `name` is set at `place`, where its own number stands."""
    return replace(
        command, places={**command.places, name: place}, given={**command.given, name: place.number}
    )


def set_at(place: Place) -> str:
    """ "train.py:5 has 128"."""
    if place.kind == LOADER:
        return f"{place.loader} makes the DataLoader with {place.number:,}"
    return f"{_short(place)} has {place.number:,}"


def _short(place: Place) -> str:
    return f"{place.file.rpartition('/')[2]}:{place.line}"


def is_followed(place: Place, trials: Sequence[TrialResult], size: int, cap: int | None) -> bool:
    """Whether trials with a number at a place showed that the loader follows it up to such a size.
    `cap`: what the script's loader makes at most, where they showed that.
    """
    if place.kind == LOADER:
        return True
    sizes = [
        int(result.trial.settings[BATCH_SIZE])
        for result in trials
        if result.outcome is Outcome.COMPLETED
        and result.trial.command.places.get(BATCH_SIZE) == place
    ]
    return min(place.number, *sizes) <= size <= min(max(sizes), cap or size) if sizes else False


def found(place: Place, why_not: str | None = None) -> Diagnostic:
    """What brimful sets, and what does not follow. `why_not`: why it is not set in the script's
    text.
    """
    if place.kind == LOADER:
        problem, way = (
            f"batch_size: no flag in the command; set where {place.loader} makes the training "
            f"DataLoader with {place.number:,}",
            "--batch-size-from none leaves the script as it is",
        )
        explanation = (
            f"what the script computes from its {place.number:,} elsewhere (steps of an epoch, "
            "buffers) does not follow"
        )
        if why_not is not None:
            explanation = f"not in the script's text, as {why_not}; {explanation}"
        if place.limited_at:  # said in few words, before the numbers
            return Diagnostic(
                "batch-size-past-a-limit",
                f"{place.limited_at} limits the batch size; brimful sets it past that, at "
                f"{place.loader}",
                f"{problem}; {explanation}; {way}",
                "",
            )
        return Diagnostic("batch-size-place", problem, explanation, way)
    here, others = _short(place), [line for line in place.others if line != place.loader]
    makes = (
        "the training DataLoader is made"
        if here == place.loader
        else f"{place.loader} makes the training DataLoader"
    )
    way = "--batch-size-from loader sets it at the loader alone, none leaves the script as it is"
    if not place.loader:
        makes, way = (
            "the model's input is made",
            "--batch-size-from none leaves the script as it is",
        )
    stays = ""
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        stays = (
            f"; {place.number:,} also stands at {', '.join(others[:_NAMED])}{more}, and stays there"
        )
    return Diagnostic(
        "batch-size-place",
        f"batch_size: no flag in the command; set where {here} has {place.number:,} "
        f"(`{place.text}`), with which {makes}",
        f"what the script computes from it follows{stays}",
        way,
    )


def found_workers(place: Place, workers: int) -> Diagnostic:
    """What a plan sets, though the command has no flag for it."""
    return Diagnostic(
        "num-workers-place",
        f"num_workers: no flag in the command; set to {workers} where {place.loader} makes the "
        f"training DataLoader with {place.number}",
        "random numbers that the data set draws come from each worker's own generator then",
        f"--set num_workers={place.number} leaves it; with num_workers={workers} written there "
        "the command needs no brimful",
    )


def why_not_there(place: Place, why_not: str | None) -> str:
    """Of a training without a loader, with the doubt about the best place."""
    return f"the training uses no DataLoader, and {set_at(place)}, but {why_not}"


def why_none(result: TrialResult, wants: str) -> str:
    """Why the batch size of a script without a flag cannot be set."""
    train = main_loader(result)
    if train is None:
        text = (
            "no integer of the script's text, in a line that names a batch, is the size of the "
            "model's input"
        )
        if not any(input_size(report) for report in result.reports[:1]):
            text = "the model's input does not show how large a batch is"
        none = "the training uses no DataLoader whose number could be set"
        return none if wants == LOADER else f"{none}, and {text}"
    if train.batch_size is None:
        maker = (
            "the data set itself"
            if train.sampler == "NoneType"
            else f"{train.sampler}, a class of the script's own,"
        )
        return f"{maker} makes the batches of the training DataLoader"
    if wants == SCRIPT:
        return (
            f"the training DataLoader's {train.batch_size:,} comes from no integer in the "
            "script's text"
        )
    return f"brimful did not see where the training DataLoader's {train.batch_size:,} comes from"
