"""How the probe gets into a process: it reads the trial config, reports the process, and installs
its hooks after torch.
"""

from __future__ import annotations

import atexit
import functools
import os
import signal
import sys
from typing import Any, Dict, Optional

from brimful_inside import signals
from brimful_inside.probe.context import (
    ProcessContext,
    call_probe,
    current_context,
    current_probe,
    guarded,
    own_argv,
    patch,
    role_of,
    set_context,
)
from brimful_inside.probe.import_hooks import import_hooks
from brimful_inside.probe.process.shared_imports import serve, take_over, take_streams
from brimful_inside.simulator.garbage import collect_seldom
from brimful_inside.wire import (
    SHARED_IMPORTS_VARIABLE,
    TRIAL_CONFIG_VARIABLE,
    TorchImported,
    read_config,
)

_PR_SET_PDEATHSIG = 1  # prctl(2)


def start() -> None:
    """Called once, at the start of a process. Raises OSError or ValueError where the trial config
    cannot be read.
    """
    config = read_config(os.environ[TRIAL_CONFIG_VARIABLE])
    context = ProcessContext(config, role_of(own_argv()))
    set_context(context)
    context.report_process()
    if not config.cut and os.getppid() == config.parent_pid:
        context.note_signals()
    _end_with_parent(config.parent_pid, signal.SIGKILL if config.cut else signal.SIGTERM)
    context.only_imports = SHARED_IMPORTS_VARIABLE in os.environ
    if context.role != "rank" and context.only_imports:
        os._exit(0)
    if context.role == "launcher":
        # it does not train, and writes only its own logs; the bootstrap enters each of its children
        return
    if config.keep_out:
        from brimful_inside.probe.sandbox.native_files import keep_writes_out

        keep_writes_out(context)
    if config.measure_host_memory:
        from brimful_inside.probe.memory.host_memory import give_freed_memory_back

        give_freed_memory_back(context)
    os.register_at_fork(after_in_child=context.after_fork)
    import_hooks.when_imported(
        "multiprocessing.process",
        lambda module: patch(module.BaseProcess, "_bootstrap", _child_begins),
    )
    if config.device == "imaginary":
        collect_seldom()
    # The objects of torch are on no card yet: an imaginary card may keep the garbage collector away
    # from them for good.
    import_hooks.load_quietly("torch", freeze=config.device == "imaginary")
    import_hooks.load_quietly("torch._dynamo")  # by the first optimizer
    import_hooks.when_imported("torch", functools.partial(_install, context))
    if context.only_imports:
        _begin_forked_trial(context, serve(context))
    config = context.config
    if config.audits or config.find_places or config.places or config.watches_branches:
        from brimful_inside.probe.script_text.places import enter_user_code

        enter_user_code(config)


def _child_begins(original: Any, process: Any, *args: Any, **kwargs: Any) -> Any:
    """In a child of multiprocessing. It is a worker, who gets no signal and is ended with its
    parent, if its parent would end it as well, or is an executor."""
    context = current_context()
    target = getattr(process, "_target", None)
    serves = getattr(target, "__module__", "") == "concurrent.futures.process"
    if context is not None and context.role == "child" and (process.daemon or serves):
        context.role = "worker"
        context.report_process()
    return original(process, *args, **kwargs)


def _begin_forked_trial(context: ProcessContext, request: Dict[str, Any]) -> None:
    """In a process that was forked with its imports: what the hooks hold of the trial becomes that
    of this one.
    """
    take_over(request)
    config = read_config(os.environ[TRIAL_CONFIG_VARIABLE])
    context.begin(config)
    if context.overlay is not None:
        from brimful_inside.probe.sandbox.native_files import move_layer

        move_layer(context)
    context.report_process()
    _end_with_parent(os.getppid(), signal.SIGKILL)
    take_streams(config.folder)
    if "torch" in sys.modules:
        from brimful_inside.probe.memory.device_memory import meter_for
        from brimful_inside.probe.script_text.places import enter_loaders

        context.emit(TorchImported(str(sys.modules["torch"].__version__)))
        meter: Any = meter_for(context)
        if config.card is not None:  # an imaginary one
            meter.insert(config.card, config.capacity_bytes)
        enter_loaders(config)
        context.probe = _new_probe(context)


def _end_with_parent(parent_pid: Optional[int], number: int) -> None:
    """Asks Linux to send this process a signal when its parent dies, if that is brimful: a trial
    does not outlive it. A whole run gets SIGTERM, so that the script may write its checkpoint."""
    if os.getppid() != parent_pid:
        return
    import ctypes

    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    except (OSError, AttributeError):
        return
    if os.getppid() != parent_pid:  # it died in between
        os.kill(os.getpid(), number)


def _install(context: ProcessContext, torch: Any) -> None:
    """The hooks into torch's base classes, and the probe that they call. Runs when `import torch`
    is complete.
    """
    from brimful_inside.probe.hooks.data_loaders import patch_loaders
    from brimful_inside.probe.hooks.exceptions import watch_exceptions
    from brimful_inside.probe.hooks.forward_backward import patch_backward, patch_compile
    from brimful_inside.probe.hooks.frameworks import patch_frameworks
    from brimful_inside.probe.hooks.optimizer_steps import patch_graphs, patch_optimizers
    from brimful_inside.probe.memory.device_memory import meter_for
    from brimful_inside.probe.process.exit import patch_groups, patch_spawn
    from brimful_inside.probe.script_text.places import enter_loaders
    from brimful_inside.probe.worst_case.worst_batches import patch_samplers

    context.emit(TorchImported(str(torch.__version__)))
    meter_for(context)
    _watch_optimizers()
    patch_optimizers()
    patch(torch.amp.GradScaler, "step", _scaler_step)
    patch(torch.nn.Module, "eval", _eval)
    patch(torch.nn.Module, "train", _train)
    enter_loaders(context.config)
    patch_loaders(probe_of_rank)
    if not context.config.cut:
        _let_workers_survive_signals()
    patch_samplers()
    patch_frameworks(context.config)
    patch_graphs()
    patch_backward()
    if (
        context.config.device != "imaginary"
    ):  # an imaginary card compiles nothing, so a hook breaks no graph there
        patch_compile()
    watch_exceptions()
    patch_spawn(context.config.cut)
    patch_groups()
    if context.config.audits:
        from brimful_inside.probe.hooks.audited import patch_for_audits

        patch_for_audits()
    if not context.only_imports:
        context.probe = _new_probe(
            context
        )  # last: an error before this goes to a file, as there is no report to note it in
    atexit.register(_at_exit)


def _let_workers_survive_signals() -> None:
    from torch.utils.data import dataloader
    from torch.utils.data._utils import signal_handling

    def in_worker(original: Any) -> None:
        original()
        guarded(signals.ignore_in_worker)()

    def in_parent(original: Any, iterator: Any, *args: Any, **kwargs: Any) -> None:
        original(iterator, *args, **kwargs)
        guarded(signals.kill_instead)(iterator)

    patch(signal_handling, "_set_worker_signal_handlers", in_worker)
    patch(dataloader._MultiProcessingDataLoaderIter, "__init__", in_parent)


def _new_probe(context: ProcessContext) -> Any:
    from brimful_inside.probe.memory.device_memory import meter_for
    from brimful_inside.probe.memory.host_memory import HostMeter
    from brimful_inside.probe.probe import Probe
    from brimful_inside.probe.worst_case.worst_batches import WorstBatches

    return Probe(
        context,
        meter_for(context),
        HostMeter(context),
        WorstBatches(context.config) if context.config.worst_batch else None,
    )


def probe_of_rank() -> Any:
    """The probe. A worker that trains, or iterates a loader, turns out to be a rank; a forked one
    gets its own probe here.
    """
    context = current_context()
    if context is None or context.role == "rank":
        return current_probe()
    context.role = "rank"
    context.report_process()
    if context.probe is None and context.forked:
        context.forked = False
        context.probe = _new_probe(context)
    from brimful_inside.probe.process.exit import watch_end_of_child

    watch_end_of_child(_at_exit)
    return context.probe


def _watch_optimizers() -> None:
    from torch.optim.optimizer import (
        register_optimizer_step_post_hook,
        register_optimizer_step_pre_hook,
    )

    @guarded
    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        probe = probe_of_rank()
        if probe is not None:
            probe.steps.before(
                optimizer, args, kwargs, sys._getframe(2)
            )  # that of the call, around the guard's own

    @guarded
    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        call_probe("steps.after", optimizer)

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _scaler_step(original: Any, scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """GradScaler.step calls the optimizer's step, or skips it."""
    call_probe("losses.unscale", scaler)
    probe = current_probe()
    before = probe.steps.hooks_run if probe is not None else 0
    if scaler.is_enabled():
        call_probe("device.scaler_decides")
    result = original(scaler, optimizer, *args, **kwargs)
    if probe is not None and probe.steps.hooks_run == before:
        probe.scaler_skipped(optimizer)
    return result


def _eval(original: Any, module: Any) -> Any:
    call_probe("activity.eval_called", module)
    return original(module)


def _train(original: Any, module: Any, mode: bool = True) -> Any:
    if mode:
        call_probe("activity.train_called")
    return original(module, mode)


def _at_exit() -> None:
    context = current_context()
    if context is not None and context.role == "rank":
        call_probe("reporting.end")
