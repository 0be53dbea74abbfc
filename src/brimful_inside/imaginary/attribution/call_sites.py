"""Where memory is asked for: the module at work, the line of the script, and whether it is forward, backward or optimizer.

Only operations that allocate ask. A line is found by walking the Python stack outwards to the first frame that is neither
torch's, nor another library's, nor ours; what each code object is, is asked for once.
"""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import brimful_inside
from brimful_inside.imaginary.attribution.modules import NOWHERE, ModuleCalls, Place
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.simulator.trace import BACKWARD, FORWARD, OPTIMIZER, RECOMPUTATION, Site

__all__ = ["CallSites"]

LONGEST_LINE = 100

_OURS = os.path.dirname(os.path.abspath(str(brimful_inside.__file__)))
_TORCH = os.path.dirname(os.path.abspath(torch.__file__))
_STANDARD = sysconfig.get_paths()["stdlib"]
_HIDDEN, _LIBRARY, _USER = 0, 1, 2


class CallSites:
    """Numbers the places where memory is asked for."""

    def __init__(self, calls: ModuleCalls) -> None:
        self.calls = calls
        self.known: List[Site] = []  # by number
        self._numbers: Dict[Tuple[Place, str, int, int], int] = {}
        self._kinds: Dict[int, int] = {}  # by the id of a code object: to hash one takes longer than all the rest
        self._codes: List[Any] = []  # kept, so that no other gets the id of one
        self._in_step = 0

    def patch(self, patches: Patches) -> None:
        self.calls.patch(patches)
        patches.undo_by(register_optimizer_step_pre_hook(self._step_begins).remove)
        patches.undo_by(register_optimizer_step_post_hook(self._step_ends).remove)

    def current(self) -> int:
        """The number of the site that the current thread is at."""
        place, during = self._doing()
        code, line = self._line()
        key = (place, during, id(code), line)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.known)
            self.known.append(Site(number, place.path, _text_of(code, line), during, place.model))
        return number

    def _doing(self) -> Tuple[Place, str]:
        thread = self.calls.thread
        stack = thread.stack
        if thread.backward:
            if len(stack) > thread.base:
                return stack[-1], RECOMPUTATION
            return self.calls.of_backward(), BACKWARD
        if stack:
            return stack[-1], FORWARD
        return NOWHERE, OPTIMIZER if self._in_step else ""

    def _line(self) -> Tuple[Any, int]:
        """The user's line. Outside of a module's call it is the same for all that happens inside, and kept for that long."""
        kinds, lines, call = self._kinds, self.calls.thread.lines, self.calls.code
        frame: Any = sys._getframe(5)  # those before are of the ledger
        library: Any = None
        level = 0
        while frame is not None:
            code = frame.f_code
            if code is call:
                level -= 1
                if lines[level] is not None:
                    return self._keep(lines[level], level)
            else:
                kind = kinds.get(id(code))
                if kind is None:
                    kind = kinds[id(code)] = _kind_of(code.co_filename)
                    self._codes.append(code)
                if kind == _USER:
                    return self._keep((code, frame.f_lineno), level)
                if kind == _LIBRARY and library is None:
                    library = code, frame.f_lineno
            frame = frame.f_back
        return library or (None, 0)

    def _keep(self, line: Tuple[Any, int], level: int) -> Tuple[Any, int]:
        lines = self.calls.thread.lines
        while level:
            lines[level] = line
            level += 1
        return line

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._in_step += 1

    def _step_ends(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._in_step = 0  # an exception may have left a step without this hook


def _kind_of(file: str) -> int:
    if file.startswith((_OURS, _TORCH, "<")):
        return _HIDDEN
    if "site-packages" in file or "dist-packages" in file:
        return _LIBRARY
    return _HIDDEN if file.startswith(_STANDARD) else _USER


def _text_of(code: Optional[Any], line: int) -> str:
    """ "train.py:57 in main: loss.backward()"."""
    if code is None:
        return ""
    file = code.co_filename
    place = "%s:%d in %s" % (os.path.basename(file), line, code.co_name)
    text = " ".join(linecache.getline(file, line).split())
    if len(text) > LONGEST_LINE:
        text = text[: LONGEST_LINE - 3] + "..."
    return "%s: %s" % (place, text) if text else place
