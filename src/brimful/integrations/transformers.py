"""For Transformers' Trainer: `apply` sets training arguments by a plan or a prediction, and
`BrimfulCallback` says what is in force, and how memory compares with what was predicted.
"""

import dataclasses
import sys
from typing import Any

import torch
from transformers import TrainerCallback, TrainingArguments

from brimful.decide.run.settings import (
    BATCH_SIZE,
    EVAL_BATCH_SIZE,
    WORKERS,
    values_in_force,
)
from brimful.decide.run.smaller_batch_size import dividing
from brimful.decide.tune.learning_rate import scaled_learning_rate
from brimful.integrations.attempts import records_of_this_script
from brimful.record import read_record
from brimful.units import counted, format_bytes
from brimful.values import Plan, Prediction, Record

_FIELDS = {  # of TrainingArguments, by our names
    "lr": "learning_rate",
    WORKERS: "dataloader_num_workers",
    EVAL_BATCH_SIZE: "per_device_eval_batch_size",
}


def apply(answer: Record | Plan | Prediction, arguments: TrainingArguments) -> TrainingArguments:
    """The arguments with the batch size of a plan, or of a prediction the recommended one, and with
    a plan's workers, evaluation batch and learning rate. `arguments` stay as they are.

    As many samples go into an update as `arguments` ask for: the batch size is the largest that
    divides them, up to the answer's and at least a quarter of it, and accumulation does the rest.
    Where there is none, they stay as nearly as whole numbers allow, and the learning rate follows
    (decide/tune/learning_rate.py has the rules). What changes is said on standard error.
    """
    given = (answer.plan or answer.prediction) if isinstance(answer, Record) else answer
    chosen: dict[str, Any] = values_in_force(given.settings) if isinstance(given, Plan) else {}
    if isinstance(given, Prediction):
        recommended = given.next_command.batch_size if given.next_command else None
        chosen[BATCH_SIZE] = recommended or given.largest_batch_size
    changes = {_FIELDS[name]: chosen[name] for name in _FIELDS if name in chosen}
    if chosen.get(BATCH_SIZE):
        asked = arguments.per_device_train_batch_size * arguments.gradient_accumulation_steps
        size = dividing(asked, min(asked, chosen[BATCH_SIZE]), at_least=chosen[BATCH_SIZE] / 4)
        accumulation = max(1, round(asked / size))
        changes |= {
            "per_device_train_batch_size": size,
            "gradient_accumulation_steps": accumulation,
        }
        scaled = scaled_learning_rate(
            arguments.learning_rate, asked, size * accumulation, str(arguments.optim)
        )
        if scaled is not None:
            changes.setdefault("learning_rate", scaled[0])
    for name, value in changes.items():
        if getattr(arguments, name) != value:
            _say(f"{name} is {value} in place of {getattr(arguments, name)}")
    return dataclasses.replace(arguments, **changes)


class BrimfulCallback(TrainerCallback):
    """Says on standard error, of the first rank: the plan in force, the peak of training and of
    evaluation beside the prediction, and findings.

    `record`: of `brimful tune` or `predict`, or its id or path; without one the newest of this
    script in this folder. PyTorch's own peaks are read and never reset: of a phase that took less
    than those before it, an upper bound is said.
    """

    def __init__(self, record: Record | str | None = None):
        self._record = read_record(record) if isinstance(record, str) else record
        self._most_bytes: dict[str, int] = {}  # reserved, by phase, as last said

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._record is None:
            self._record = next(records_of_this_script("tune", "predict"), None)
        plan, planned = self._record and self._record.plan, "no plan"
        if self._record is not None and plan is not None:
            size = values_in_force(plan.settings).get(BATCH_SIZE)
            planned = f"the plan of {self._record.opened.record_id} has {size}"
        size, accumulation = args.per_device_train_batch_size, args.gradient_accumulation_steps
        _say(f"a device trains at {size:,}, {accumulation:,} times an update; {planned}", state)
        audited = next(records_of_this_script("audit"), None)
        for finding in audited.audit.findings if audited is not None and audited.audit else ():
            _say(f"finding: {finding.problem} {finding.suggestion}", state)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if control.should_evaluate or control.should_training_stop:
            self._say_peak("train", args, state)

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._say_peak("eval", args, state)

    def _say_peak(self, phase: str, args: Any, state: Any) -> None:
        before_bytes = max(self._most_bytes.values(), default=0)
        now_bytes = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
        if not now_bytes or (now_bytes <= before_bytes and phase in self._most_bytes):
            return
        self._most_bytes[phase] = now_bytes
        most = "at most " * (now_bytes <= before_bytes)
        text = f"{phase} peak {most}{format_bytes(now_bytes)} reserved (measured)"
        prediction = self._record.prediction if self._record is not None else None
        if prediction is not None and prediction.batch_size == args.per_device_train_batch_size:
            peak = prediction.phases.get(phase)
            if peak is not None:
                text += f"; {format_bytes(peak.reserved_bytes)} predicted"
                above = now_bytes - peak.reserved_bytes
                if not most and above > peak.device_interval_bytes[1] - peak.device_bytes:
                    text += ", which is too low: predict again"
        retries = torch.cuda.memory_stats().get("num_alloc_retries", 0)
        if retries:
            text += (
                f"; finding: memory was full {counted(retries, 'time')}, and was emptied of what"
            )
            text += " is cached: a smaller batch is faster"
        _say(text, state)


def _say(sentence: str, state: Any = None) -> None:
    if state is None or state.is_world_process_zero:
        print(f"brimful: {sentence}", file=sys.stderr, flush=True)
