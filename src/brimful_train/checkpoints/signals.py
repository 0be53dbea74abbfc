"""A training that a signal ends finishes its step and writes a checkpoint first."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

_CAUGHT = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """`with Stop() as stop:` SIGTERM and SIGINT set `stop.signal` (the number of the first one)
    instead of ending the process.

    A second SIGINT raises KeyboardInterrupt, for those who do not want to wait; a second SIGTERM
    changes nothing, since clusters repeat it. Leaving the block restores the handlers that were
    there. Signals reach a process's main thread alone: in any other thread nothing is caught.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._interrupts = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _CAUGHT:
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            # None is a handler that was not installed from Python, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._interrupts += 1
        if self._interrupts > 1:
            raise KeyboardInterrupt
        if self.signal is None:
            self.signal = number
