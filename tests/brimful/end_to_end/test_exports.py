"""The files of `predict --snapshot`, read by those they are for."""

import base64
import pickle
import re
import runpy
import sys
from unittest import mock

import pytest
from torch.cuda import _memory_viz

from brimful.units import MIB
from tests.brimful.end_to_end.helper import TRAINING, brimful, python, script

# As `python -m torch.cuda._memory_viz` has them; those that draw flame graphs load a script from
# GitHub, and are called without it.
COMMANDS = ("stats", "trace", "trace_plot", "segment_plot")


def plain(lines):
    return lines


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exports")
    wide = script(folder, TRAINING.replace("256", "16384"), samples=4096)
    files = ("--snapshot", "peak.pickle", "--no-what-if")
    words = ("predict", "--gpu", "t4", "--json", *files)
    return brimful(folder, *words, *python(wide, "--batch-size", 512), code=0), folder


@pytest.fixture(scope="module")
def snapshot(done):
    return pickle.loads((done[1] / "peak.pickle").read_bytes())


@pytest.mark.heavy
@pytest.mark.parametrize("command", COMMANDS)
def test_pytorchs_viewer_reads_the_snapshot(done, snapshot, command, capsys):
    """Each command of torch/cuda/_memory_viz.py, of the torch that is here."""
    called, folder = done
    words = [command, str(folder / "peak.pickle")]
    page = folder / f"{command}.html"
    words += ["-o", str(page)] if command.endswith("plot") else []
    with mock.patch.object(sys, "argv", [_memory_viz.__file__, *words]):
        runpy.run_path(_memory_viz.__file__, run_name="__main__")
    out, peak = capsys.readouterr().out, called.json["peak"]
    if command == "stats":
        assert f"total_reserved: {peak['reserved_bytes'] / MIB:.1f}MiB" in out
    elif command == "trace":
        assert "Device 0 ---" in out and "cudaMalloc(" in out
        assert f"{len(snapshot['device_traces'][0])} entries" in out
    else:
        (encoded,) = re.findall(r'"base64": "([^"]+)"', page.read_text())
        assert pickle.loads(base64.b64decode(encoded)) == snapshot


@pytest.mark.heavy
def test_flame_graphs_have_the_scripts_lines_and_modules(snapshot):
    for draw in _memory_viz.memory, _memory_viz.segments:
        lines = draw(snapshot, format_flamegraph=plain).splitlines()
        (weight,) = [
            line
            for line in lines
            if line.endswith(f" {16384 * 64 * 4}") and "model = nn.Sequential(" in line
        ]
        assert "module:0:Sequential;module:0:Sequential.0;train.py:15:<module>: " in weight
        assert any(
            "loss.backward();operation:0:aten.mm.default (backward)" in line for line in lines
        )
    compared = _memory_viz.compare(snapshot["segments"], [], format_flamegraph=plain)
    assert compared.startswith("only_before;")


@pytest.mark.heavy
def test_the_timeline_rises_to_the_predicted_peak_to_the_byte(done, snapshot):
    called, _ = done
    (entries,) = snapshot["device_traces"]
    held = highest = 0
    for entry in entries:
        held += entry["size"] * {"alloc": 1, "free_requested": -1}.get(entry["action"], 0)
        highest = max(highest, held)
    peak = called.json["peak"]
    assert highest == peak["allocated_bytes"] > 512 * 16384 * 4
    assert sum(s["total_size"] for s in snapshot["segments"]) == peak["reserved_bytes"]
    categories = {entry["category"] for entry in entries}
    assert {"parameters", "gradients", "activations", "inputs", "unknown"} <= categories
