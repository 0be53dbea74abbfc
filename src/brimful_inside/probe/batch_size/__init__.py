"""Batch size and workers of a script without flags: a finding trial shows where a number stands,
later ones set it there.
"""

from __future__ import annotations

import ast
import os
from multiprocessing.reduction import ForkingPickler
from typing import Dict, List, Optional, Tuple

from brimful_inside.probe.batch_size import literals, loader_arguments, user_code
from brimful_inside.probe.batch_size.loader_arguments import (
    BATCH_SIZE,
    LOADER,
    NUM_WORKERS,
    SCRIPT,
    WORKERS,
)
from brimful_inside.wire import Place, TrialConfig


def enter_user_code(config: TrialConfig) -> None:
    """Before the script starts: its text is read by us where a place in it is found or set."""
    if config.find_places == SCRIPT:
        marked = loader_arguments.literals = literals.Literals()
        user_code.enter(lambda source, path: marked.mark(source, os.path.realpath(path)))
        ForkingPickler.register(literals.Number, literals.Number.keep_place)
    by_file: Dict[str, Dict[Tuple[int, int], Tuple[int, int]]] = {}
    for name, place in config.places.items():
        if place.kind == SCRIPT and name in config.settings:
            by_file.setdefault(os.path.realpath(place.file), {})[(place.line, place.column)] = (
                place.number,
                int(config.settings[name]),
            )
    if by_file:
        user_code.enter(lambda source, path: _replaced(source, os.path.realpath(path), by_file))


def _replaced(
    source: bytes, path: str, by_file: Dict[str, Dict[Tuple[int, int], Tuple[int, int]]]
) -> Optional[ast.Module]:
    return literals.replaced(source, path, by_file[path]) if path in by_file else None


def enter_loaders(config: TrialConfig) -> None:
    """Once torch is imported."""
    if config.find_places is not None:
        loader_arguments.find_in_loaders(
            [NUM_WORKERS] if config.find_places == WORKERS else [BATCH_SIZE, NUM_WORKERS]
        )
    places: Dict[str, List[Tuple[Place, int]]] = {}
    for name, place in config.places.items():
        if place.kind == LOADER and name in config.settings:
            places.setdefault(NUM_WORKERS if name == NUM_WORKERS else BATCH_SIZE, []).append(
                (place, int(config.settings[name]))
            )
    if places:
        loader_arguments.set_in_loaders(places)
