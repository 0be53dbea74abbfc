"""Gradients of weights that no optimizer holds."""

from dataclasses import replace

import pytest

from brimful.decide.memory.gradients import unstepped_gradients
from brimful_inside.simulator.trace import At, Backward, Malloc, Phase, Site, Tag
from tests.brimful.decide.programs import GIB, MIB, traced
from tests.brimful.show import product


@pytest.mark.parametrize(("nbytes", "said"), [(40 * GIB, True), (MIB, False)])
def test_gradients_of_weight_are_said_with_their_bytes_and_line(nbytes, said):
    result = product.predict_fits().trials[0]
    report = replace(result.reports[0], unstepped={"Teacher": nbytes})
    site = Site(1, "", "a.py:61 in main: loss.backward()", "backward", "")
    rows = [Phase("train"), site, At(1), Backward(True), Malloc(1, nbytes, "aten.mm")]
    rows += [Tag(1, "gradient", "h", "Teacher", 4), Backward(False)]
    findings = list(unstepped_gradients(replace(result, reports=(report,)), traced(*rows)))
    assert len(findings) == said
    assert not said or "gradients of 40.0 GiB are made at a.py:61" in findings[0].problem
