"""Puts the probe into a process, once torch is imported there."""

from __future__ import annotations

import atexit
import functools
import sys
from typing import Any

from brimful_inside.probe import hub as hub_module
from brimful_inside.probe.children import watch_end_of_child, watch_spawned
from brimful_inside.probe.hub import Hub, tell_own_error


def install(hub: Hub) -> None:
    """Watchers into torch's base classes, and the probe that they tell. Called when `import torch` is complete."""
    from brimful_inside.probe.failures import watch_exceptions
    from brimful_inside.probe.forward import watch_compilation
    from brimful_inside.probe.frameworks import watch_frameworks
    from brimful_inside.probe.graphs import watch_graphs
    from brimful_inside.probe.loaders import watch_loaders
    from brimful_inside.probe.losses import watch_backward
    from brimful_inside.probe.worst import watch_samplers

    hub.probe = new_probe(hub)
    _watch_optimizers()
    _watch_scalers()
    _watch_modes()
    watch_loaders(awake)
    watch_samplers()
    watch_frameworks(hub)
    watch_graphs(_probe)
    watch_backward(_before_backward)
    if hub.orders.device != "imaginary":  # where nothing is compiled, a hook breaks no graph
        watch_compilation(_disarm)
    watch_exceptions(_uncaught, _raised_in_thread)
    watch_spawned(_uncaught)
    atexit.register(_at_exit)


def new_probe(hub: Hub) -> Any:
    from brimful_inside.probe.devices import device_for
    from brimful_inside.probe.host_memory import HostMeter
    from brimful_inside.probe.probe import Probe
    from brimful_inside.probe.scans import Scans
    from brimful_inside.probe.worst import WorstBatches

    orders, worst = hub.orders, None
    if orders.worst_batch:
        worst = WorstBatches(orders.device == "imaginary", Scans(orders.folder, orders.scans))
    return Probe(hub, device_for(hub), HostMeter(hub), worst)


def _probe() -> Any:
    hub = hub_module.hub
    return hub.probe if hub is not None else None


def awake() -> Any:
    """The probe. A worker that trains, or iterates a loader, is a rank after all; a forked one gets a probe of its own here."""
    hub = hub_module.hub
    if hub is None or hub.role == "rank":
        return hub.probe if hub is not None else None
    hub.role = "rank"
    hub.say_hello()
    if hub.probe is None and hub.asleep:
        hub.asleep = False
        hub.probe = new_probe(hub)
    watch_end_of_child(_uncaught, _at_exit)
    return hub.probe


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
    if probe is not None and probe.hub.role == "rank":
        probe.tell_end()
