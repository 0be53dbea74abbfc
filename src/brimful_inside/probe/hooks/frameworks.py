"""Two frameworks that own the training loop: asked to evaluate once the steps are measured, and not to resume.

Transformers' Trainer and Lightning evaluate when a count says so, which a shortened loader may never reach. Everything else of
them is seen as in any script.
"""

from __future__ import annotations

import functools
from typing import Any

from brimful_inside.probe import context as process_context
from brimful_inside.probe.hooks.import_hooks import waiting


def watch_frameworks(context: Any) -> None:
    config = context.config
    if config.cut and config.see_eval:
        waiting.wait_for("transformers.trainer_callback", _evaluate_in_trainer)
        for package in ("lightning.pytorch", "pytorch_lightning"):
            waiting.wait_for(package + ".loops.training_epoch_loop", _evaluate_in_lightning)
    if config.cut and config.keep_out:
        waiting.wait_for(
            "transformers.trainer", lambda module: _start_anew(module.Trainer, "train", "resume_from_checkpoint", 1)
        )
        for package in ("lightning.pytorch", "pytorch_lightning"):
            waiting.wait_for(package + ".trainer.trainer", lambda module: _start_anew(module.Trainer, "fit", "ckpt_path", 5))


def _wants_evaluation() -> bool:
    """The measured steps are made, and no evaluation was seen since training began."""
    context = process_context.context
    probe = context.probe if context is not None else None
    return probe is not None and probe.ending.measured and not probe.ending.evaluated


def _evaluate_in_trainer(module: Any) -> None:
    """After a step the callbacks hand back what the Trainer shall do next."""
    handler = module.CallbackHandler
    original = handler.on_step_end

    @functools.wraps(original)
    def on_step_end(self: Any, args: Any, state: Any, control: Any) -> Any:
        control = original(self, args, state, control)
        strategy = getattr(args, "eval_strategy", None) or getattr(args, "evaluation_strategy", "no")
        if control is not None and _wants_evaluation() and str(getattr(strategy, "value", strategy)) != "no":
            control.should_evaluate = True
        return control

    handler.on_step_end = on_step_end


def _evaluate_in_lightning(module: Any) -> None:
    loop = module._TrainingEpochLoop
    original = loop._should_check_val_fx

    @functools.wraps(original)
    def _should_check_val_fx(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _wants_evaluation() and self.trainer.enable_validation:
            return True
        return original(self, *args, **kwargs)

    loop._should_check_val_fx = _should_check_val_fx


def _start_anew(cls: Any, name: str, argument: str, position: int) -> None:
    """A trial does not go on from a checkpoint: it would find the training over, or count its steps from there."""
    original = getattr(cls, name)

    @functools.wraps(original)
    def start(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.get(argument) or (args[position - 1] if len(args) >= position else None)
        if given:
            kwargs.pop(argument, None)
            args = (*args[: position - 1], None, *args[position:]) if len(args) >= position else args
            context = process_context.context
            if context is not None:
                context.note("%s.%s was to resume from %s: a trial starts anew" % (cls.__name__, name, given))
        return original(self, *args, **kwargs)

    setattr(cls, name, start)
