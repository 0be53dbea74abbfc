"""Transformers' Trainer and Lightning evaluate when a count says so, which a shortened loader may
never reach: here they do so once the steps are measured, and never resume. Everything else of them
is seen as in any script."""

from __future__ import annotations

from typing import Any

from brimful_inside.probe.context import current_probe, note, patch
from brimful_inside.probe.import_hooks import import_hooks
from brimful_inside.wire import TrialConfig


def patch_frameworks(config: TrialConfig) -> None:
    lightning = ("lightning.pytorch", "pytorch_lightning")
    if config.cut:
        import_hooks.when_imported(
            "transformers.trainer_callback",
            lambda m: patch(m.CallbackHandler, "on_step_end", _evaluate_in_trainer),
        )
        for package in lightning:
            import_hooks.when_imported(
                package + ".loops.training_epoch_loop",
                lambda m: patch(
                    m._TrainingEpochLoop, "_should_check_val_fx", _evaluate_in_lightning
                ),
            )
    if config.cut and config.keep_out:
        import_hooks.when_imported(
            "transformers.trainer",
            lambda m: _start_anew(m.Trainer, "train", "resume_from_checkpoint", 1),
        )
        for package in lightning:
            import_hooks.when_imported(
                package + ".trainer.trainer",
                lambda m: _start_anew(m.Trainer, "fit", "ckpt_path", 5),
            )


def _wants_evaluation() -> bool:
    """The measured steps are complete, and no evaluation that the trial is to see has run since
    training began.
    """
    probe = current_probe()
    return (
        probe is not None
        and probe.config.ends.see_eval
        and probe.course.measured
        and not probe.course.evaluated
    )


def _evaluate_in_trainer(original: Any, handler: Any, args: Any, state: Any, control: Any) -> Any:
    """After a step the callbacks return what the Trainer shall do next."""
    control = original(handler, args, state, control)
    strategy = getattr(args, "eval_strategy", None) or getattr(args, "evaluation_strategy", "no")
    if (
        control is not None
        and _wants_evaluation()
        and str(getattr(strategy, "value", strategy)) != "no"
    ):
        control.should_evaluate = True
    return control


def _evaluate_in_lightning(original: Any, loop: Any, *args: Any, **kwargs: Any) -> Any:
    return (_wants_evaluation() and loop.trainer.enable_validation) or original(
        loop, *args, **kwargs
    )


def _start_anew(cls: Any, name: str, argument: str, position: int) -> None:
    """A trial does not resume from a checkpoint: it would find the training over, or count its
    steps from there.
    """

    def start(original: Any, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop(argument, None) or (args[position] if len(args) > position else None)
        if given:
            args = (*args[:position], None, *args[position + 1 :]) if len(args) > position else args
            note("%s.%s was to resume from %s: a trial starts anew" % (cls.__name__, name, given))
        return original(*args, **kwargs)

    patch(cls, name, start)
