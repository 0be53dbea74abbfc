"""A stand-in for NVML's module: a machine with cards of 80 GiB, each a little busier than the one
before it."""

import types

GIB = 1 << 30


class NVMLError(Exception):
    pass


def driver(count: int, processes: dict[int, dict[int, int | None]] | None = None, **more: object):
    """`processes`: by card, the bytes that each process holds. `more`: functions that answer
    otherwise."""

    def running(card: int) -> list[types.SimpleNamespace]:
        held = (processes or {}).get(card, {}).items()
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in held]

    def reasons(card: int) -> int:
        return 0x1 if card == 0 else 0x4 | 0x20 if card == 1 else 0

    answers = types.SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlMemory_v2=2,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda card: "NVIDIA H100 80GB HBM3",
        nvmlDeviceGetMemoryInfo=lambda card, version=None: types.SimpleNamespace(
            total=80 * GIB, used=(4 + 10 * card) * GIB, free=(76 - 10 * card) * GIB
        ),
        nvmlDeviceGetComputeRunningProcesses=running,
        nvmlDeviceGetUtilizationRates=lambda card: types.SimpleNamespace(gpu=12 * card, memory=1),
        nvmlDeviceGetPowerUsage=lambda card: 70_000 + 90_000 * card,
        nvmlDeviceGetEnforcedPowerLimit=lambda card: 700_000,
        nvmlDeviceGetTemperature=lambda card, sensor: 30 + 5 * card,
        nvmlDeviceGetClockInfo=lambda card, clock: 1980 - 100 * card,
        nvmlDeviceGetMaxClockInfo=lambda card, clock: 1980,
        nvmlDeviceGetCurrentClocksEventReasons=reasons,
    )
    return types.SimpleNamespace(**{**vars(answers), **more})
