"""Experiment trackers are off in a trial: its numbers are not the user's, and imaginary ones are not even numbers."""

from __future__ import annotations

import os
import sys

# Each as its makers document it.
SWITCHES = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",  # 3.43 and later
    "COMET_AUTO_LOG_DISABLE": "1",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",  # transformers' callback
    "CODECARBON_SAVE_TO_FILE": "false",
    "DO_NOT_TRACK": "1",
}


def switch_off_trackers(folder: str) -> None:
    """By environment, so that child processes obey as well. MLflow has no switch: it is sent to the trial's folder.

    No byte code is written beside the user's modules either.
    """
    os.environ.update(SWITCHES)
    os.environ["MLFLOW_TRACKING_URI"] = "file:" + os.path.join(folder, "kept_out", "mlruns")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
