"""What happens when the door opens: orders are read, hello is said, and the probe waits for torch. No torch here."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from brimful_inside.probe import hub as hub_module
from brimful_inside.probe.hub import Hub
from brimful_inside.probe.parent import end_with
from brimful_inside.probe.roles import own_argv, role_of
from brimful_inside.probe.waiting import waiting
from brimful_inside.wire import ORDERS_VARIABLE, TorchSeen, read_orders


def open_door() -> None:
    """Called once, at the start of a process that was given orders. Raises OSError or ValueError where they cannot be read."""
    orders = read_orders(os.environ[ORDERS_VARIABLE])
    hub = Hub(orders, role_of(own_argv(), os.environ))
    hub_module.hub = hub
    hub.say_hello()
    end_with(orders.parent_pid, signal.SIGKILL if orders.cut else signal.SIGTERM)
    if hub.role == "launcher":
        return  # it trains nothing, and what it writes are logs of its own; its children come through the door themselves
    if orders.keep_out:
        from brimful_inside.probe.keep_out import keep_out

        keep_out(hub)
    if orders.measure_host_memory:
        from brimful_inside.probe.host_memory import give_freed_memory_back

        give_freed_memory_back(hub)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_forked_child)
    # Of torch nothing can be on the card yet; the imaginary one sets aside what there is a moment later.
    waiting.load_quietly("torch", sets_aside=orders.device == "imaginary")
    waiting.load_quietly("torch._dynamo")  # by the first optimizer
    waiting.wait_for("torch", _torch_is_here)


def _torch_is_here(torch: Any) -> None:
    hub = hub_module.hub
    if hub is None:
        return
    hub.emit(TorchSeen(torch_version=str(torch.__version__), cuda_build=torch.version.cuda))
    try:
        from brimful_inside.probe.install import install

        install(hub)
    except Exception:
        hub.say_that_it_did_not_open()
        raise


def _in_forked_child() -> None:
    hub = hub_module.hub
    if hub is not None:
        try:
            hub.after_fork()
            hub.say_hello()
        except Exception as error:  # a fork must succeed whatever we do
            sys.stderr.write("brimful: %r\n" % (error,))
