"""The engine: train a model under a plan, fast, exact and hard to kill.

A recipe makes a `Task` (model, loss, data) and a `Config` (settings) and calls `fit`. `engine.py`, read from top to bottom,
is how it trains.
"""

from __future__ import annotations
