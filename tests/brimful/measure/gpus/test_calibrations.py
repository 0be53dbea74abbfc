import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from brimful.decide.memory.fit import context_of, slack_of
from brimful.errors import NoSuchDevice, UsageError
from brimful.measure.gpus import calibrations, find_gpu, to_card
from brimful.values import Calibration, Source

MIB, GIB = 1 << 20, 1 << 30
MEASURED = Calibration(
    name="NVIDIA H200",
    capability=(9, 0),
    multiprocessors=132,
    total_bytes=140 * GIB,
    context_bytes=610 * MIB,
    cudnn_bytes=240 * MIB,
    stages_bytes={"bare": 480 * MIB, "training": 610 * MIB, "cudnn": 850 * MIB},
    others_bytes=0,
    rates={"kernel_s": 2e-6},
    versions={"torch": "2.13.0", "cuda": "13.0", "cudnn": 91300, "driver": None},
    hostname=platform.node(),
    date="2026-11-20",
)


def test_what_was_measured_replaces_what_is_assumed(tmp_path):
    assert find_gpu("h200").context_bytes.source is Source.ASSUMED
    calibrations.keep(MEASURED, tmp_path)
    gpu = calibrations.calibrated(find_gpu("h200"), tmp_path)
    assert gpu.context_bytes.value == 610 * MIB and gpu.total_bytes.value == 140 * GIB
    context = context_of(gpu, uses_cudnn=True)
    assert (context.value, context.source) == (850 * MIB, Source.MEASURED)
    assert slack_of(context) == (0, 0)
    assert (
        gpu.calibration
        == "context measured on 2026-11-20 on this machine (torch 2.13.0, cuda 13.0, cudnn 91300)"
    )
    assert gpu.bandwidth_bytes_per_s == find_gpu("h200").bandwidth_bytes_per_s


def test_any_name_of_the_card_finds_it(tmp_path):
    calibrations.keep(MEASURED, tmp_path)
    for name in ("h200", "NVIDIA H200", "h200-141gb"):
        assert calibrations.find_calibrated(name, tmp_path).context_bytes.value == 610 * MIB
    assert calibrations.find_calibrated("a100-40gb", tmp_path) == find_gpu("a100-40gb")
    assert calibrations.find_calibrated("h200", tmp_path / "else") == find_gpu("h200")
    calibrations.keep(replace(MEASURED, hostname="box7"), tmp_path)
    assert "on box7 (" in (calibrations.find_calibrated("h200", tmp_path).calibration or "")


def test_a_card_that_the_catalogue_lacks_can_be_named_once_it_was_measured(tmp_path):
    with pytest.raises(NoSuchDevice):
        calibrations.find_calibrated("NVIDIA Foo 9000", tmp_path)
    calibrations.keep(
        replace(MEASURED, name="NVIDIA Foo 9000", capability=(12, 1), multiprocessors=7), tmp_path
    )
    gpu = calibrations.find_calibrated("nvidia foo 9000", tmp_path)
    assert (gpu.capability, gpu.multiprocessors, gpu.total_bytes.value) == ((12, 1), 7, 140 * GIB)
    assert gpu.context_bytes.source is Source.MEASURED and gpu.fp32_flops.source is Source.ASSUMED


@pytest.mark.parametrize("text", ["", "{}", "[1]", '"x"', '{"schema": 99}', "\x1b", "[" * 9])
def test_a_file_that_is_no_calibration_is_refused_in_a_sentence(tmp_path, text):
    path = calibrations.keep(MEASURED, tmp_path)
    path.write_text(text)
    with pytest.raises(UsageError, match="cannot be used") as error:
        calibrations.find_calibrated("h200", tmp_path)
    assert str(path) in error.value.problem


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("schema", 2),
        ("name", 7),
        ("capability", [9]),
        ("capability", "90"),
        ("multiprocessors", 0),
        ("total_bytes", "140 GiB"),
        ("total_bytes", 1 << 60),
        ("total_bytes", True),
        ("context_bytes", -1),
        ("context_bytes", 141 * GIB),
        ("cudnn_bytes", None),
        ("stages_bytes", {"bare": "much"}),
        ("rates", {"kernel_s": 0}),
        ("rates", {"kernel_s": float("nan")}),
        ("rates", [1]),
        ("versions", None),
        ("unknown", 1),
    ],
)
def test_wrong_types_and_impossible_sizes_are_refused_by_their_field(tmp_path, field, value):
    path = calibrations.keep(MEASURED, tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    with pytest.raises(UsageError, match=field):
        calibrations.calibrated(find_gpu("h200"), tmp_path)


def test_it_is_kept_in_brimful_home_or_else_in_the_users_configuration(tmp_path, monkeypatch):
    monkeypatch.setenv("BRIMFUL_HOME", str(tmp_path / "home"))
    assert calibrations.folder_of() == tmp_path / "home" / "cards"
    monkeypatch.delenv("BRIMFUL_HOME")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert calibrations.folder_of() == tmp_path / "config" / "brimful" / "cards"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    assert calibrations.folder_of() == Path("~/.config/brimful/cards").expanduser()


def test_a_place_that_cannot_be_written_is_reported(tmp_path):
    (tmp_path / "cards").write_text("a file")
    with pytest.raises(UsageError, match="cannot be kept"):
        calibrations.keep(MEASURED, tmp_path)


def test_rates_that_were_reached_come_along_and_give_a_clock_to_a_card_that_the_catalogue_lacks(
    tmp_path,
):
    rates = {"bandwidth_bytes_per_s": 1.1e12, "fp32_flops": 2e13, "bf16_flops": 1e14}
    calibrations.keep(replace(MEASURED, rates=rates), tmp_path)
    calibrations.keep(replace(MEASURED, name="NVIDIA Unheard Of", rates=rates), tmp_path)
    assert calibrations.calibrated(find_gpu("h200"), tmp_path).reached == rates
    unknown = calibrations.find_calibrated("NVIDIA Unheard Of", tmp_path)
    card = to_card(unknown)
    assert (card.bandwidth_bytes_per_s, card.flops) == (1.1e12, {"fp32": 2e13, "bf16": 1e14})
    assert to_card(replace(unknown, reached={})).bandwidth_bytes_per_s is None
