import json

import pytest

from bench.accuracy import (
    evidence_from,
    evidence_json,
)
from brimful.decide.memory.intervals import STEP_TIME, Evidence


def test_evidence_comes_from_signed_errors_and_survives_its_json():
    evidence = evidence_from(
        [i / 1000 for i in range(-40, 41)], STEP_TIME, "2026-01-01", "one card", "a bench"
    )
    assert (evidence.median_error, evidence.count) == (0.0, 81)
    assert evidence.high_error - evidence.low_error == pytest.approx(0.077)  # 78 of 81
    assert Evidence(**json.loads(evidence_json(evidence))) == evidence
