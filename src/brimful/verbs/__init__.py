"""What a user asks for, one file a verb: each ties measuring and deciding together and returns a `Record`."""

from brimful.verbs.audit import audit
from brimful.verbs.predict import predict
from brimful.verbs.tune import tune

__all__ = ["audit", "predict", "tune"]
