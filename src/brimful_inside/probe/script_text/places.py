"""Batch size and workers of a script without flags: a finding trial shows where a number stands,
later ones set it there, in the script's text or in the arguments of DataLoader and PyTorch's
BatchSampler."""

from __future__ import annotations

import functools
import inspect
import linecache
import os
import sys
from multiprocessing.reduction import ForkingPickler
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from brimful_inside.probe.context import guarded, patch
from brimful_inside.probe.script_text import branches, config_files, user_code
from brimful_inside.probe.script_text.literals import (
    Literal,
    Literals,
    Number,
    limits,
    places_of,
    replace,
)
from brimful_inside.probe.script_text.recorders import record
from brimful_inside.wire import Place, TrialConfig

literals: Optional[Literals] = None  # in a finding trial

MAX_CALLS = 30
MOST_IN_FILES = 3  # places: each takes a trial
SCRIPT, LOADER, WORKERS = "script", "loader", "workers"
BATCH_SIZE, NUM_WORKERS = "batch_size", "num_workers"
# Arguments of a DataLoader: which one it is behind the data set, and what PyTorch takes without it.
_ARGUMENTS = ((BATCH_SIZE, 0, 1), (NUM_WORKERS, 4, 0))
_TAKEN = ("self", "dataset", BATCH_SIZE, "shuffle", "sampler", "batch_sampler", NUM_WORKERS)
_constructors: List[Callable[..., Any]] = []  # what is put around that of DataLoader
# Frames of these are no calls of the script, or differ from process to process.
_NO_CALLS = (
    *("<frozen", "runpy.py", "multiprocessing" + os.sep, "brimful_inside" + os.sep),
    os.path.join("torch", "multiprocessing", ""),
)
_OF_LOADERS = os.path.join("torch", "utils", "data", "")


def enter_user_code(config: TrialConfig) -> None:
    """Before the script starts: its text is read by us where a place in it is found or set, or what
    it asks for is audited, or its branches are watched."""
    global literals
    by_file: Dict[str, Dict[Tuple[int, int], Tuple[int, int]]] = {}
    for name, place in config.places.items():
        if place.kind == SCRIPT and name in config.settings:
            by_file.setdefault(os.path.realpath(place.file), {})[(place.line, place.column)] = (
                place.number,
                int(config.settings[name]),
            )
    changes: List[user_code.Change] = []
    if by_file:
        config_files.replace(by_file)
        changes.append(functools.partial(replace, by_file))
    if config.audits or config.find_places == SCRIPT:
        config_files.watch()
    if config.find_places == SCRIPT:
        literals = Literals()
        ForkingPickler.register(Number, Number.keep_place)
        changes.append(literals.mark)
    elif config.audits:
        changes.append(record)
    if config.watches_branches:
        branches.reach(config.reach)
        changes.append(branches.watch)
    if changes:
        user_code.enter(changes)


def enter_loaders(config: TrialConfig) -> None:
    """Once torch is imported."""
    if config.find_places is not None:
        find_in_loaders(
            [NUM_WORKERS] if config.find_places == WORKERS else [BATCH_SIZE, NUM_WORKERS]
        )
    places: Dict[str, List[Tuple[Place, int]]] = {}
    for name, place in config.places.items():
        if place.kind == LOADER and name in config.settings:
            places.setdefault(NUM_WORKERS if name == NUM_WORKERS else BATCH_SIZE, []).append(
                (place, int(config.settings[name]))
            )
    if places:
        set_in_loaders(places)


def calls_of(frame: Any) -> Tuple[str, ...]:
    """ "/path/data.py:51" for each call that leads to `frame`, innermost first, torch's own classes
    of loaders left out.
    """
    calls: List[str] = []
    while frame is not None and len(calls) < MAX_CALLS:
        path = frame.f_code.co_filename
        if not any(part in path for part in _NO_CALLS) and not (not calls and _OF_LOADERS in path):
            calls.append("%s:%d" % (path, frame.f_lineno))
        frame = frame.f_back
    return tuple(calls)


def _local(calls: Sequence[str]) -> Tuple[str, ...]:
    """The calls up to the first one in the user's own code."""
    for n, call in enumerate(calls):
        if user_code.is_users(call.rpartition(":")[0]):
            return tuple(calls[: n + 1])
    return tuple(calls)


def _users(calls: Sequence[str]) -> str:
    local = _local(calls)
    return local[-1] if local else "?:0"


def find_in_loaders(names: Sequence[str]) -> None:
    """From here on these numbers of each loader know the calls that made it. One that is made after
    another keeps those.
    """

    def with_calls(value: Any, frame: Any) -> Any:
        if (
            not isinstance(value, int)
            or isinstance(value, bool)
            or (isinstance(value, Number) and value.calls is not None)
        ):
            return value
        return Number(value, places_of(value)[0], calls_of(frame))

    _patch_loaders(dict.fromkeys(names, with_calls))


def set_in_loaders(places: Mapping[str, Sequence[Tuple[Place, int]]]) -> None:
    """From here on loaders that are made at these places, by argument, get these numbers."""

    def set_there(name: str, value: Any, frame: Any) -> Any:
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        calls = calls_of(frame)
        is_there = _is_made_by if name == NUM_WORKERS else _is_made_at
        return next((number for place, number in places[name] if is_there(place, calls)), value)

    _patch_loaders({name: functools.partial(set_there, name) for name in places})


def _is_made_by(place: Place, calls: Tuple[str, ...]) -> bool:
    """By the very calls: brimful sets workers unasked, and another loader's data set may not take
    them.
    """
    return list(calls) == place.calls


def _is_made_at(place: Place, calls: Tuple[str, ...]) -> bool:
    """By all calls where the place or its opposite has them; else (a script calls from another line
    later) by the nearest.
    """
    if _is_made_by(place, calls):
        return True
    if list(calls) in place.not_calls:
        return False
    local = _local(calls)
    return local == _local(place.calls) and all(local != _local(other) for other in place.not_calls)


def _patch_loaders(changed: Dict[str, Callable[[Any, Any], Any]]) -> None:
    """`changed`: by argument, what becomes of its value, given the frame that makes the loader."""
    from torch.utils.data import BatchSampler, DataLoader

    def new(name: str, value: Any, frame: Any) -> Any:
        """None is a value of a batch size, and what the call returns after an error of ours."""
        other = (
            guarded(changed[name])(value, frame) if value is not None and name in changed else None
        )
        return value if other is None else other

    def loader(original: Any, self: Any, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        frame, values = sys._getframe(2), list(args)  # around `patch`'s own
        for name, at, default in _ARGUMENTS:
            if len(values) > at:
                values[at] = new(name, values[at], frame)
            elif name in kwargs or (
                name in changed and (name != BATCH_SIZE or kwargs.get("batch_sampler") is None)
            ):
                kwargs[name] = new(name, kwargs.get(name, default), frame)
        return original(self, dataset, *values, **kwargs)

    def sampler(original: Any, self: Any, sampler: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(2)
        if args:
            args = (new(BATCH_SIZE, args[0], frame), *args[1:])
        elif BATCH_SIZE in kwargs:
            kwargs[BATCH_SIZE] = new(BATCH_SIZE, kwargs[BATCH_SIZE], frame)
        return original(self, sampler, *args, **kwargs)

    patch(DataLoader, "__init__", loader)
    patch(BatchSampler, "__init__", sampler)
    _constructors.append(loader)
    subclasses = DataLoader.__subclasses__()
    for subclass in subclasses:  # which grows
        patch_constructor(subclass, [loader])
        subclasses += subclass.__subclasses__()


def patch_constructor(subclass: Any, around: Sequence[Callable[..., Any]] = _constructors) -> None:
    """Of a DataLoader that takes torch's arguments and never calls torch's constructor (torchdata's
    StatefulDataLoader)."""
    code = getattr(inspect.unwrap(subclass.__init__), "__code__", None)
    if "__init__" not in vars(subclass) or code is None or "__init__" in code.co_names:
        return
    if code.co_varnames[: len(_TAKEN)] == _TAKEN:
        for constructor in around:
            patch(subclass, "__init__", constructor)


def places_of_loader(number: Any) -> List[Place]:
    """Where a loader's number can be set, best first."""
    literal, calls = places_of(number)
    if calls is None:
        return []
    file, _, line = _users(calls).rpartition(":")
    made = "%s:%s" % (os.path.basename(file), line)
    text = linecache.getline(file, int(line)).strip()[:100]
    places = [Place(LOADER, file, int(line), 0, int(number), text, made, calls)]
    if literals is not None:
        known = _in_config_files(int(number)) if literal is None else [literal]
        places[:0] = [_in_text(literal, literals, made) for literal in known]
    return places


def places_of_input(size: int) -> List[Place]:
    """Where a training without a loader may have the size of its batches, which the model's input
    shows.
    """
    if literals is None:
        return []
    known = [*_in_config_files(size), *literals.of_a_batch(size)]
    return [_in_text(literal, literals, "") for literal in known]


def _in_config_files(number: int) -> List[Literal]:
    return [
        Literal(at.file, at.line, at.column, number, at.text)
        for at in config_files.numbers()
        if at.setting == BATCH_SIZE and at.number == str(number)
    ][:MOST_IN_FILES]


def _in_text(literal: Literal, literals: Literals, made: str) -> Place:
    others, (limit, where) = literals.others(literal), limits.get(literal, (None, ""))
    return Place(SCRIPT, **vars(literal), loader=made, others=others, limit=limit, limited_at=where)
