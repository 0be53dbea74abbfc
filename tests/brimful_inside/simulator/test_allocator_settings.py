from contextlib import nullcontext

import pytest

from brimful_inside.simulator.allocator import rounded_size
from brimful_inside.simulator.allocator_settings import (
    AllocatorSettings,
    changed,
    conf_in,
    ignored_in,
    settings_from,
    settings_in,
    spelled,
    with_expandable_segments,
)

MIB = 1 << 20


def test_every_key_that_changes_memory_is_read():
    read = settings_from(
        "max_split_size_mb: 128, "
        "max_non_split_rounding_mb:40,garbage_collection_threshold:0.8,expandable_segments:True,"
        "roundup_power2_divisions:8,per_process_memory_fraction:0.5,large_segment_size_mb:40,backend:cudaMallocAsync"
    )
    assert read == AllocatorSettings(
        128 * MIB, 40 * MIB, (8,) * 16, 0.8, True, 0.5, 40 * MIB, False
    )


def test_no_string_and_keys_about_host_memory_change_nothing():
    about_the_host = "pinned_use_background_threads:True,pinned_num_register_threads:8"
    assert settings_in({}) == settings_from(about_the_host) == AllocatorSettings()


def test_rounding_divisions_are_given_by_size():
    divisions = settings_from(
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]"
    ).roundup_power2_divisions
    # ">" counts from the last size named, so that the 4 of 1024 MiB is never in force: PyTorch does
    # so too.
    assert divisions == (1,) * 9 + (2,) + (8,) * 6


@pytest.mark.parametrize(
    ("divisions", "nbytes", "rounded"),
    [
        (4, 1200 * MIB, 1280 * MIB),
        (4, 1024 * MIB, 1024 * MIB),
        (4, 1281 * MIB, 1536 * MIB),
        (4, 2048, 2048),  # 512 × 4 and less are rounded to 512 alone
        (4, 2049, 2560),
        (1, 15233774, 15234048),  # as without the setting: a multiple of 512
    ],
)
def test_sizes_are_rounded_to_divisions_of_a_power_of_two(divisions, nbytes, rounded):
    assert rounded_size(nbytes, settings_from(f"roundup_power2_divisions:{divisions}")) == rounded


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
        ("large_segment_size_mb:10", "large_segment_size_mb"),
        # the least block to keep whole is a segment that requests share
        ("large_segment_size_mb:40,max_split_size_mb:39", "at least 40"),
    ],
)
def test_what_pytorch_refuses_is_refused_by_name(conf, names):
    with pytest.raises(ValueError, match=names):
        settings_from(conf)


@pytest.mark.parametrize(
    ("environment", "expandable"),
    [
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:False"}, False),
        (
            {
                "PYTORCH_ALLOC_CONF": "expandable_segments:False",
                "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
            },
            True,
        ),
        # an older one that is empty hides the newer one
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": ""}, False),
    ],
)
def test_the_older_variable_goes_first_as_in_pytorch(environment, expandable):
    assert settings_in(environment) == AllocatorSettings(expandable_segments=expandable)


NEWER, OLDER = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
EXPANDS, SPLITS = "expandable_segments:True", "max_split_size_mb:64"


@pytest.mark.parametrize(
    ("environment", "release", "conf", "ignored"),
    [
        ({NEWER: EXPANDS}, 206, None, [NEWER]),
        ({NEWER: EXPANDS}, 209, None, [NEWER]),
        ({NEWER: EXPANDS}, 210, EXPANDS, []),
        ({NEWER: EXPANDS}, 215, EXPANDS, []),
        ({OLDER: EXPANDS}, 209, EXPANDS, []),
        ({OLDER: EXPANDS, NEWER: EXPANDS}, 209, EXPANDS, []),
        ({OLDER: EXPANDS, NEWER: SPLITS}, 209, EXPANDS, [NEWER]),
        ({OLDER: SPLITS, NEWER: EXPANDS}, 213, SPLITS, [NEWER]),
        ({OLDER: "", NEWER: EXPANDS}, 213, "", [NEWER]),
        ({NEWER: ""}, 209, None, []),
        ({OLDER: "large_segment_size_mb:40," + SPLITS}, 210, ..., ["large_segment_size_mb"]),
        ({OLDER: "large_segment_size_mb:40," + SPLITS}, 211, ..., []),
        ({}, 213, None, []),
    ],
)
def test_a_release_reads_its_own_names_and_keys(environment, release, conf, ignored):
    assert conf in (..., conf_in(environment, release))
    assert ignored_in(environment, release) == ignored


def test_a_change_at_run_time_keeps_what_it_does_not_name_but_for_three_settings():
    before = settings_from(
        "expandable_segments:True,max_split_size_mb:64,garbage_collection_threshold:0.5"
    )
    after = changed(before, "max_non_split_rounding_mb:30")
    assert after == AllocatorSettings(max_non_split_rounding=30 * MIB, expandable_segments=True)


@pytest.mark.parametrize(
    "conf",
    [
        "",
        "max_split_size_mb:128,max_non_split_rounding_mb:40,garbage_collection_threshold:0.8,large_segment_size_mb:30",
        "roundup_power2_divisions:[256:1,512:2,>:8],expandable_segments:True,per_process_memory_fraction:0.25",
        # a block that is kept whole may be as small as a segment that requests share
        "large_segment_size_mb:40,max_split_size_mb:40",
        "max_non_split_rounding_mb:30,max_split_size_mb:30,large_segment_size_mb:40",
    ],
)
def test_settings_can_be_spelled_whatever_was_in_force(conf):
    wanted, other = (
        settings_from(conf),
        settings_from(
            "expandable_segments:True,max_non_split_rounding_mb:60,large_segment_size_mb:50"
        ),
    )
    assert changed(other, spelled(wanted)) == wanted


SPELLINGS = [
    "max_split_size_mb:20",
    "max_split_size_mb:19",
    "large_segment_size_mb:11",
    "large_segment_size_mb:10",
    "garbage_collection_threshold:0.5",
    "garbage_collection_threshold:1.0",
    "garbage_collection_threshold:0",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:[256:0,>:4]",
    "roundup_power2_divisions:[300:1]",
    "expandable_segments:True",
    "expandable_segments:true",
    "max_non_split_rounding_mb:19",
    "max_split_size_mb : 100",
    "max_split_size_mb:100,expandable_segments:False",
    "pinned_use_background_threads:True",
    "roundup_power2_divisions:[256:1,512:2,>:8]",
]


REFUSED = """
for text in %r:
    torch._C._accelerator_setAllocatorSettings("large_segment_size_mb:20")
    try:
        torch._C._accelerator_setAllocatorSettings(text)
    except Exception:
        print(text)
"""


def test_what_is_refused_here_is_what_torch_itself_refuses(printed):
    torch = pytest.importorskip("torch")
    if not hasattr(torch._C, "_accelerator_setAllocatorSettings"):
        pytest.skip("this release has no parser without CUDA")
    theirs = printed("import torch\n" + REFUSED % SPELLINGS)
    for text in SPELLINGS:
        with pytest.raises(ValueError) if text in theirs else nullcontext():
            settings_from(text)
    assert 0 < len(theirs) < len(SPELLINGS)


@pytest.mark.parametrize(
    ("conf", "wanted"),
    [
        ("", "expandable_segments:True"),
        ("max_split_size_mb:128", "max_split_size_mb:128,expandable_segments:True"),
        ("expandable_segments:False", "expandable_segments:False,expandable_segments:True"),
        ("expandable_segments:True", None),
        ("backend:cudaMallocAsync", None),
    ],
)
def test_expandable_segments_are_added_to_what_is_set(conf, wanted):
    added = with_expandable_segments({"PYTORCH_CUDA_ALLOC_CONF": conf})
    assert added == wanted
    assert added is None or settings_from(added).expandable_segments
