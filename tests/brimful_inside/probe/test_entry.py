from types import SimpleNamespace

import pytest

from brimful_inside.probe import entry


@pytest.mark.parametrize("enabled", [True, False])
def test_the_device_is_told_that_an_enabled_scaler_decides_before_the_step_is_made(
    enabled, monkeypatch
):
    happened = []
    monkeypatch.setattr(entry, "call_probe", lambda method, *args: happened.append(method))
    monkeypatch.setattr(entry, "current_probe", lambda: None)
    scaler = SimpleNamespace(is_enabled=lambda: enabled)
    entry._scaler_step(lambda *args: happened.append("step"), scaler, None)
    assert happened == ["losses.unscale", *["device.scaler_decides"] * enabled, "step"]
