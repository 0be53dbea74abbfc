"""A predicted step as a Chrome trace (the "JSON Object Format" of Google's "Trace Event Format"),
which Perfetto and chrome://tracing open."""

from typing import Any

from brimful.decide.speed.kernels import KernelModel, ScaledKernels
from brimful.decide.speed.predicted import Clock, efficiency_of, rates_of
from brimful.values import Gpu
from brimful_inside.simulator.roofline import (
    BY_AUTOGRAD,
    BY_GRAPH,
    BY_OPTIMIZER,
    COLLECTIVE,
    SYNC,
)

# Processes of the trace, and their threads.
CARD, HOST = 0, 1
STEP, KERNELS, EXCHANGE, DISPATCH = 0, 1, 2, 3
_THREADS = {
    (CARD, STEP): "step",
    (CARD, KERNELS): "stream: kernels and copies",
    (CARD, EXCHANGE): "stream: collectives",
    (HOST, DISPATCH): "host queue",
}
_ENGINES = {BY_AUTOGRAD: "autograd", BY_GRAPH: "a CUDA graph", BY_OPTIMIZER: "the optimizer"}


def step_trace(
    model: KernelModel | ScaledKernels, gpu: Gpu, batch_size: int | None
) -> tuple[float, dict[str, Any]] | None:
    """(Seconds, the trace) of one step among many at `batch_size` (None: of the command as it
    stands); None for a card without known rates.

    Times are microseconds, from the first of what the host dispatches or the card does. The event
    "step" is as long as the predicted step: from the end of the one before. Events are sorted by
    their beginning.
    """
    rates = rates_of(gpu)
    if rates is None:
        return None
    at = batch_size if batch_size is not None else model.fitted_at[0]
    step, spans = Clock(model, rates, efficiency_of(gpu)).spans(at)
    begin = min([0.0, *(span.host[0] for *_, span in spans)])
    events: list[dict[str, Any]] = []

    def add(name: str, thread: tuple[int, int], seconds: tuple[float, float], args: Any) -> None:
        # to the nanosecond, so that one slice ends where the next begins
        start, end = (round((moment - begin) * 1e6, 3) for moment in seconds)
        events.append(
            {"ph": "X", "name": name, "pid": thread[0], "tid": thread[1], "ts": start}
            | {"dur": round(end - start, 3), "cat": _THREADS[thread], "args": args}
        )

    add("step (predicted)", (CARD, STEP), (0.0, step.seconds), {"batch size": batch_size})
    for kernel, timed, span in spans:
        args = {
            "kind": kernel.kind,
            "flops": kernel.flops,
            "bytes": kernel.bytes,
            "launches": kernel.launches,
            "bound by": timed.bound,
            "dispatched by": _ENGINES.get(kernel.engine, "the script"),
        }
        waits = "wait for the card: " if kernel.kind == SYNC else ""
        add(waits + kernel.op, (HOST, DISPATCH), span.host, args)
        if span.card is not None:
            stream = EXCHANGE if kernel.kind == COLLECTIVE else KERNELS
            add(kernel.op, (CARD, stream), span.card, args)
    events.sort(key=lambda event: (event["ts"], -event["dur"]))
    processes = {CARD: f"{gpu.name} (predicted)", HOST: "host (predicted)"}
    names = [("process_name", pid, 0, name) for pid, name in processes.items()]
    names += [("thread_name", pid, tid, name) for (pid, tid), name in _THREADS.items()]
    named = [
        {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}
        for kind, pid, tid, name in names
    ]
    return step.seconds, {"traceEvents": [*named, *events], "displayTimeUnit": "ms"}
