"""What a script asks for beside the flags of its command, and whether that is what is in force."""

from dataclasses import replace
from math import isclose

from brimful.decide.loaders_seen import batches_per_step, main_loader
from brimful.values import Asked, TrialResult
from brimful_inside.setting_names import MAY_MEAN, MENTIONS, fit

_COUNTED = "accumulation"  # of a loop's `step % 16`, which may count for another purpose


def requests_in(result: TrialResult) -> tuple[Asked, ...]:
    """Of the first rank, by setting. Nothing where the text leaves a doubt."""
    loader, optimizers = main_loader(result), result.reports[0].optimizers
    in_force = {
        "batch_size": loader.batch_size if loader else None,
        "num_workers": loader.workers if loader else None,
        "prefetch_factor": loader.prefetch_factor if loader else None,
        "accumulation": batches_per_step(result) or None,
        "lr": optimizers[0].made_with if len(optimizers) == 1 else None,
    }
    asked = result.reports[0].asked
    return tuple(
        request
        for setting, value in in_force.items()
        if value is not None
        and (request := _request([a for a in asked if a.setting == setting], value)) is not None
    )


def _request(asked: list[Asked], value: float) -> Asked | None:
    changes = [a for a in asked if a.use == "replaced" and isclose(a.effective or 0, value)]
    places = {a.changed_at for a in changes}
    known = [a for a in asked if a.use in ("read", "unread") and a.place not in places]
    same = [a for a in known if isclose(a.requested, value)]
    passed = [a for a in asked if a.use == "passed" and isclose(a.requested, value)]
    # a name that means the setting itself, so that one that nothing reads is an oversight
    least = MENTIONS if known and known[0].setting == "lr" else MAY_MEAN
    plain = [a for a in known if fit(a.setting, a.name) >= least]
    request = None
    if changes:
        # the number in force may come from another name, or stand in the call itself
        others = any(a.use == "read" for a in same) or (passed and passed[0].name != _COUNTED)
        if not others and len({(a.requested, a.changed_at) for a in changes}) == 1:
            meant = [a for a in known if isclose(a.requested, changes[0].requested)]
            request = replace(changes[0], place=_place(meant, changes[0].name))
    elif same:
        request = replace(same[0], place=_place(same, same[0].name))
    elif (
        passed
        and plain
        and {(a.requested, a.use) for a in plain} == {(plain[0].requested, "unread")}
    ):
        request = replace(plain[0], changed_at=passed[0].place)
    if request is None:
        return None
    return replace(request, requested=_written(request.requested), effective=_written(value))


def _written(value: float) -> float:
    return int(value) if float(value).is_integer() else value  # 64 for 64.0


def _place(asked: list[Asked], name: str) -> str:
    # the only one, among those of that name first
    places = {a.place for a in asked if a.name == name} or {a.place for a in asked}
    return places.pop() if len(places) == 1 else ""
