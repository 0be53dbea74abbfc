"""What a training is, on disk: written so that a kill at any moment leaves a whole one, read back bit for bit."""

from __future__ import annotations

from brimful.train.checkpoints.config import CheckpointConfig
from brimful.train.checkpoints.folder import Checkpoints
from brimful.train.checkpoints.signals import Stop
from brimful.train.checkpoints.whole import Loaded

__all__ = ["CheckpointConfig", "Checkpoints", "Loaded", "Stop"]
