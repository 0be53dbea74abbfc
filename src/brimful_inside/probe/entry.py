"""What happens when the bootstrap opens: orders are read, hello is said, and the probe waits for torch. No torch here."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from brimful_inside.probe import context as process_context
from brimful_inside.probe.context import ProcessContext
from brimful_inside.probe.hooks.import_hooks import waiting
from brimful_inside.probe.parent import end_with
from brimful_inside.probe.process.roles import own_argv, role_of
from brimful_inside.wire import TRIAL_CONFIG_VARIABLE, TorchImported, read_config


def open_door() -> None:
    """Called once, at the start of a process that was given orders. Raises OSError or ValueError where they cannot be read."""
    config = read_config(os.environ[TRIAL_CONFIG_VARIABLE])
    context = ProcessContext(config, role_of(own_argv(), os.environ))
    process_context.context = context
    context.say_hello()
    end_with(config.parent_pid, signal.SIGKILL if config.cut else signal.SIGTERM)
    if context.role == "launcher":
        return  # it trains nothing, and what it writes are logs of its own; its children come through the bootstrap themselves
    if config.keep_out:
        from brimful_inside.probe.keep_out import keep_out

        keep_out(context)
    if config.measure_host_memory:
        from brimful_inside.probe.memory.host_memory import give_freed_memory_back

        give_freed_memory_back(context)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_in_forked_child)
    # Of torch nothing can be on the card yet; the imaginary one sets aside what there is a moment later.
    waiting.load_quietly("torch", sets_aside=config.device == "imaginary")
    waiting.load_quietly("torch._dynamo")  # by the first optimizer
    waiting.wait_for("torch", _torch_is_here)


def _torch_is_here(torch: Any) -> None:
    context = process_context.context
    if context is None:
        return
    context.emit(TorchImported(torch_version=str(torch.__version__), cuda_build=torch.version.cuda))
    try:
        from brimful_inside.probe.install import install

        install(context)
    except Exception:
        context.say_that_it_did_not_open()
        raise


def _in_forked_child() -> None:
    context = process_context.context
    if context is not None:
        try:
            context.after_fork()
            context.say_hello()
        except Exception as error:  # a fork must succeed whatever we do
            sys.stderr.write("brimful: %r\n" % (error,))
