import dataclasses
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.decide.audit.findings import findings
from brimful.measure.gpus import find_gpu
from brimful.values import Device, PhasePeak
from brimful_inside.simulator.roofline import Kernel
from brimful_inside.wire import Asked, BatchSeen, Draws, Precision, WorstBatch
from tests.brimful.decide.builders import (
    GIB,
    device_budget,
    loader,
    machine,
    optimizer,
    peak,
    report,
    sample,
)

ASKED = {"batch_size": 64, "lr": 1e-3}
EMPTY_CARD = peak(device_bytes=2 * GIB)


def codes(a_sample, requested=ASKED, budget=None, cores=8):
    return [advice.code for advice in findings(a_sample, requested, budget, machine(cores))]


def only(code, a_sample, requested=ASKED, budget=None, cores=8):
    """(problem, explanation, suggestion) of the one finding."""
    (found,) = findings(a_sample, requested, budget, machine(cores))
    assert found.code == code and found.problem and found.explanation and found.suggestion
    return found.problem, found.explanation, found.suggestion


def by_kernels(convolutions=0.0, **flops):
    """Codes of a training in float32 whose step has so much arithmetic of each rate class."""
    kernels = [Kernel("an operation", kind, count, 1) for kind, count in flops.items()]
    trial = computing(convolutions=convolutions)
    return [one.code for one in findings(trial, ASKED, None, machine(), kernels=kernels)]


def of(one_loader=None, batches_per_step=1, **changes):
    """A trial of one rank with this loader."""
    return sample(
        [report([one_loader or loader()], micro_batches_per_step=[batches_per_step] * 12)],
        **changes,
    )


def rates(*now, **others):
    """A trial whose optimizer has these learning rates."""
    return sample([report(optimizers=[optimizer(now, **others)])])


def drawing(one=None, **changes):
    """A trial whose loader draws so."""
    draws = Draws("Molecules", 2048, 2048, False, [], False, [])
    return of(dataclasses.replace(one or loader(), draws=dataclasses.replace(draws, **changes)))


def computing(**changes):
    return sample([report(precision=dataclasses.replace(FP32, **changes))])


def repeating(distinct, total, **changes):
    return loader(
        32,
        1024,
        batches=[BatchSeen(32, [[32]], f"{n % distinct}") for n in range(total)],
        **changes,
    )


TWO_EPOCHS = loader(
    32,
    224,
    batches=[BatchSeen(32, [[32]], f"{n % 7}") for n in range(14)],
    batches_seen=14,
    iterations=2,
)
FIXMATCH = [loader(64, 960), loader(448, 6000)]
EVALUATION = loader(600, 600, role="eval", batches_seen=1, batches=[], batch_s=0.1)
FP32 = Precision([8, 0], ["float32"], None, False, 0.0)
WORST = WorstBatch(100, 1024, True, "lengths vary", [1, 2])
RANKS = [report([loader(32)], rank=rank, world_size=2) for rank in range(2)]
HALF = dataclasses.replace(loader(32), draws=Draws("Molecules", 1056, 1024, False, [], False, []))
OF_32 = {"batch_size": 32}
SOUND = {
    "a sound script": (sample(), ASKED),
    "no report": (sample([], samples_per_s=None), ASKED),
    "a batch size over all ranks": (sample(RANKS, samples_per_step=64), ASKED),
    "a batch size over all micro-batches": (
        of(loader(16), 4, samples_per_step=64),
        ASKED | {"accumulation": 4},
    ),
    "one step skipped": (sample([report(micro_batches_per_step=[1, 1, 1, 2, *[1] * 8])]), ASKED),
    "two loaders side by side": (
        sample(
            [report([loader(), loader()], micro_batches_per_step=[2] * 12)], samples_per_step=128
        ),
        ASKED,
    ),
    "an evaluation loader": (
        sample([report([loader(), loader(2, 100, role="eval", batches_seen=50)])]),
        ASKED,
    ),
    "a batch as large as the data set": (
        of(loader(2000, 2000), samples_per_step=2000),
        {"batch_size": 2000},
    ),
    "a second epoch": (of(TWO_EPOCHS, samples_per_step=32), OF_32),
    "batches that brimful made": (sample([report([repeating(1, 14)], worst_batch=WORST)]), OF_32),
    "one batch twice by chance": (of(repeating(13, 14)), OF_32),
    "batches without checksums": (
        of(loader(32, 1024, batches=[BatchSeen(32, [[32]], None)] * 12)),
        OF_32,
    ),
    "loading time that is not known": (sample(loading_share=None, step_s=()), ASKED),
    "few samples dropped": (of(loader(64, 64 * 200 + 10, drop_last=True)), ASKED),
    "the accumulation of the flag": (
        of(None, 4, samples_per_step=256),
        ASKED | {"accumulation": 4},
    ),
    "a warm-up": (rates(1e-4, first_learning_rates=[1e-6], initial_learning_rates=[1e-3]), ASKED),
    "one cycle": (rates(4e-5, initial_learning_rates=[4e-5], max_learning_rates=[1e-3]), ASKED),
    "a rate set by hand at each step": (rates(5e-4, first_learning_rates=[1e-4]), ASKED),
    "a slower backbone": (rates(1e-4, 1e-3), ASKED),
    "an optimizer without a rate": (rates(), ASKED),
    "a rate that no flag sets": (rates(0.7), {"batch_size": 64}),
    "host memory": (
        sample(peak=EMPTY_CARD),
        ASKED,
        dataclasses.replace(device_budget(), memory="host"),
    ),
    "as many workers as cores": (of(loader(workers=8)), ASKED),
    "as many workers as batches": (
        of(loader(1024, 8 * 1024, workers=8), samples_per_step=1024),
        {"batch_size": 1024},
    ),
    "an evaluation set of one batch": (sample([report([loader(), EVALUATION])]), ASKED),
    "an evaluation that takes a quarter": (
        sample([report([loader(), dataclasses.replace(EVALUATION, batch_s=1.0)])]),
        ASKED,
    ),
    "the batch size asked for on each card": (
        sample([report([loader(192)], split_over=3)], samples_per_step=192),
        ASKED,
    ),
    "one card in nn.DataParallel": (sample([report(split_over=1)]), ASKED),
    "each sample once an epoch": (drawing(), ASKED),
    "a part of the samples, each once": (drawing(drawn=1600, distinct=1600), ASKED),
    "each sample twice an epoch": (drawing(drawn=4096, distinct=2048), ASKED),
    "a few samples twice, to fill the last rank": (drawing(drawn=1024, distinct=1020), ASKED),
    "many samples twice, to fill the last of two ranks": (
        sample([dataclasses.replace(r, loaders=[HALF]) for r in RANKS], samples_per_step=64),
        ASKED,
    ),
    "an epoch that was not counted": (drawing(drawn=None, distinct=None), ASKED),
    "autocast": (computing(autocast="bfloat16"), ASKED),
    "weights of two formats": (computing(weights=["bfloat16", "float32"]), ASKED),
    "TF32": (computing(tf32=True), ASKED),
    "convolutions, which use TF32 by default": (computing(convolutions=0.9), ASKED),
    "a card without tensor cores": (computing(capability=[6, 1]), ASKED),
    "the loss read once a step": (sample([report(device_reads={"train.py:9": 12})]), ASKED),
    "the loss read every ten steps": (
        sample([report(device_reads={"train.py:9": 2, "train.py:10": 2})]),
        ASKED,
    ),
    "no budget": (sample(peak=EMPTY_CARD), ASKED),
    "a card that is half full": (sample(peak=peak(device_bytes=11 * GIB)), ASKED, device_budget()),
    "an empty card and the whole data set": (
        of(loader(64, 64), peak=EMPTY_CARD),
        ASKED,
        device_budget(),
    ),
}


@pytest.mark.parametrize("name", SOUND)
def test_what_is_sound_gives_no_finding(name):
    assert codes(*SOUND[name]) == []


@given(
    st.integers(1, 4096),
    st.integers(1, 200),
    st.integers(0, 8),
    st.floats(0, 0.2),
    st.booleans(),
    st.floats(1e-6, 1),
)
def test_no_sound_script_of_any_size_gives_a_finding(
    size, batches, workers, share, drop_last, rate
):
    one = loader(size, size * batches, workers=min(workers, batches), drop_last=drop_last)
    a_sample = sample(
        [report([one], [optimizer((rate,))])], samples_per_step=size, loading_share=share
    )
    assert codes(a_sample, {"batch_size": size, "lr": rate, "num_workers": workers}) == []


IDLE = loader(64, 192, workers=8)
LARGE = dataclasses.replace(EVALUATION, batch_size=4096, batch_s=None)
THREE_WORKERS = [report([loader(32, workers=3)], rank=rank, world_size=2) for rank in range(2)]
ON_AN_A100 = dataclasses.replace(
    computing().trial, device=Device("imaginary", "a100", find_gpu("a100-40gb"))
)
# What the problem, the explanation and the suggestion of the one finding say.
FOUND = {
    "a loader that gives two of sixty-four": (
        partial(only, "hidden-cap", of(loader(2, 512), samples_per_step=2)),
        (["64", "2"], [], []),
    ),
    "a batch size split into micro-batches, which is no cap": (
        partial(only, "hidden-accumulation", of(loader(16), 4, samples_per_step=64)),
        ([], ["A step sees the 64 samples asked for"], []),
    ),
    "a batch larger than the data set, which is no cap": (
        partial(
            only,
            "batch-exceeds-dataset",
            of(loader(4096, 2000), samples_per_step=2000),
            {"batch_size": 4096},
        ),
        (["4,096", "2,000"], [], []),
    ),
    "a batch larger than the data set, asked for by the script itself": (
        partial(
            only,
            "batch-exceeds-dataset",
            sample(
                [report([dataclasses.replace(loader(991, 991), batch_size=None)], batch_asked=8192)]
            ),
            {},
        ),
        (["8,192", "991"], [], []),
    ),
    "workers that share one random state": (
        partial(
            only, "repeated-batches", of(repeating(7, 14, workers=2), samples_per_step=32), OF_32
        ),
        (["7 of 14"], ["2 loader workers"], []),
    ),
    # 0.06 s to make, 0.04 s to compute
    "waiting for data that two workers cure": (
        partial(only, "loader-bound", of(loader(workers=0), loading_share=0.6)),
        (["60"], [], ["Set num_workers=2."]),
    ),
    "waiting for data with too few cores": (
        partial(only, "loader-bound", of(loader(workers=0), loading_share=0.9), cores=4),
        (["90"], [], ["9 workers", "4 cores"]),
    ),
    "waiting for data nearly all the time": (
        partial(only, "loader-bound", of(loader(workers=0), loading_share=0.995)),
        (["100 %"], [], ["nearly all"]),
    ),
    "a tenth of the data dropped": (
        partial(
            only,
            "remainder",
            of(loader(300, 1000, drop_last=True), samples_per_step=300),
            {"batch_size": 300},
        ),
        (["100 of 1,000"], ["Where the loader shuffles, they are others in each epoch."], ["250"]),
    ),
    "a tenth of the data never trained on": (
        partial(
            only,
            "remainder",
            of(
                loader(300, 1000, drop_last=True, sampler="SequentialSampler"),
                samples_per_step=300,
            ),
            {"batch_size": 300},
        ),
        ([], ["The loader does not shuffle: they are never trained on."], []),
    ),
    "a short last batch, which is a step": (
        partial(
            only, "remainder", of(loader(300, 1000), samples_per_step=300), {"batch_size": 300}
        ),
        ([], ["Its gradient is noisier, and its step has as much weight as the other 3."], []),
    ),
    "a short last batch, whose step has other batches": (
        partial(
            only,
            "remainder",
            of(loader(300, 1000), 2, samples_per_step=600),
            {"batch_size": 300, "accumulation": 2},
        ),
        ([], ["noisier, and in its step it may have as much weight as a whole batch."], []),
    ),
    "a step that reads a larger batch of another loader": (
        partial(only, "several-loaders", sample([report(FIXMATCH)], samples_per_step=512)),
        (["512 samples", "asked for is 64", "2 loaders give batches of 64 and 448"], ["512"], []),
    ),
    "a step that accumulates the largest batches of a batch sampler": (
        partial(
            only,
            "hidden-accumulation",
            sample(
                [
                    report(
                        micro_batches_per_step=[4] * 12,
                        worst_batch=dataclasses.replace(WORST, samples=64, mean_samples=9.0),
                    )
                ],
                samples_per_step=256,
            ),
        ),
        (["step (256 samples) where each is as large as the largest"], [], []),
    ),
    "a peak that tensors take": (
        partial(
            only,
            "does-not-fit",
            sample(peak=PhasePeak(24 * GIB, 25 * GIB, 26 * GIB, None)),
            budget=device_budget(),
        ),
        (["26.0 GiB, 6.00 GiB more than the 20.0 GiB"], ["runs out of memory"], ["predict"]),
    ),
    "a peak of which PyTorch gives enough back": (
        partial(
            only,
            "does-not-fit",
            sample(peak=PhasePeak(12 * GIB, 25 * GIB, 26 * GIB, None)),
            budget=device_budget(),
        ),
        (["26.0 GiB, of which tensors take 12.0 GiB; 20.0 GiB may"], ["may still run"], []),
    ),
    "a variable that the release does not read": (
        partial(
            only,
            "ignored-setting",
            sample([report(torch_version="2.9.1", ignored_settings=["PYTORCH_ALLOC_CONF"])]),
        ),
        (["torch 2.9.1 ignores PYTORCH_ALLOC_CONF."], ["not in force"], ["every release reads"]),
    ),
    "a variable behind the older one": (
        partial(
            only,
            "ignored-setting",
            sample([report(torch_version="2.13.0", ignored_settings=["PYTORCH_ALLOC_CONF"])]),
        ),
        (["PYTORCH_CUDA_ALLOC_CONF is set as well"], ["older name first"], ["Unset"]),
    ),
    "a key of a later release": (
        partial(
            only,
            "ignored-setting",
            sample([report(torch_version="2.9.1", ignored_settings=["large_segment_size_mb"])]),
        ),
        (["torch 2.9.1 does not know"], ["torch 2.11 or newer; "], ["Leave it out"]),
    ),
    "a card that is mostly empty": (
        partial(only, "memory-idle", sample(peak=EMPTY_CARD), budget=device_budget()),
        (["10 %"], ["not a goal"], []),
    ),
    "more loader processes than cores": (
        partial(only, "too-many-workers", of(loader(workers=12)), cores=2),
        (["12 loader workers share 2 cores of this machine."], [], ["num_workers=2,"]),
    ),
    "more loader processes than cores over all ranks": (
        partial(only, "too-many-workers", sample(THREE_WORKERS, samples_per_step=64), cores=4),
        (["6 loader workers (3 in each of 2 ranks)"], [], ["num_workers=2 in each rank"]),
    ),
    "workers of the training that get no batch": (
        partial(only, "idle-workers", sample([report([IDLE])])),
        (
            ["An epoch of the training loader has 3 batches, and 8 workers."],
            ["5 of them"],
            ["num_workers=3"],
        ),
    ),
    "workers of the evaluation that get no batch": (
        partial(
            only,
            "idle-workers",
            sample([report([loader(), dataclasses.replace(IDLE, role="eval")])]),
        ),
        (
            ["An epoch of the evaluation loader has 3 batches, and 8 workers."],
            ["5 of them"],
            ["num_workers=3"],
        ),
    ),
    "an evaluation batch larger than its set": (
        partial(only, "evaluation-batch-exceeds-dataset", sample([report([loader(), LARGE])])),
        (["4,096", "600"], ["is the same batch of 600"], []),
    ),
    "an evaluation batch larger than its set, and dropped": (
        partial(
            only,
            "evaluation-batch-exceeds-dataset",
            sample([report([loader(), dataclasses.replace(LARGE, drop_last=True)])]),
        ),
        (["4,096", "600"], ["nothing is evaluated"], []),
    ),
    # 9.6 s after 32 steps of 0.1 s
    "an evaluation that takes most of an epoch": (
        partial(
            only,
            "long-evaluation",
            sample([report([loader(), dataclasses.replace(EVALUATION, length=32, batch_s=0.3)])]),
        ),
        (["75 %", "32 batches"], ["assuming one evaluation an epoch"], []),
    ),
    "a batch that nn.DataParallel splits": (
        partial(
            only,
            "split-batch",
            sample([report([loader(512, 5120)], split_over=3)], samples_per_step=512),
            {"batch_size": 512},
        ),
        (["512", "3 cards", "171 a card"], [], ["1,536"]),
    ),
    "samples that an epoch never draws": (
        partial(only, "undrawn-samples", drawing(distinct=1295)),
        (["1,295 of 2,048", "63 %"], ["RandomSampler"], []),
    ),
    "a data set that picks at random": (
        partial(only, "undrawn-samples", drawing(picks_at_random=True)),
        (["Molecules ignores the index", "63 %"], [], []),
    ),
    "float32 on a card with tensor cores": (
        partial(only, "full-precision", dataclasses.replace(computing(), trial=ON_AN_A100)),
        ([], ["16 times as fast", "datasheet"], ["bfloat16"]),
    ),
    "float32 on a card whose tensor cores have no bfloat16": (
        partial(only, "full-precision", computing(capability=[7, 5])),
        ([], [], ["float16", "GradScaler"]),
    ),
    "reads of the card in each step": (
        partial(
            only,
            "frequent-reads",
            sample([report(device_reads={"train.py:9": 24, "train.py:12": 12, "train.py:30": 1})]),
        ),
        (
            ["Each step reads 3 values from the card: train.py:9 (2 times), train.py:12."],
            [],
            [],
        ),
    ),
}


def test_what_does_not_fit_stands_first():
    trial = of(
        loader(2, 512), samples_per_step=2, peak=PhasePeak(24 * GIB, 25 * GIB, 26 * GIB, None)
    )
    assert codes(trial, budget=device_budget()) == ["does-not-fit", "hidden-cap"]


def test_float32_is_judged_by_the_arithmetic_of_a_step_where_it_was_counted():
    assert by_kernels(fp32=2, tf32=8) == []
    assert by_kernels(fp32=8, tf32=2, convolutions=0.9) == ["full-precision"]


@pytest.mark.parametrize("name", FOUND)
def test_what_is_found_says_what_was_seen_what_it_means_and_what_to_do(name):
    find, expected = FOUND[name]
    for text, words in zip(find(), expected, strict=True):
        assert [word for word in words if word not in text] == []


def test_four_batches_a_step_are_found_with_the_flag_that_sets_another_number_or_none():
    four = of(None, 4, samples_per_step=256)
    problem, _, suggestion = only("hidden-accumulation", four)
    assert "4 batches" in problem and "256 samples" in problem
    assert "the command asks for no accumulation" in problem and suggestion.startswith(
        "If it is meant"
    )
    problem, _, suggestion = only("hidden-accumulation", four, ASKED | {"accumulation": 2})
    assert "you asked for 2" in problem and "If it is meant" not in suggestion


@pytest.mark.parametrize(
    ("size", "length", "found"),
    [
        (300, 1000, 1),
        (64, 1000, 0),
        (64, 64 * 60 + 5, 0),
        (64, 64 * 60 + 1, 1),
        (64, 65, 1),
        (64, 2048, 0),
    ],
)
def test_a_short_last_batch_is_found_where_it_matters(size, length, found):
    assert (
        codes(of(loader(size, length), samples_per_step=size), {"batch_size": size})
        == ["remainder"] * found
    )


def test_a_learning_rate_that_was_scaled_is_found_under_a_schedule_too():
    problem, _, _ = only("learning-rate", rates(0.025), {"batch_size": 64, "lr": 0.1})
    assert "0.1" in problem and "0.025" in problem and "0.25 times" in problem
    assert codes(rates(2e-4, first_learning_rates=[1e-6], initial_learning_rates=[2.5e-4])) == [
        "learning-rate"
    ]


@pytest.mark.parametrize(
    "rate", [1e-3, 0.01]
)  # in its group, or overwritten by what it computed itself
def test_a_learning_rate_that_relative_steps_ignore_is_found_whatever_stands_in_the_group(rate):
    problem, _, suggestion = only(
        "ignored-learning-rate", rates(rate, name="Adafactor", relative_steps=True)
    )
    assert "0.001" in problem and "Adafactor" in problem and "relative_step=False" in suggestion
    assert codes(rates(relative_steps=True), {"batch_size": 64}) == [], "nobody asked for one"


@pytest.mark.parametrize("seeds_workers", [False, True])
@pytest.mark.parametrize(
    ("kind", "anew"),
    [
        ("random.Random", "get_worker_info().dataset.rng.seed(torch.initial_seed())"),
        ("torch.Generator", "dataset.rng.manual_seed("),
        ("numpy.random.RandomState", "dataset.rng.seed(torch.initial_seed() % 2**32)"),
        ("numpy.random.Generator", "dataset.rng = numpy.random.default_rng("),
    ],
)
def test_repeated_batches_name_the_random_state_of_the_data_set_and_what_seeds_it_apart(
    kind, anew, seeds_workers
):
    one = repeating(7, 14, workers=2)
    trial = drawing(one, random_states=[["dataset.rng", kind]], seeds_workers=seeds_workers)
    trial = dataclasses.replace(trial, samples_per_step=32)
    _, explanation, suggestion = only("repeated-batches", trial, OF_32)
    assert f"dataset.rng, a {kind}" in explanation and anew in suggestion
    assert ("worker_init_fn does not seed it apart" in explanation) == seeds_workers


def test_batches_of_the_loaders_own_are_compared_where_brimful_made_those_of_the_trial():
    made = dataclasses.replace(
        repeating(14, 14, workers=2),
        draws=Draws("D", None, None, False, [], False, ["1", "1", "2", "2"]),
    )
    found = findings(
        sample([report([made], worst_batch=WORST)], samples_per_step=32), OF_32, None, machine()
    )
    assert [one.code for one in found] == ["repeated-batches"] and "2 of 4" in found[0].problem


def asking(setting, requested, effective, at="sft.py:10", text="min(size, 2)"):
    return Asked(setting, "size", requested, "config.py:7", "replaced", effective, at, text)


def of_script(a_sample, *asked, cores=8):
    requested = {one.setting: one.requested for one in asked}
    return {
        one.code: one.problem for one in findings(a_sample, requested, None, machine(cores), asked)
    }


TWO, SIXTEEN = of(loader(2, 512), samples_per_step=2), of(loader(16, 4096), samples_per_step=16)
ACCUMULATED = of(loader(2, 512), 16, samples_per_step=32)
STATED = asking("lr", 1e-3, 1e-3, at="", text="")


@pytest.mark.parametrize(
    ("a_sample", "asked", "found"),
    [
        (
            TWO,
            asking("batch_size", 64, 2),
            {"hidden-cap": "sft.py:10 caps the batch size of 64 (config.py:7) at 2."},
        ),
        (
            SIXTEEN,
            asking("batch_size", 4, 16),
            {"hidden-cap": "sft.py:10 raises the batch size of 4 (config.py:7) to 16."},
        ),
        (
            ACCUMULATED,
            asking("accumulation", 4, 16),
            {"hidden-accumulation": "sft.py:10 raises the accumulation of 4 (config.py:7) to 16."},
        ),
        (
            rates(5e-4, made_with=5e-4),
            asking("lr", 1e-4, 5e-4, text=""),
            {
                "learning-rate": "sft.py:10 takes a learning rate of 0.0005, and nothing reads the "
                "0.0001 of config.py:7."
            },
        ),
        (of(loader(40, 40), samples_per_step=40), asking("batch_size", 64, 40), {}),
        (rates(1e-5, made_with=1e-3), STATED, {}),  # by hand: a warm-up
    ],
)
def test_what_a_line_replaces_is_named_with_both_places_and_a_limit_of_the_data_is_none(
    a_sample, asked, found
):
    assert of_script(a_sample, asked) == found


@pytest.mark.parametrize(
    ("a_sample", "asked", "cores", "codes"),
    [
        (of(loader(workers=2)), asking("num_workers", 16, 2), 2, []),
        (of(loader(workers=0)), asking("num_workers", 4, 0), 8, ["replaced-workers"]),
        (rates(5e-3, made_with=1e-3), STATED, 8, ["learning-rate"]),  # raised: no warm-up
    ],
)
def test_workers_are_limited_by_the_cores_and_replaced_by_none(a_sample, asked, cores, codes):
    assert list(of_script(a_sample, asked, cores=cores)) == codes


def test_a_cap_is_named_though_the_accumulation_makes_up_for_it():
    made_up = of(loader(2, 512), 32, samples_per_step=64)
    asked = asking("batch_size", 64, 2), asking("accumulation", 32, 32, at="", text="")
    assert list(of_script(made_up, *asked)) == ["hidden-cap"]
