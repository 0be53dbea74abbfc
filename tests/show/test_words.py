"""Values in words."""

from __future__ import annotations

from brimful.show.words import (
    NOTHING,
    bytes_interval_text,
    bytes_text,
    count_text,
    environment_text,
    memory_of,
    setting_text,
    settings_text,
    speed_text,
)
from brimful.values import PhasePeak


def test_what_is_absent_is_a_dash_whatever_it_would_have_been() -> None:
    assert {bytes_text(None), count_text(None), speed_text(None), setting_text(None), settings_text({})} == {NOTHING}
    assert "0" in bytes_text(0) and count_text(0) == "0"


def test_settings_read_as_a_person_writes_them() -> None:
    assert (
        settings_text({"batch_size": 1024, "lr": 3e-4, "amp": True, "name": "a b"})
        == "batch_size 1,024, lr 0.0003, amp yes, name a b"
    )


def test_an_environment_can_be_pasted_in_front_of_a_command() -> None:
    assert environment_text({"A": "1", "B": "two words; rm"}) == "A=1 B='two words; rm'"


def test_an_interval_that_reads_as_one_number_is_none() -> None:
    assert bytes_interval_text(2**30, 2**30) is None
    assert bytes_interval_text(None, 2**30) is None
    assert bytes_interval_text(2**30, 3 * 2**29) == "1.00 to 1.50 GiB"


def test_a_peak_shows_the_memory_asked_for_else_the_nearest_to_it() -> None:
    cpu = PhasePeak(None, None, None, 7)
    card = PhasePeak(1, 2, 3, 4)
    assert memory_of(card) == ("device", 3)
    assert memory_of(card, "host") == ("host", 4)
    assert memory_of(cpu, "device") == ("host", 7)
    assert memory_of(PhasePeak(1, 2, None, None), "host") == ("reserved", 2)
    assert memory_of(PhasePeak(None, None, None, None)) is None
    assert memory_of(None) is None
