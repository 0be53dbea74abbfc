import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import units
from brimful.errors import UsageError


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_bytes, "20 GB", 20 * 10**9),
        (units.parse_bytes, "500MB", 500 * 10**6),
        (units.parse_bytes, "500 MiB", 500 * 1024**2),
        (units.parse_bytes, "1.5g", 1610612736),
        (units.parse_bytes, "1024", 1024),
        (units.parse_bytes, "42,298,834,944", 42298834944),
        (units.parse_bytes, "1e9", 10**9),
        (units.parse_bytes, ".5gib", 536870912),
        (units.parse_bytes, "80 GiB ", 80 * 1024**3),
        (units.parse_link, "400Gb", 50e9),
        (units.parse_link, "100GbE", 12.5e9),
        (units.parse_link, "50GB/s", 50e9),
        (units.parse_link, "2.5 Gbit/s", 312.5e6),
        (units.parse_duration, "90", 90),
        (units.parse_duration, "90s", 90),
        (units.parse_duration, "250ms", 0.25),
        (units.parse_duration, "10m", 600),
        (units.parse_duration, "10 min", 600),
        (units.parse_duration, "1h30m", 5400),
        (units.parse_duration, "1.5h", 5400),
    ],
)
def test_gb_and_gib_bits_and_bytes_and_the_units_of_durations_are_kept_apart(parse, text, value):
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "text", "reason", "advice"),
    [
        *((units.parse_bytes, text, "", "GiB") for text in ("", "big", "20 GiBB", "-5GiB", "0")),
        *((units.parse_bytes, text, "", "GiB") for text in ("0GiB", "nan", "inf", "1e40", "20%")),
        *((units.parse_bytes, text, "", "GiB") for text in ("GiB", "1.2.3GB")),
        *((units.parse_batch_size, text, "too small", "") for text in ("0", "-1")),
        *(
            (units.parse_batch_size, text, "whole number", "")
            for text in ("1.5", "big", "", "nan", "inf")
        ),
        (units.parse_batch_size, "1" + "0" * 30, "more than any data set", ""),
    ],
)
def test_what_is_no_amount_of_memory_or_batch_size_is_refused_with_a_sentence_that_quotes_it(
    parse, text, reason, advice
):
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert reason in caught.value.problem and repr(text) in caught.value.problem
    assert caught.value.suggestion and advice in caught.value.suggestion


@pytest.mark.parametrize("text", ["0%", "101%", "-3%", "x%", "%", "nan%", "inf%"])
def test_a_budget_is_bytes_or_a_share_within_the_memory(text):
    assert [units.parse_budget(share, 1000) for share in ("90%", "6GiB")] == [900, 6 * 1024**3]
    with pytest.raises(UsageError, match="share"):
        units.parse_budget(text, 1000)


@given(st.integers(1, units.LARGEST_BATCH_SIZE))
def test_every_batch_size_survives_being_written_down(value):
    assert units.parse_batch_size(str(value)) == units.parse_batch_size(f"{value:,}") == value


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
    ("written", "text"),
    [
        (units.format_bytes(0), "0 bytes"),
        (units.format_bytes(1), "1 byte"),
        (units.format_bytes(900), "900 bytes"),
        (units.format_bytes(512 * 1024**2), "512 MiB"),
        (units.format_bytes(42298834944), "39.4 GiB"),
        (units.format_bytes(1024**3 - 1), "1.00 GiB"),
        (units.format_bytes(9.996 * 1024**3), "10.0 GiB"),
        (units.format_bytes(2000 * 1024**4), "2,000 TiB"),
        (units.format_bytes(-(1024**2)), "-1.00 MiB"),
        (units.format_duration(0), "0 s"),
        (units.format_duration(350e-6), "350 µs"),
        (units.format_duration(0.0123), "12.3 ms"),
        (units.format_duration(0.9999), "1.00 s"),
        (units.format_duration(45), "45.0 s"),
        (units.format_duration(59.99), "1 min 00 s"),
        (units.format_duration(200), "3 min 20 s"),
        (units.format_duration(3900), "1 h 05 min"),
        (units.format_duration(200000), "2 d 7 h"),
        (units.format_share(0), "0 %"),
        (units.format_share(0.0001), "under 0.1 %"),
        (units.format_share(0.035), "3.5 %"),
        (units.format_share(0.523), "52 %"),
        (units.format_share(1), "100 %"),
        (units.format_rate(0.2512), "0.251 samples/s"),
        (units.format_rate(3.211), "3.21 samples/s"),
        (units.format_rate(316.2), "316 samples/s"),
        (units.format_rate(12432), "12,400 samples/s"),
        (units.counted(0, "step"), "0 steps"),
        (units.counted(1, "step"), "1 step"),
        (units.counted(3000, "step"), "3,000 steps"),
        (units.counted(2, "batch", "batches"), "2 batches"),
    ],
)
def test_values_are_written_with_three_figures_and_their_unit_as_people_say_them(written, text):
    assert written == text


@pytest.mark.parametrize(
    ("low", "high", "value", "write", "text"),
    [
        (
            12.1 * units.GIB,
            12.9 * units.GIB,
            12.4 * units.GIB,
            units.format_bytes,
            "12.1 to 12.9 GiB",
        ),
        (
            900 * units.MIB,
            1.5 * units.GIB,
            1.2 * units.GIB,
            units.format_bytes,
            "0.879 to 1.50 GiB",
        ),
        (3 * units.GIB, 3 * units.GIB, 3 * units.GIB, units.format_bytes, "3.00 GiB"),
        (
            476 * units.MIB,
            1.15 * units.GIB,
            679 * units.MIB,
            units.format_bytes,
            "476 to 1,180 MiB",
        ),
        (771e-6, 4.69e-3, 1.69e-3, units.format_duration, "0.771 to 4.69 ms"),
        (50.0, 70.0, 59.0, units.format_duration, "50.0 to 70.0 s"),
        (50.0, 70.0, 61.0, units.format_duration, "50.0 s to 1 min 10 s"),
        (0.0, 0.0, 0.0, units.format_duration, "0 s"),
    ],
)
def test_an_interval_has_one_unit_that_of_its_value(low, high, value, write, text):
    assert units.format_interval(low, high, value, write) == text


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (units.parse_link, ["", "fast", "0Gb", "400", "50GB", "-1Gb", "400gb", "9" * 400 + "Gb"]),
        (units.parse_duration, ["", "soon", "0", "10x", "5m later", "-3s"]),
    ],
)
def test_what_is_no_speed_of_a_network_and_no_duration_is_refused(parse, texts):
    for text in texts:
        with pytest.raises(UsageError):
            parse(text)


@given(st.floats(1e-3, 1e6))
def test_durations_read_back_roughly(seconds):
    assert units.parse_duration(units.format_duration(seconds)) == pytest.approx(seconds, rel=0.02)


def test_settings_are_read_as_a_command_would_mean_them():
    values = [units.parse_setting(text) for text in ("4", "1e-3", "true", "adamw", "nan")]
    assert values == [4, 1e-3, True, "adamw", "nan"]
    assert [type(value) for value in values] == [int, float, bool, str, str]
