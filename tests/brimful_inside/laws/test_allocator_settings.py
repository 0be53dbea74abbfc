from __future__ import annotations

import pytest

from brimful_inside.laws.allocator import AllocatorSettings, rounded_size, settings_from, settings_in

MIB = 1 << 20


def test_no_string_is_the_default():
    assert settings_from("") == AllocatorSettings()
    assert settings_in({}) == AllocatorSettings()


def test_every_key_that_changes_memory_is_read():
    found = settings_from(
        "max_split_size_mb: 128, max_non_split_rounding_mb:40,garbage_collection_threshold:0.8,expandable_segments:True,"
        "roundup_power2_divisions:8,per_process_memory_fraction:0.5,large_segment_size_mb:40,backend:cudaMallocAsync"
    )
    assert found == AllocatorSettings(128 * MIB, 40 * MIB, (8,) * 16, 0.8, True, 0.5, 40 * MIB, False)


def test_keys_about_host_memory_are_known_and_change_nothing():
    assert settings_from("pinned_use_background_threads:True,pinned_num_register_threads:8") == AllocatorSettings()


def test_rounding_divisions_are_given_by_size():
    found = settings_from("roundup_power2_divisions:[256:1,512:2,1024:4,>:8]").roundup_power2_divisions
    # ">" counts from the last size named, so that the 4 of 1024 MiB is never in force: PyTorch does so too.
    assert found == (1,) * 9 + (2,) + (8,) * 6


def test_sizes_are_rounded_to_divisions_of_a_power_of_two():
    four = settings_from("roundup_power2_divisions:4")
    assert rounded_size(1200 * MIB, four) == 1280 * MIB
    assert rounded_size(1024 * MIB, four) == 1024 * MIB
    assert rounded_size(1281 * MIB, four) == 1536 * MIB
    assert rounded_size(2048, four) == 2048  # 512 × 4 and less are rounded to 512 alone
    assert rounded_size(2049, four) == 2560


@pytest.mark.parametrize(
    ("conf", "names"),
    [
        ("max_split_size_mb:10", "max_split_size_mb"),
        ("max_split_size_mb:big", "max_split_size_mb"),
        ("garbage_collection_threshold:1.5", "garbage_collection_threshold"),
        ("expandable_segments:yes", "expandable_segments"),
        ("roundup_power2_divisions:3", "roundup_power2_divisions"),
        ("roundup_power2_divisions:[256:1", "roundup_power2_divisions"),
        ("backend:jemalloc", "backend"),
        ("max_split_siz:100", "max_split_siz"),
        ("expandable_segments", "expandable_segments"),
    ],
)
def test_what_pytorch_refuses_is_refused_by_name(conf, names):
    with pytest.raises(ValueError, match=names):
        settings_from(conf)


def test_the_older_variable_goes_first_as_in_pytorch():
    environment = {"PYTORCH_ALLOC_CONF": "expandable_segments:False", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert settings_in(environment).expandable_segments
    del environment["PYTORCH_CUDA_ALLOC_CONF"]
    assert not settings_in(environment).expandable_segments
