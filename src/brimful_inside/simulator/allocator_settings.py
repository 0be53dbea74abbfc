"""The caching allocator's settings, as PYTORCH_ALLOC_CONF (or the older PYTORCH_CUDA_ALLOC_CONF)
spells them. Names, keys, defaults and rules: c10/core/AllocatorConfig.h and .cpp,
c10/cuda/CUDAAllocatorConfig.h of PyTorch 2.6 to 2.15, as its wheels have them.

2.9 has a reader of PYTORCH_ALLOC_CONF as well, which warns of the older name; the CUDA allocator
asks it for nothing (pull request 161628)."""

from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

MIB = 1 << 20
LARGE_SEGMENT = 20 * MIB  # kLargeBuffer; `large_segment_size_mb` changes it since 2.11
LEAST_SEGMENT_MIB = 11  # above kMinLargeAlloc
ROUNDING_INTERVALS = 16  # roundup_power2_divisions: one per power of two from 1 MiB to 64 GiB

# The names of the variable, the first of which that is set counts, even an empty one, and the
# release (210: 2.10) that reads them first.
NAMES = {"PYTORCH_CUDA_ALLOC_CONF": 0, "PYTORCH_HIP_ALLOC_CONF": 210, "PYTORCH_ALLOC_CONF": 210}
# Keys that older releases refuse; 2.6 has all others.
KEYS_SINCE = {
    "graph_capture_record_stream_reuse": 209,
    "per_process_memory_fraction": 210,
    "pinned_reserve_segment_size_mb": 210,
    "large_segment_size_mb": 211,
    "pinned_free_catch_all": 212,
    "throw_on_cudamalloc_oom": 212,
    "pinned_max_cached_size_mb": 213,
    "pinned_max_round_threshold_mb": 213,
    "expandable_segments_reserve": 215,
    "expandable_segments_reserve_by_class": 215,
}
NEWEST = 215

# Keys that say nothing about how many bytes are held on the device: host memory, locks, graph
# capture, handle types, and how many addresses an expandable segment has.
WITHOUT_EFFECT = {
    "expandable_segments_handle_type",
    "expandable_segments_reserve",
    "expandable_segments_reserve_by_class",
    "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "throw_on_cudamalloc_oom",
}


class AllocatorSettings(NamedTuple):
    """How the caching allocator behaves. The defaults are PyTorch's."""

    # bytes; blocks of this size and more are not split. None: no limit
    max_split_size: Optional[int] = None
    # bytes an unsplittable block may be larger than the request
    max_non_split_rounding: int = LARGE_SEGMENT
    # by power of two from 1 MiB on; 0: off
    roundup_power2_divisions: Tuple[int, ...] = (0,) * ROUNDING_INTERVALS
    # of the memory allowed; 0: off. Works only where a fraction is set
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    memory_fraction: Optional[float] = None  # per_process_memory_fraction
    # bytes; requests from 1 to 10 MiB share segments of this size
    large_segment: int = LARGE_SEGMENT
    native: bool = True  # False: backend:cudaMallocAsync, which the model does not follow


DEFAULT_SETTINGS = AllocatorSettings()


def conf_in(environment: Mapping[str, str], release: int = NEWEST) -> Optional[str]:
    """The text in force in an environment; None without one."""
    return next((environment[name] for name in _read_in(environment, release)), None)


def _read_in(environment: Mapping[str, str], release: int) -> List[str]:
    """The names that are set and that a release reads, in its order."""
    return [name for name, since in NAMES.items() if since <= release and name in environment]


def settings_in(environment: Mapping[str, str], release: int = NEWEST) -> AllocatorSettings:
    """The settings in force in an environment. Raises ValueError as `settings_from` does."""
    return settings_from(conf_in(environment, release) or "")


def ignored_in(environment: Mapping[str, str], release: int) -> List[str]:
    """The names that a release does not read where they say something else than what is in force,
    and the keys that it refuses."""
    conf = conf_in(environment, release) or ""
    unread = set(NAMES).intersection(environment).difference(_read_in(environment, release)[:1])
    others = [name for name in NAMES if name in unread and environment[name] not in ("", conf)]
    return others + [key for key in _keys_of(conf) if KEYS_SINCE.get(key, 0) > release]


def with_expandable_segments(environment: Mapping[str, str]) -> Optional[str]:
    """The text that switches expandable segments on beside what is set in an environment; None
    where they are on, or where the allocator is not PyTorch's own. Raises as `settings_from`."""
    settings, conf = settings_in(environment), conf_in(environment)
    if not settings.native or settings.expandable_segments:
        return None
    return ",".join(filter(None, (conf, "expandable_segments:True")))


def settings_from(conf: str) -> AllocatorSettings:
    """The settings of a string such as ``"max_split_size_mb:128,expandable_segments:True"``. Raises
    ValueError for an unknown key or a value that PyTorch refuses as well, naming the key."""
    return changed(DEFAULT_SETTINGS, conf)


def changed(settings: AllocatorSettings, conf: str) -> AllocatorSettings:
    """`settings` after `conf` was set at run time. What is not named keeps its value, but for three
    settings that PyTorch puts back first. Raises ValueError as above."""
    put_back = ("max_split_size", "roundup_power2_divisions", "garbage_collection_threshold")
    settings = settings._replace(**{name: getattr(DEFAULT_SETTINGS, name) for name in put_back})
    for part in _parts_of(conf):
        key, _, value = part.partition(":")
        if not value:
            raise ValueError("%r is not of the form key:value" % part)
        settings = settings._replace(**_setting(key, value, settings.large_segment // MIB))
    return settings


def _parts_of(conf: str) -> List[str]:
    return re.findall(r"(?:\[[^\]]*\]|[^,\[])+", re.sub(r"\s", "", conf))


def _keys_of(conf: str) -> List[str]:
    return [part.partition(":")[0] for part in _parts_of(conf)]


def spelled(settings: AllocatorSettings) -> str:
    """The text that gives `settings`, whatever was in force before it."""
    parts = [
        "backend:%s" % ("native" if settings.native else "cudaMallocAsync"),
        "expandable_segments:%s" % settings.expandable_segments,
        # the least there is, until those are set that may not be below the one in force
        "large_segment_size_mb:%d" % LEAST_SEGMENT_MIB,
        "max_non_split_rounding_mb:%d" % (settings.max_non_split_rounding // MIB),
    ]
    if settings.max_split_size is not None:
        parts.append("max_split_size_mb:%d" % (settings.max_split_size // MIB))
    parts.append("large_segment_size_mb:%d" % (settings.large_segment // MIB))
    if any(settings.roundup_power2_divisions):
        divisions = ",".join(
            "%d:%d" % (1 << at, count) for at, count in enumerate(settings.roundup_power2_divisions)
        )
        parts.append("roundup_power2_divisions:[%s]" % divisions)
    if settings.garbage_collection_threshold:
        parts.append("garbage_collection_threshold:%r" % settings.garbage_collection_threshold)
    if settings.memory_fraction is not None:
        parts.append("per_process_memory_fraction:%r" % settings.memory_fraction)
    return ",".join(parts)


def _setting(key: str, value: str, least: int) -> Dict[str, Any]:
    """The field that ``key:value`` sets; `least`: MiB below which no block may be kept whole."""
    if key in WITHOUT_EFFECT:
        return {}
    if key not in _FIELDS:
        raise ValueError("%r is not a setting of PyTorch's caching allocator" % key)
    field, read = _FIELDS[key]
    return {field: read(key, value, least)}


def _mebibytes(key: str, value: str, least: int) -> int:
    if not value.isdigit() or int(value) < least:
        raise ValueError("%s:%s must be a whole number of at least %d" % (key, value, least))
    return int(value) * MIB


def _share(key: str, value: str, least: int) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    ends = (0.0, 1.0) if key == "per_process_memory_fraction" else ()
    if not (0.0 < share < 1.0 or share in ends):
        raise ValueError("%s:%s must lie between 0 and 1" % (key, value))
    return share


def _division(value: str, zero_too: bool) -> int:
    number = int(value) if value.isdigit() else -1
    if number < 0 or number & (number - 1) or (number == 0 and not zero_too):
        raise ValueError("roundup_power2_divisions: %r must be a power of 2" % value)
    return number


def _divisions(key: str, value: str, least: int) -> Tuple[int, ...]:
    """One number for all sizes, or ``[256:1,512:2,>:8]``: sizes in MiB with the divisions from
    there on."""
    if not value.startswith("["):
        return (_division(value, zero_too=False),) * ROUNDING_INTERVALS
    divisions = [0] * ROUNDING_INTERVALS
    first, last = True, 0
    for part in filter(None, value.strip("[]").split(",")):
        bound, colon, count_text = part.partition(":")
        if not colon:
            raise ValueError(
                "roundup_power2_divisions: %r is not of the form size:divisions" % part
            )
        count = _division(count_text, zero_too=True)
        if bound == ">":
            divisions[last:] = [count] * (ROUNDING_INTERVALS - last)
            continue
        at = min(_division(bound, zero_too=False).bit_length() - 1, ROUNDING_INTERVALS - 1)
        if first:
            divisions[:at] = [count] * at
            first = False
        divisions[at] = count
        last = at
    return tuple(divisions)


def _one_of(*words: str) -> Callable[[str, str, int], bool]:
    """Whether the value is the first of `words`; it has to be one of them."""

    def read(key: str, value: str, least: int) -> bool:
        if value not in words:
            raise ValueError("%s:%s must be one of %s" % (key, value, ", ".join(words)))
        return value == words[0]

    return read


# By key: the field of `AllocatorSettings`, and what reads its value.
_FIELDS: Dict[str, Tuple[str, Callable[[str, str, int], Any]]] = {
    "max_split_size_mb": ("max_split_size", _mebibytes),
    "max_non_split_rounding_mb": ("max_non_split_rounding", _mebibytes),
    "large_segment_size_mb": (
        "large_segment",
        lambda key, value, least: _mebibytes(key, value, LEAST_SEGMENT_MIB),
    ),
    "roundup_power2_divisions": ("roundup_power2_divisions", _divisions),
    "garbage_collection_threshold": ("garbage_collection_threshold", _share),
    "per_process_memory_fraction": ("memory_fraction", _share),
    "expandable_segments": ("expandable_segments", _one_of("True", "False")),
    "backend": ("native", _one_of("native", "cudaMallocAsync", "hipMallocAsync")),
}
