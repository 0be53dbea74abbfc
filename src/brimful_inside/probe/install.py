"""Puts the probe into a process, once torch is imported there."""

from __future__ import annotations

import atexit
import functools
import sys
from typing import Any

from brimful_inside.probe import context as process_context
from brimful_inside.probe.children import watch_end_of_child, watch_spawned
from brimful_inside.probe.context import ProcessContext, tell_own_error


def install(context: ProcessContext) -> None:
    """Watchers into torch's base classes, and the probe that they tell. Called when `import torch` is complete."""
    from brimful_inside.probe.hooks.backward import watch_backward
    from brimful_inside.probe.hooks.cuda_graphs import watch_graphs
    from brimful_inside.probe.hooks.data_loaders import watch_loaders
    from brimful_inside.probe.hooks.exceptions import watch_exceptions
    from brimful_inside.probe.hooks.forward import watch_compilation
    from brimful_inside.probe.hooks.frameworks import watch_frameworks
    from brimful_inside.probe.worst_case.worst_batches import watch_samplers

    context.probe = new_probe(context)
    _watch_optimizers()
    _watch_scalers()
    _watch_modes()
    watch_loaders(awake)
    watch_samplers()
    watch_frameworks(context)
    watch_graphs(_probe)
    watch_backward(_before_backward)
    if context.config.device != "imaginary":  # where nothing is compiled, a hook breaks no graph
        watch_compilation(_disarm)
    watch_exceptions(_uncaught, _raised_in_thread)
    watch_spawned(_uncaught)
    atexit.register(_at_exit)


def new_probe(context: ProcessContext) -> Any:
    from brimful_inside.probe.devices import device_for
    from brimful_inside.probe.memory.host_memory import HostMeter
    from brimful_inside.probe.probe import Probe
    from brimful_inside.probe.worst_case.scan_cache import Scans
    from brimful_inside.probe.worst_case.worst_batches import WorstBatches

    config, worst = context.config, None
    if config.worst_batch:
        worst = WorstBatches(config.device == "imaginary", Scans(config.folder, config.scans))
    return Probe(context, device_for(context), HostMeter(context), worst)


def _probe() -> Any:
    context = process_context.context
    return context.probe if context is not None else None


def awake() -> Any:
    """The probe. A worker that trains, or iterates a loader, is a rank after all; a forked one gets a probe of its own here."""
    context = process_context.context
    if context is None or context.role == "rank":
        return context.probe if context is not None else None
    context.role = "rank"
    context.say_hello()
    if context.probe is None and context.asleep:
        context.asleep = False
        context.probe = new_probe(context)
    watch_end_of_child(_uncaught, _at_exit)
    return context.probe


def _watch_optimizers() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            probe = awake()
            if probe is not None:
                probe.steps.before(optimizer, args, kwargs, sys._getframe(1))
        except Exception:
            tell_own_error("the hook before a step")

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            probe = _probe()
            if probe is not None:
                probe.steps.after(optimizer)
        except Exception:
            tell_own_error("the hook after a step")

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)


def _watch_scalers() -> None:
    """GradScaler.step calls the optimizer's step, or not."""
    import torch

    original = torch.amp.GradScaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        probe = _probe()
        before = probe.steps.hooks_run if probe is not None else 0
        result = original(self, optimizer, *args, **kwargs)
        if probe is not None and probe.steps.hooks_run == before:
            try:
                probe.steps.skipped(optimizer)
            except Exception:
                tell_own_error("a skipped step")
        return result

    torch.amp.GradScaler.step = step


def _watch_modes() -> None:
    import torch

    original = torch.nn.Module.eval

    @functools.wraps(original)
    def eval(self: Any) -> Any:
        probe = _probe()
        if probe is not None:
            probe.eval_called(self)
        return original(self)

    torch.nn.Module.eval = eval
    original_train = torch.nn.Module.train

    @functools.wraps(original_train)
    def train(self: Any, mode: bool = True) -> Any:
        probe = _probe() if mode else None
        if probe is not None:
            probe.train_called()
        return original_train(self, mode)

    torch.nn.Module.train = train


def _before_backward(tensors: Any) -> None:
    probe = _probe()
    if probe is not None:
        probe.backward_begins(tensors)


def _disarm() -> None:
    probe = _probe()
    if probe is not None:
        probe.forward.disarm()


def _uncaught(error: BaseException) -> None:
    probe = _probe()
    if probe is not None:
        probe.left_the_script(error)


def _raised_in_thread(error: BaseException) -> None:
    probe = _probe()
    if probe is not None:
        probe.failures.left_a_thread(error)


def _at_exit() -> None:
    probe = _probe()
    if probe is not None and probe.context.role == "rank":
        probe.tell_end()
