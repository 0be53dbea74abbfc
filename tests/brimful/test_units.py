import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import units
from brimful.errors import UsageError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("20 GB", 20 * 10**9),
        ("500MB", 500 * 10**6),
        ("500 MiB", 500 * 1024**2),
        ("1.5g", 1610612736),
        ("1024", 1024),
        ("42,298,834,944", 42298834944),
        ("1e9", 10**9),
        (".5gib", 536870912),
        ("80 GiB ", 80 * 1024**3),
    ],
)
def test_gb_and_gib_are_kept_apart(text, value):
    assert units.parse_bytes(text) == value


@pytest.mark.parametrize(
    "text",
    ["", "big", "20 GiBB", "-5GiB", "0", "0GiB", "nan", "inf", "1e40", "20%", "GiB", "1.2.3GB"],
)
def test_what_is_no_amount_of_memory_is_refused_with_a_sentence_that_quotes_it(text):
    with pytest.raises(UsageError) as caught:
        units.parse_bytes(text)
    assert repr(text) in caught.value.problem
    assert "GiB" in caught.value.suggestion


@pytest.mark.parametrize("text", ["0%", "101%", "-3%", "x%", "%", "nan%", "inf%"])
def test_a_budget_is_bytes_or_a_share_within_the_memory(text):
    assert units.parse_budget("90%", 1000) == 900
    assert units.parse_budget("6GiB", 1000) == 6 * 1024**3
    with pytest.raises(UsageError, match="share"):
        units.parse_budget(text, 1000)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0", "too small"),
        ("-1", "too small"),
        ("1.5", "whole number"),
        ("big", "whole number"),
        ("", "whole number"),
        ("nan", "whole number"),
        ("inf", "whole number"),
        ("1" + "0" * 30, "more than any data set"),
    ],
)
def test_a_batch_size_that_cannot_be_meant_gets_a_clear_sentence(text, reason):
    with pytest.raises(UsageError) as caught:
        units.parse_batch_size(text)
    assert reason in caught.value.problem and repr(text) in caught.value.problem
    assert caught.value.exit_code == 2
    assert caught.value.suggestion


@given(st.integers(1, units.LARGEST_BATCH_SIZE))
def test_every_batch_size_survives_being_written_down(value):
    assert units.parse_batch_size(str(value)) == value
    assert units.parse_batch_size(f"{value:,}") == value


@given(st.text(max_size=12))
def test_no_text_makes_a_parser_fail_otherwise_than_by_a_usage_error(text):
    for parse in (units.parse_bytes, units.parse_batch_size, units.parse_duration):
        with contextlib.suppress(UsageError):
            assert parse(text) > 0
    with contextlib.suppress(UsageError):
        assert units.parse_budget(text, 2**80) > 0


@given(st.integers(1, 2**59))
def test_bytes_read_back_within_half_a_unit_of_the_third_figure(value):
    assert units.parse_bytes(units.format_bytes(value)) == pytest.approx(value, rel=5.1e-3)
    assert units.parse_bytes(f"{value} bytes") == value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 bytes"),
        (1, "1 byte"),
        (900, "900 bytes"),
        (512 * 1024**2, "512 MiB"),
        (42298834944, "39.4 GiB"),
        (1024**3 - 1, "1.00 GiB"),
        (9.996 * 1024**3, "10.0 GiB"),
        (2000 * 1024**4, "2,000 TiB"),
        (-(1024**2), "-1.00 MiB"),
    ],
)
def test_bytes_are_written_with_three_figures(value, text):
    assert units.format_bytes(value) == text


def test_an_interval_has_one_unit():
    gib, mib = units.GIB, units.MIB
    assert units.format_interval(12.1 * gib, 12.9 * gib, 12.4 * gib) == "12.1 to 12.9 GiB"
    assert units.format_interval(900 * mib, 1.5 * gib, 1.2 * gib) == "0.879 to 1.50 GiB"
    assert units.format_interval(3 * gib, 3 * gib, 3 * gib) == "3.00 GiB"


def test_an_interval_has_the_unit_of_its_value():
    assert units.format_interval(476 * units.MIB, 1.15 * units.GIB, 679 * units.MIB) == (
        "476 to 1,180 MiB"
    )
    duration = units.format_duration
    assert units.format_interval(771e-6, 4.69e-3, 1.69e-3, duration) == "0.771 to 4.69 ms"
    assert units.format_interval(50.0, 70.0, 59.0, duration) == "50.0 to 70.0 s"
    assert units.format_interval(50.0, 70.0, 61.0, duration) == "50.0 s to 1 min 10 s"
    assert units.format_interval(0.0, 0.0, 0.0, duration) == "0 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (350e-6, "350 µs"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.00 s"),
        (45, "45.0 s"),
        (59.99, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3900, "1 h 05 min"),
        (200000, "2 d 7 h"),
    ],
)
def test_durations_are_written_as_people_say_them(seconds, text):
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [("400Gb", 50e9), ("100GbE", 12.5e9), ("50GB/s", 50e9), ("2.5 Gbit/s", 312.5e6)],
)
def test_speeds_of_a_network_are_read_in_bits_and_bytes(text, bytes_per_s):
    assert units.parse_link(text) == bytes_per_s


@pytest.mark.parametrize("text", ["", "fast", "0Gb", "400", "50GB", "-1Gb", "400gb"])
def test_what_is_no_speed_of_a_network_is_refused(text):
    with pytest.raises(UsageError):
        units.parse_link(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("250ms", 0.25),
        ("10m", 600),
        ("10 min", 600),
        ("1h30m", 5400),
        ("1.5h", 5400),
    ],
)
def test_durations_are_read(text, seconds):
    assert units.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "0", "10x", "5m later", "-3s"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UsageError):
        units.parse_duration(text)


@given(st.floats(1e-3, 1e6))
def test_durations_read_back_roughly(seconds):
    assert units.parse_duration(units.format_duration(seconds)) == pytest.approx(seconds, rel=0.02)


def test_settings_are_read_as_a_command_would_mean_them():
    values = [units.parse_setting(text) for text in ("4", "1e-3", "true", "adamw", "nan")]
    assert values == [4, 1e-3, True, "adamw", "nan"]
    assert [type(value) for value in values] == [int, float, bool, str, str]


def test_shares_and_rates_are_written():
    assert [units.format_share(x) for x in (0, 0.0001, 0.035, 0.523, 1)] == [
        "0 %",
        "under 0.1 %",
        "3.5 %",
        "52 %",
        "100 %",
    ]
    rates = [units.format_rate(x) for x in (0.2512, 3.211, 316.2, 12432)]
    assert rates == ["0.251 samples/s", "3.21 samples/s", "316 samples/s", "12,400 samples/s"]


def test_a_number_has_its_noun_in_the_plural_but_for_one():
    assert [units.counted(n, "step") for n in (0, 1, 2, 3000)] == [
        "0 steps",
        "1 step",
        "2 steps",
        "3,000 steps",
    ]
    assert units.counted(2, "batch", "batches") == "2 batches"
