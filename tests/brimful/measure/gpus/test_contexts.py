import pytest

from brimful.decide.memory.fit import context_of
from brimful.measure.gpus import CARDS, find_gpu, loaded_at_once
from brimful.measure.gpus.contexts import (
    _MOST_THREADS,
    _THREADS,
    BARE_DOUBT,
    BARE_SEEN,
    BARE_SEEN_DOUBT,
    KIB_A_THREAD,
    bare_mib,
)
from brimful.values import Source

MIB = 1 << 20
CAPABILITIES = {
    "T4": (7, 5),
    "RTX 4060 Ti": (8, 9),
    "RTX 3090": (8, 6),
    "RTX 6000 Ada": (8, 9),
    "RTX PRO 6000": (12, 0),
    "B200": (10, 0),
    "H200": (9, 0),
}
# What nobody's constant was made with: the whole context of trainings, MiB, and whether a
# convolution ran.
WHOLE_SEEN = {
    "t4": [(131, False), (141, False), (135, True)],
    "a100-80gb": [(940, False)],
    "h200": [(750, False), (766, True), (642, True)],
}


@pytest.mark.parametrize("name", BARE_SEEN)
def test_a_card_that_was_seen_has_its_own_context_and_the_line_for_others_is_within_its_doubt(name):
    processors, threads, seen, _ = BARE_SEEN[name]
    assert _THREADS.get(CAPABILITIES[name], _MOST_THREADS) == threads
    assert bare_mib(CAPABILITIES[name], processors) == (seen, BARE_SEEN_DOUBT)
    line, doubt = bare_mib(CAPABILITIES[name], processors + 1)
    assert doubt == BARE_DOUBT > BARE_SEEN_DOUBT
    assert abs((line - KIB_A_THREAD * threads / 1024) / seen - 1) < BARE_DOUBT


@pytest.mark.parametrize(
    ("key", "seen", "convolution"),
    [(key, *one) for key, rows in WHOLE_SEEN.items() for one in rows],
)
def test_the_interval_holds_what_whole_trainings_showed(key, seen, convolution):
    context = context_of(find_gpu(key), uses_cudnn=convolution)
    assert context.low <= seen * MIB <= context.high
    assert context.source is Source.ASSUMED


def test_convolutions_add_cudnn_to_every_card_and_its_doubt_to_the_interval():
    for gpu in CARDS:
        dense, convolution = context_of(gpu, uses_cudnn=False), context_of(gpu, uses_cudnn=True)
        assert convolution.value - dense.value == gpu.cudnn_bytes.value > 0
        assert convolution.low - dense.low == gpu.cudnn_bytes.low
        assert convolution.high - dense.high == gpu.cudnn_bytes.high
        assert "cuDNN" in convolution.note


def test_all_kernels_loaded_at_once_take_what_an_old_driver_showed_and_more_than_today():
    old = loaded_at_once(find_gpu("a100-40gb"))
    assert old.context_bytes.value == 1429 * MIB and old.context_bytes.source is Source.MEASURED
    assert context_of(old, uses_cudnn=True).value == 1707 * MIB
    for gpu in CARDS:
        assert loaded_at_once(gpu).context_bytes.value > gpu.context_bytes.value + 500 * MIB
