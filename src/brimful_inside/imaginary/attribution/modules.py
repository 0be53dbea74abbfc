"""Which module is at work: a stack of module calls for each thread, and the forward module of each
backward operation.

Autograd numbers its nodes in the order in which a thread makes them (`_sequence_nr`). The number
that is next is noted whenever a module's call begins or ends, so that a node's number gives the
module whose call was going on when it was made."""

from __future__ import annotations

import threading
import weakref
from bisect import bisect_right
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

import torch

from brimful_inside.imaginary.state.lock import one_at_a_time
from brimful_inside.imaginary.state.patches import Patches
from brimful_inside.imaginary.state.streams import NO_NUMBER, current_number, next_number

MOST_MARKS = 400_000  # of which the older half is dropped: graphs do not live as long


class Place(NamedTuple):
    """A module: `model` is the class name of the outermost one, `path` what its `named_modules`
    calls this one."""

    model: str
    path: str


NOWHERE = Place("", "")


class Thread(threading.local):
    """What one thread is doing."""

    def __init__(self) -> None:
        self.stack: List[Place] = []
        self.root: Any = None  # the outermost module of the stack
        self.numbers: List[int] = []  # the next node's number, where the place changed
        self.places: List[Place] = []
        self.backward = 0  # backward passes that are under way, one inside another
        self.in_step = 0  # optimizers' steps that are under way
        self.base = 0  # the height of the stack where the outermost of them began
        self.last = NOWHERE  # of the backward operation before
        # the user's line that made a call of the stack, by how high it is there, as far as asked
        self.lines: List[Tuple[int, Tuple[Any, int]]] = []


#: (module, call, args, kwargs) -> what stands in for call(module, *args, **kwargs)
Around = Callable[[torch.nn.Module, Callable[..., Any], Tuple, Dict[str, Any]], Any]


class ModuleCalls:
    """Watches `torch.nn.Module.__call__` and the autograd engine. `around(module, call, args,
    kwargs)` may stand in for a call; `on_outermost(module, begins)` and `on_backward(begins)` are
    called at the outermost calls and passes."""

    def __init__(self) -> None:
        self.thread = Thread()
        # outermost modules, by weak reference, and their names
        self.roots: List[Tuple[Any, str]] = []
        self.roots_seen = 0
        self.around: Optional[Around] = None
        self.on_outermost: List[Callable[[torch.nn.Module, bool], None]] = []
        self.on_backward: List[Callable[[bool], None]] = []
        self.repeats: Any = None  # attribution.repeats.Repeats, which may answer an outermost call
        # By id: a weak reference to the module, and its place; None of one that works for its
        # caller.
        self._known: Dict[int, Tuple[Any, Optional[Place]]] = {}
        self._names: Dict[str, int] = {}
        self.call_code: Any = None  # of what stands in for Module.__call__

    def put_around(self, around: Around) -> None:
        """`around` stands in for each call from here on; the call that it is given goes through
        those put there before."""
        inner = self.around
        if inner is None:
            self.around = around
            return

        def both(
            module: torch.nn.Module, call: Callable[..., Any], args: Tuple, kwargs: Dict[str, Any]
        ) -> Any:
            def calls_inner(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
                return inner(module, call, args, kwargs)

            return around(module, calls_inner, args, kwargs)

        self.around = both

    def patch(self, patches: Patches) -> None:
        patches.set(torch.nn.Module, "__call__", self._wrapped(torch.nn.Module.__call__))
        run = torch.autograd._engine_run_backward  # type: ignore[attr-defined]

        @patches.function(torch.autograd)
        def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
            # All gradients, and no other pass over this graph.
            plain = bool(kwargs.get("accumulate_grad")) and not any(args[2:])
            self._backward(True, plain)
            try:
                return run(*args, **kwargs)
            finally:
                self._backward(False, plain)

    def _wrapped(self, original: Callable[..., Any]) -> Any:
        """Module.__call__ with the module's place on the stack. One frame, since each call of each
        module pays for it."""
        calls, thread, known = self, self.thread, self._known

        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            if calls.around is not None:
                return calls.around(module, original, args, kwargs)
            return original(module, *args, **kwargs)

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            stack = thread.stack
            if stack:
                entry = known.get(id(self))
                place = (
                    entry[1] if entry is not None and entry[0]() is self else calls._place(self)
                ) or stack[-1]
            else:
                place = calls._outermost(self)
            stack.append(place)
            calls._mark(place)
            try:
                if calls.repeats is not None and len(stack) == 1:
                    return calls.repeats.call(self, run, args, kwargs)
                if calls.around is not None:
                    return calls.around(self, original, args, kwargs)
                return original(self, *args, **kwargs)
            finally:
                stack.pop()
                if thread.lines and thread.lines[-1][0] > len(stack):
                    thread.lines.pop()
                calls._mark(stack[-1] if stack else NOWHERE)
                if not stack:
                    thread.root = None
                    for callback in calls.on_outermost:
                        callback(self, False)

        self.call_code = __call__.__code__
        return __call__

    def _backward(self, begins: bool, plain: bool) -> None:
        thread = self.thread
        if begins and not thread.backward:
            thread.base = len(thread.stack)
        thread.backward += 1 if begins else -1
        if thread.backward == (1 if begins else 0):
            for callback in self.on_backward:
                callback(begins)
            if self.repeats is not None:
                self.repeats.backward(begins, plain)

    def of_backward(self) -> Place:
        """The forward module of the backward operation that runs in this thread."""
        thread = self.thread
        number = current_number()
        if number < NO_NUMBER:
            at = bisect_right(thread.numbers, number) - 1
            thread.last = thread.places[at] if at >= 0 else NOWHERE
        return thread.last

    def living_roots(self) -> Iterator[Tuple[torch.nn.Module, str]]:
        for reference, name in self.roots:
            module = reference()
            if module is not None:
                yield module, name

    def _mark(self, place: Place) -> None:
        number, thread = next_number(), self.thread
        numbers = thread.numbers
        if numbers and numbers[-1] == number:
            thread.places[-1] = place
            return
        numbers.append(number)
        thread.places.append(place)
        if len(numbers) > MOST_MARKS:
            del numbers[: MOST_MARKS // 2], thread.places[: MOST_MARKS // 2]

    @one_at_a_time
    def _outermost(self, module: torch.nn.Module) -> Place:
        self.thread.root = module
        if self._place_of(module) is None:
            self._register(module, self._name(module))
        for callback in self.on_outermost:
            callback(module, True)
        return self._place_of(module) or NOWHERE

    @one_at_a_time
    def _place(self, module: torch.nn.Module) -> Optional[Place]:
        """Of a module that was not called before: it may have come since its outermost one was
        registered."""
        thread = self.thread
        if thread.root is not None:
            self._register(thread.root, thread.stack[0].model, thread.stack[0].path)
        known = self._known.get(id(module))
        if known is None or known[0]() is not module:  # no child of any
            known = self._known[id(module)] = (weakref.ref(module), None)
        return known[1]

    def _place_of(self, module: torch.nn.Module) -> Optional[Place]:
        known = self._known.get(id(module))
        return known[1] if known is not None and known[0]() is module else None

    def _register(self, root: torch.nn.Module, name: str, prefix: str = "") -> None:
        dot = prefix + "." if prefix else ""
        registered = set()
        for path, module in root.named_modules(remove_duplicate=False):
            if id(module) not in registered:
                place: Optional[Place] = Place(name, dot + path if path else prefix)
            elif next(module.children(), None) is None and next(module.parameters(), None) is None:
                place = None  # one activation in many places
            else:
                continue
            registered.add(id(module))
            self._known[id(module)] = (weakref.ref(module), place)

    def _name(self, root: torch.nn.Module) -> str:
        """The class name; a second model of the same class gets a number, a loss that is made anew
        at each step is not."""
        name = type(root).__name__
        if any(True for _ in root.parameters()):
            count = self._names[name] = self._names.get(name, 0) + 1
            if count > 1:
                name = "%s#%d" % (name, count)
            self.roots = [(ref, known) for ref, known in self.roots if ref() is not None]
            self.roots_seen += 1
            self.roots.append((weakref.ref(root), name))
        return name
