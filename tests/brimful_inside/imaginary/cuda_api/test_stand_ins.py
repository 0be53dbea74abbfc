"""flash-attn, which is not installed here: what its stand-in holds, by the formulas of its
source."""

import importlib
import importlib.metadata
import importlib.util
import inspect
import sys
from typing import Any

import pytest
import torch

from tests.brimful_inside.imaginary.conftest import peak_of

BATCH, LENGTH, SIZE, HALF = 2, 256, 64, 2


@pytest.fixture
def flash(gpu) -> Any:
    """``import flash_attn``, which is not installed."""
    return importlib.import_module("flash_attn")


def parts(heads=4, key_heads=4, dtype=torch.half, shape=(BATCH, LENGTH)):
    return [
        torch.randn(*shape, h, SIZE, device="cuda", dtype=dtype, requires_grad=True)
        for h in (heads, key_heads, key_heads)
    ]


def taken(out, leaves) -> int:
    """Bytes that the backward pass takes at its worst, beside the gradients of `leaves`."""
    grad = torch.randn_like(out)
    return peak_of(lambda: out.backward(grad)) - sum(leaf.nbytes for leaf in leaves)


def test_flash_attention_keeps_a_sum_for_each_row_and_sums_the_querys_gradient_in_float32(flash):
    leaves = parts()
    before = torch.cuda.memory_allocated()
    out = flash.flash_attn_func(*leaves, causal=True)
    rows = BATCH * 4 * LENGTH * 4
    state_of_random_numbers = 2 * 512
    kept = torch.cuda.memory_allocated() - before
    assert (out.shape, kept) == (leaves[0].shape, out.nbytes + rows + state_of_random_numbers)
    assert taken(out, leaves) == rows + BATCH * LENGTH * 4 * SIZE * 4


def test_groups_of_heads_take_the_gradients_of_every_head(flash):
    leaves = parts(heads=8, key_heads=2)
    expanded = 2 * BATCH * LENGTH * 8 * SIZE * HALF
    assert (
        taken(flash.flash_attn_func(*leaves), leaves)
        == BATCH * 8 * LENGTH * 4 * (1 + SIZE) + expanded
    )


def test_variable_lengths_take_128_rows_more_each(flash):
    leaves = parts(shape=(LENGTH,))
    starts = torch.tensor([0, 100, LENGTH], dtype=torch.int32, device="cuda")
    out = flash.flash_attn_varlen_func(*leaves, starts, starts, 156, 156)
    assert taken(out, leaves) == (LENGTH + 2 * 128) * 4 * 4 * (1 + SIZE)


def test_flash_attention_counts_half_the_pairs_where_it_is_causal(gpu, flash):
    def flops(**options) -> list[int]:
        mark = gpu.clock.mark()
        flash.flash_attn_func(*parts(), **options).sum().backward()
        return [row[2] for row in gpu.clock.since(mark) if "flash" in row[0]]

    pairs = BATCH * 4 * LENGTH * LENGTH * SIZE
    assert flops() == [4 * pairs, 10 * pairs] and flops(causal=True) == [2 * pairs, 5 * pairs]


def test_packed_heads_and_odd_head_sizes_run(gpu, flash):
    packed = torch.randn(
        BATCH, LENGTH, 3, 4, 60, device="cuda", dtype=torch.bfloat16, requires_grad=True
    )
    out = flash.flash_attn_qkvpacked_func(packed, 0.0, causal=True)
    out.sum().backward()
    assert out.shape == (BATCH, LENGTH, 4, 60) and packed.grad.shape == packed.shape
    assert gpu.approximations == {"flash_attn": 1}


def test_padding_is_kept_since_only_data_tells_it(gpu):
    padding: Any = importlib.import_module("flash_attn.bert_padding")
    hidden = torch.randn(BATCH, LENGTH, 8, device="cuda", requires_grad=True)
    tokens, indices, starts, longest, used = padding.unpad_input(
        hidden, torch.ones(BATCH, LENGTH, dtype=torch.bool, device="cuda")
    )
    assert (
        tokens.shape == (BATCH * LENGTH, 8)
        and starts.tolist() == [0, LENGTH, 2 * LENGTH]
        and longest == LENGTH
    )
    assert (
        used.shape == (BATCH,)
        and padding.pad_input(tokens, indices, BATCH, LENGTH).shape == hidden.shape
    )
    assert gpu.approximations["flash_attn.bert_padding"] == 1


@pytest.mark.parametrize(
    ("capability", "dtype", "words"),
    [
        (
            (7, 5),
            torch.half,
            "Ampere GPUs or newer, and the an imaginary card has compute capability 7.5",
        ),
        ((8, 0), torch.float32, "fp16 and bf16"),
    ],
)
def test_a_card_or_a_dtype_without_flash_attention_is_refused(enter, capability, dtype, words):
    enter(capability=capability)
    flash_attn = importlib.import_module("flash_attn")
    with pytest.raises(RuntimeError, match=words):
        flash_attn.flash_attn_func(*parts(dtype=dtype))


def test_transformers_questions_are_answered(gpu):
    import flash_attn

    assert (
        importlib.util.find_spec("flash_attn") is not None
        and "flash-attn" in importlib.metadata.packages_distributions()["flash_attn"]
    )
    assert (
        importlib.metadata.version("flash_attn")
        == importlib.metadata.version("flash-attn")
        == flash_attn.__version__
    )
    assert list(inspect.signature(flash_attn.flash_attn_func).parameters)[:6] == [
        "q",
        "k",
        "v",
        "dropout_p",
        "softmax_scale",
        "causal",
    ]
    with pytest.raises(importlib.metadata.PackageNotFoundError):
        importlib.metadata.version("flash-attn-3")


def test_a_name_that_the_stand_in_lacks_cannot_be_imported(gpu):
    with pytest.raises(ImportError, match="cannot import name 'flash_attn_unheard_of'"):
        exec("from flash_attn import flash_attn_unheard_of")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'flash_attn\.layers'"):
        importlib.import_module("flash_attn.layers.rotary")


def test_of_an_installed_library_the_rest_is_imported_from_there(gpu, tmp_path, monkeypatch):
    (tmp_path / "flash_attn").mkdir()
    for name, text in (
        ("__init__", "raise OSError('flash_attn_2_cuda.so: cannot open')\n"),
        ("rotary", "from flash_attn import flash_attn_func\nREAL = True\n"),
    ):
        (tmp_path / "flash_attn" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    rotary = importlib.import_module("flash_attn.rotary")
    del sys.modules["flash_attn.rotary"]
    assert (
        rotary.REAL
        and rotary.flash_attn_func.__self__ is sys.modules["flash_attn"].flash_attn_func.__self__
    )


def test_without_an_imaginary_card_there_are_no_stand_ins(gpu):
    importlib.import_module("flash_attn.bert_padding")
    gpu.leave()
    assert not [name for name in sys.modules if name.split(".")[0] == "flash_attn"]
    assert importlib.util.find_spec("flash_attn") is None


LLAMA = """
from tests.brimful_inside.imaginary.conftest import card
from brimful_inside import imaginary
import torch
gpu = imaginary.enter(card())
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(hidden_size=256, intermediate_size=512, vocab_size=1000)
small = LlamaConfig(num_hidden_layers=2, num_attention_heads=4, **sizes)
options = dict(attn_implementation="flash_attention_2", dtype=torch.bfloat16)
model = LlamaForCausalLM._from_config(small, **options).cuda()
tokens = torch.randint(1000, (4, 128), device="cuda")
model(input_ids=tokens, labels=tokens).loss.backward()
mask = torch.ones_like(tokens)
mask[:, 100:] = 0
model(input_ids=tokens, labels=tokens, attention_mask=mask).loss.backward()
print(gpu.approximations["flash_attn"])
"""


def test_transformers_runs_with_flash_attention_2_where_it_is_not_installed(printed):
    pytest.importorskip("transformers")
    assert printed(LLAMA)[-1:] == ["4"]
