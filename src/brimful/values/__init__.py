"""The words of brimful, as frozen dataclasses without logic: one module a subject, and all of their
names here.

Units are in the names; absent is ``None``. GiB is 1024**3. A number that reaches a person has a
`Source`.
"""

from brimful.values.audit import Audit, EffectiveBatch
from brimful.values.command import Command, EffectiveSetting, Setting
from brimful.values.diagnostic import Diagnostic
from brimful.values.machine import Budget, Calibration, Device, Gpu, Machine
from brimful.values.memory import (
    Alike,
    Breakdown,
    CardPeak,
    Limits,
    MemoryEstimate,
    ModuleShare,
    Moment,
    PeakEstimate,
    Verdict,
)
from brimful.values.number import Estimate, Point, Source
from brimful.values.plan import Objective, Plan, TriedSize
from brimful.values.prediction import (
    CardAnswer,
    GridCell,
    NextCommand,
    NoRemedy,
    Prediction,
    Remedy,
    Solved,
    WhatIf,
)
from brimful.values.record import Closed, Opened, Record
from brimful.values.run import Attempt, Heartbeat, Run, RunEnded, RunStarted
from brimful.values.speed import Epoch, KernelShare, Loading, PredictedSpeed, SpeedEstimate
from brimful.values.trial import Execution, Outcome, Trial, TrialKind, TrialResult
from brimful_inside.wire import Card, Failure, PhasePeak, Place, Report, RunCounters, WorstBatch

__all__ = [
    "Alike",
    "Attempt",
    "Audit",
    "Breakdown",
    "Budget",
    "Calibration",
    "Card",
    "CardAnswer",
    "CardPeak",
    "Closed",
    "Command",
    "Device",
    "Diagnostic",
    "EffectiveBatch",
    "EffectiveSetting",
    "Epoch",
    "Estimate",
    "Execution",
    "Failure",
    "Gpu",
    "GridCell",
    "Heartbeat",
    "KernelShare",
    "Limits",
    "Loading",
    "Machine",
    "MemoryEstimate",
    "ModuleShare",
    "Moment",
    "NextCommand",
    "NoRemedy",
    "Objective",
    "Opened",
    "Outcome",
    "PeakEstimate",
    "PhasePeak",
    "Place",
    "Plan",
    "Point",
    "PredictedSpeed",
    "Prediction",
    "Record",
    "Remedy",
    "Report",
    "Run",
    "RunCounters",
    "RunEnded",
    "RunStarted",
    "Setting",
    "Solved",
    "Source",
    "SpeedEstimate",
    "Trial",
    "TrialKind",
    "TrialResult",
    "TriedSize",
    "Verdict",
    "WhatIf",
    "WorstBatch",
]
