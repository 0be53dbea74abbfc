"""The cards. Rates are dense, without sparsity; tensor-core rates accumulate in fp32, as PyTorch
does by default.

Usable memory is what ``torch.cuda.mem_get_info()[1]`` shows, which is less than the nominal
capacity by what the driver and ECC keep. It differs by some 0.1 to 1 % between drivers; where
several values were seen, the middle one stands here.
"""

from dataclasses import replace

from brimful.measure.gpus.contexts import context, cudnn
from brimful.units import GIB, MIB
from brimful.values import Estimate, Gpu, Source
from brimful_inside.simulator.roofline import DEFAULT

_VOLTA = "https://images.nvidia.com/content/technologies/volta/pdf/volta-v100-datasheet-update-us-1165301-r5.pdf"
_A100 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-nvidia-us-2188504-web.pdf"
_GA102 = "https://images.nvidia.com/aem-dam/en-zz/Solutions/geforce/ampere/pdf/NVIDIA-ampere-GA102-GPU-Architecture-Whitepaper-V1.pdf"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/Data-Center/l4/nvidia-ada-gpu-architecture-whitepaper-v2.1.pdf"
_BLACKWELL = "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
_MODAL = "https://github.com/modal-labs/modal-client/pull/2797"


def _seen(
    total_bytes: float, thread: str, low: float | None = None, high: float | None = None
) -> Estimate:
    """Usable bytes from an error message or a device query in a public thread; `low`, `high`: of
    other cards or drivers.
    """
    return replace(
        _by_rule(total_bytes, f"https://github.com/{thread}", low, high), source=Source.MEASURED
    )


def _by_rule(
    total_bytes: float, rule: str, low: float | None = None, high: float | None = None
) -> Estimate:
    """Usable bytes of a card for which we have no report, with the rule that gave them."""
    ends = [None if end is None else round(end) for end in (low, high)]
    return Estimate(round(total_bytes), Source.ASSUMED, ends[0], ends[1], rule)


def _teraflops(value: float | None, sheet: str) -> Estimate | None:
    """A peak rate, dense, in operations per second; `value` in TFLOPS, None where the card has no
    such unit.
    """
    return None if value is None else Estimate(value * 1e12, Source.DATASHEET, note=sheet)


def _sticker(gib: float) -> Estimate:
    """No report at hand. The cards below that have one give 97.6 to 99 % of their sticker (ECC off
    or side-band).
    """
    return _by_rule(
        0.97 * gib * GIB,
        f"97 % of {gib:g} GiB: reported cards give 97.6 to 99 %",
        0.96 * gib * GIB,
        0.99 * gib * GIB,
    )


def _from_smi(mib: int, where: str) -> Estimate:
    """Only what nvidia-smi shows is known. CUDA says 97.1 (T4) to 99.3 % (H100) of that; an L40S
    98.7 %.
    """
    return _by_rule(
        0.98 * mib * MIB,
        f"98 % of the {mib} MiB that nvidia-smi shows ({where})",
        0.971 * mib * MIB,
        0.99 * mib * MIB,
    )


def _card(
    key: str,
    name: str,
    total: Estimate,
    capability: tuple[int, int],
    multiprocessors: int,
    gb_per_s: float,
    fp32: float,
    tf32: float | None,
    fp16: float | None,
    bf16: float | None,
    sheet: str,
    nvlink: float | None = None,
    sustained: Estimate | None = None,
) -> Gpu:
    """`nvlink`: GB/s of all NVLinks of a card each way, half of what datasheets give for both; else
    it is PCIe (a bridge between two is not assumed). `sustained`: None where the power limit lets
    the card hold the clock of its datasheet's peaks.
    """
    link = f"NVLink; {sheet}"
    if nvlink is None:
        generation, nvlink = _PCIE.get(capability[0], (5, 63.0))
        link = f"PCIe {generation}.0 x16; {sheet}"
    return Gpu(
        key=key,
        name=name,
        total_bytes=total,
        context_bytes=context(capability, multiprocessors),
        capability=capability,
        multiprocessors=multiprocessors,
        bandwidth_bytes_per_s=Estimate(gb_per_s * 1e9, Source.DATASHEET, note=sheet),
        fp32_flops=Estimate(fp32 * 1e12, Source.DATASHEET, note=sheet),
        tf32_flops=_teraflops(tf32, sheet),
        fp16_flops=_teraflops(fp16, sheet),
        bf16_flops=_teraflops(bf16, sheet),
        sustained_clock=sustained,
        cudnn_bytes=cudnn(),
        peer_bytes_per_s=Estimate(nvlink * 1e9, Source.DATASHEET, note=link),
    )


def _sustained(teraflops: float, fp16: float, where: str) -> Estimate:
    """The share of the clock that the power limit leaves, by what continuous fp16 products reach of
    a peak that is held. Of a T4 (70 W) NVIDIA names the power limit as the reason; its fp32
    products (4.2 to 4.4 of 8.1 TFLOPS, github.com/zzc0721/torch-performance-test-data) are slowed
    alike, an L4's (11 of 30) more.
    """
    note = (
        f"{teraflops:g} TFLOPS in long fp16 products, {DEFAULT.tensor_cores * fp16:.1f} at the "
        f"full clock; {where}"
    )
    return Estimate(teraflops / (DEFAULT.tensor_cores * fp16), Source.MEASURED, note=note)


# by compute capability: generation, GB/s of 16 lanes each way (PCI-SIG); else 5.0
_PCIE = {7: (3, 15.75), 8: (4, 31.5)}


# key, name, usable memory, capability, multiprocessors, GB/s, TFLOPS in fp32, tf32, fp16, bf16,
# datasheet
CARDS: tuple[Gpu, ...] = (
    _card(
        "v100-16gb",
        "Tesla V100-SXM2-16GB",
        _seen(15.77 * GIB, "nomic-ai/gpt4all/issues/544", 15.75 * GIB, 15.78 * GIB),
        (7, 0),
        80,
        900,
        15.7,
        None,
        125,
        None,
        _VOLTA,
        nvlink=150,
    ),
    _card(
        "v100-32gb",
        "Tesla V100-SXM2-32GB",
        _seen(31.74 * GIB, "haotian-liu/LLaVA/issues/812"),
        (7, 0),
        80,
        900,
        15.7,
        None,
        125,
        None,
        _VOLTA,
        nvlink=150,
    ),
    _card(
        "t4",
        "Tesla T4",
        _seen(14.75 * GIB, "hpcaitech/Open-Sora/issues/697", 14.56 * GIB, 14.76 * GIB),
        (7, 5),
        40,
        320,
        8.1,
        None,
        65,
        None,
        "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/tesla-t4/t4-tensor-core-datasheet-951643.pdf",
        sustained=_sustained(
            24.0, 65, "https://forums.developer.nvidia.com/t/about-gpu-peak-performance/264462"
        ),
    ),
    _card(
        "rtx2080ti",
        "NVIDIA GeForce RTX 2080 Ti",
        _sticker(11),
        (7, 5),
        68,
        616,
        13.45,
        None,
        53.8,
        None,
        (
            "https://images.nvidia.com/aem-dam/en-zz/Solutions/design-visualization/technologies/turing-architecture/"
            "NVIDIA-Turing-Architecture-Whitepaper.pdf"
        ),
    ),
    _card(
        "a100-40gb",
        "NVIDIA A100-SXM4-40GB",
        _seen(
            42_298_834_944, "bottlerocket-os/bottlerocket/pull/3873", 42_285_268_992, 39.59 * GIB
        ),
        (8, 0),
        108,
        1555,
        19.5,
        156,
        312,
        312,
        _A100,
        nvlink=300,
    ),
    _card(
        "a100-80gb",
        "NVIDIA A100-SXM4-80GB",
        _seen(79.15 * GIB, "vllm-project/vllm/issues/4408", 79.14 * GIB, 79.25 * GIB),
        (8, 0),
        108,
        2039,
        19.5,
        156,
        312,
        312,
        _A100,
        nvlink=300,
    ),
    _card(
        "a100-40gb-pcie",
        "NVIDIA A100-PCIE-40GB",
        _by_rule(
            42_298_834_944,
            "the same memory as an A100-SXM4-40GB, and ECC beside it",
            42_285_268_992,
            39.59 * GIB,
        ),
        (8, 0),
        108,
        1555,
        19.5,
        156,
        312,
        312,
        _A100,
        # 250 W where an SXM board has 400 W: the mean of products of 8192 and of 10240
        sustained=_sustained(
            201.6, 312, "https://github.com/zzc0721/torch-performance-test-data/issues/108"
        ),
    ),
    _card(
        "a100-80gb-pcie",
        "NVIDIA A100 80GB PCIe",
        _seen(81_049 * MIB, "ekondis/mixbench/issues/47"),
        (8, 0),
        108,
        1935,
        19.5,
        156,
        312,
        312,
        _A100,
        # nobody has published it
        sustained=Estimate(
            0.95,
            Source.ASSUMED,
            note="assumed: 300 W, between the 250 W of an A100-PCIE-40GB and 400 W",
        ),
    ),
    _card(
        "a30",
        "NVIDIA A30",
        _seen(23.53 * GIB, "google/RB-Modulation/issues/5"),
        (8, 0),
        56,
        933,
        10.3,
        82,
        165,
        165,
        "https://www.nvidia.com/content/dam/en-zz/Solutions/data-center/products/a30-gpu/pdf/a30-datasheet.pdf",
    ),
    _card(
        "a10",
        "NVIDIA A10",
        _from_smi(23_028, _MODAL),
        (8, 6),
        72,
        600,
        31.2,
        62.5,
        125,
        125,
        "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a10/pdf/a10-datasheet.pdf",
    ),
    _card(
        "a10g",
        "NVIDIA A10G",
        _seen(
            22.0 * GIB, "batteries-included/batteries-included/pull/1663", 21.95 * GIB, 22.05 * GIB
        ),
        (8, 6),
        80,
        600,
        35,
        35,
        70,
        70,
        (
            "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"
        ),
    ),
    _card(
        "a40",
        "NVIDIA A40",
        _from_smi(46_068, "the same 48 GB with ECC as an L40S"),
        (8, 6),
        84,
        696,
        37.4,
        74.8,
        149.7,
        149.7,
        _GA102,
    ),
    _card(
        "a6000",
        "NVIDIA RTX A6000",
        _seen(47.53 * GIB, "black-forest-labs/flux2/issues/23"),
        (8, 6),
        84,
        768,
        38.7,
        77.4,
        154.8,
        154.8,
        _GA102,
    ),
    _card(
        "a5000",
        "NVIDIA RTX A5000",
        _seen(23.68 * GIB, "zai-org/GLM-4/issues/730"),
        (8, 6),
        64,
        768,
        27.8,
        55.6,
        111.1,
        111.1,
        "https://resources.nvidia.com/en-us-design-viz-stories-ep/nvidia-rtx-a5000-datasheet",
    ),
    _card(
        "a4000",
        "NVIDIA RTX A4000",
        _seen(15.61 * GIB, "DengKaiCQ/VGGT-Long/issues/6"),
        (8, 6),
        48,
        448,
        19.2,
        38.3,
        76.7,
        76.7,
        "https://resources.nvidia.com/en-us-design-viz-stories-ep/rtx-a4000-datasheet",
    ),
    _card(
        "rtx3060-12gb",
        "NVIDIA GeForce RTX 3060",
        _sticker(12),
        (8, 6),
        28,
        360,
        12.7,
        12.7,
        25.5,
        25.5,
        _GA102,
    ),
    _card(
        "rtx3070",
        "NVIDIA GeForce RTX 3070",
        _seen(7.78 * GIB, "akshitac8/OW-DETR/issues/46"),
        (8, 6),
        46,
        448,
        20.3,
        20.3,
        40.6,
        40.6,
        _GA102,
    ),
    _card(
        "rtx3080-10gb",
        "NVIDIA GeForce RTX 3080",
        _seen(9.78 * GIB, "zai-org/CogVideo/issues/34"),
        (8, 6),
        68,
        760,
        29.8,
        29.8,
        59.5,
        59.5,
        _GA102,
    ),
    # Never sold by NVIDIA under this name: 3080 boards refitted with 20 GB. The chip is the 10 GB
    # card's.
    _card(
        "rtx3080-20gb",
        "NVIDIA GeForce RTX 3080 20GB",
        _by_rule(
            0.978 * 20 * GIB,
            "the share of the sticker that the 10 GB card gives, 97.8 %",
            0.97 * 20 * GIB,
            0.99 * 20 * GIB,
        ),
        (8, 6),
        68,
        760,
        29.8,
        29.8,
        59.5,
        59.5,
        _GA102,
    ),
    _card(
        "rtx3090",
        "NVIDIA GeForce RTX 3090",
        _seen(23.68 * GIB, "3DTopia/OpenLRM/issues/42", 23.55 * GIB, 23.70 * GIB),
        (8, 6),
        82,
        936,
        35.6,
        35.6,
        71,
        71,
        _GA102,
    ),
    _card(
        "l4",
        "NVIDIA L4",
        _from_smi(23_034, _MODAL),
        (8, 9),
        58,
        300,
        30.3,
        60.5,
        121,
        121,
        "https://www.nvidia.com/en-us/data-center/l4/",
        sustained=_sustained(
            53.8, 121, "https://github.com/zzc0721/torch-performance-test-data/issues/120"
        ),
    ),
    _card(
        "l40",
        "NVIDIA L40",
        _seen(44.40 * GIB, "QwenLM/Qwen3-VL/issues/2097"),
        (8, 9),
        142,
        864,
        90.5,
        90.5,
        181,
        181,
        "https://www.nvidia.com/en-us/data-center/l40/",
    ),
    _card(
        "l40s",
        "NVIDIA L40S",
        _seen(44.42 * GIB, "stepfun-ai/Step-Video-T2V/issues/8", 44.39 * GIB, 44.53 * GIB),
        (8, 9),
        142,
        864,
        91.6,
        183,
        362,
        362,
        "https://www.nvidia.com/en-us/data-center/l40s/",
    ),
    _card(
        "rtx6000-ada",
        "NVIDIA RTX 6000 Ada Generation",
        _seen(
            44.43 * GIB,
            "DINGYANB/MTVCrafter/issues/21"
            + " with ECC; 50,865,307,648 without (github.com/unslothai/unsloth-zoo/pull/1053)",
            44.43 * GIB,
            50_865_307_648,
        ),
        (8, 9),
        142,
        960,
        91.1,
        182.1,
        364.2,
        364.2,
        _ADA,
    ),
    _card(
        "rtx4060ti-16gb",
        "NVIDIA GeForce RTX 4060 Ti",
        _sticker(16),
        (8, 9),
        34,
        288,
        22.1,
        22.1,
        44.1,
        44.1,
        _ADA,
    ),
    _card(
        "rtx4070ti",
        "NVIDIA GeForce RTX 4070 Ti",
        _sticker(12),
        (8, 9),
        60,
        504,
        40.1,
        40.1,
        80.2,
        80.2,
        _ADA,
    ),
    _card(
        "rtx4070tisuper",
        "NVIDIA GeForce RTX 4070 Ti SUPER",
        _sticker(16),
        (8, 9),
        66,
        672,
        44.1,
        44.1,
        88.2,
        88.2,
        _ADA,
    ),
    _card(
        "rtx4080",
        "NVIDIA GeForce RTX 4080",
        _sticker(16),
        (8, 9),
        76,
        717,
        48.7,
        48.7,
        97.5,
        97.5,
        _ADA,
    ),
    _card(
        "rtx4090",
        "NVIDIA GeForce RTX 4090",
        _seen(23.64 * GIB, "3DTopia/Phidias-Diffusion/issues/8", 23.5 * GIB, 23.68 * GIB),
        (8, 9),
        128,
        1008,
        82.6,
        82.6,
        165.2,
        165.2,
        _ADA,
    ),
    _card(
        "h100",
        "NVIDIA H100 80GB HBM3",
        _seen(79.11 * GIB, "vllm-project/vllm/issues/27508", 79.11 * GIB, 79.2 * GIB),
        (9, 0),
        132,
        3350,
        66.9,
        494.7,
        989.4,
        989.4,
        "https://www.nvidia.com/en-us/data-center/h100/",
        nvlink=450,
    ),
    _card(
        "h100-pcie",
        "NVIDIA H100 PCIe",
        _by_rule(79.11 * GIB, "as the H100 with SXM", 79.0 * GIB, 79.2 * GIB),
        (9, 0),
        114,
        2000,
        51.2,
        378,
        756,
        756,
        "https://www.nvidia.com/content/dam/en-zz/Solutions/gtcs22/data-center/h100/PB-11133-001_v01.pdf",
    ),
    _card(
        "h200",
        "NVIDIA H200",
        _seen(
            143_156 * MIB,
            (
                "ai-bot-pro/achatbot/blob/859e21612de769164d8d1802d794ef8f87ace3c8/"
                "deploy/modal/src/llm/vllm/vlm/skywork_r1v.py"
            ),
        ),
        (9, 0),
        132,
        4800,
        66.9,
        494.7,
        989.4,
        989.4,
        "https://www.nvidia.com/en-us/data-center/h200/",
        nvlink=450,
    ),
    _card(
        "b200",
        "NVIDIA B200",
        _seen(178.35 * GIB, "pytorch/ao/pull/4002", 178.35 * GIB, 182_642 * MIB),
        (10, 0),
        148,
        7700,
        75,
        1125,
        2250,
        2250,
        "https://www.nvidia.com/en-us/data-center/hgx/",
        nvlink=900,
    ),
    _card(
        "b300",
        "NVIDIA B300 SXM6 AC",
        _from_smi(275_040, "as its users print it; a B200 gives 99.7 % of 192 GB"),
        (10, 3),
        148,
        8000,
        75,
        1125,
        2250,
        2250,
        "https://www.nvidia.com/en-us/data-center/hgx/",
        nvlink=900,
    ),
    _card(
        "rtx5060ti-16gb",
        "NVIDIA GeForce RTX 5060 Ti",
        _sticker(16),
        (12, 0),
        36,
        448,
        23.7,
        23.7,
        47.4,
        47.4,
        _BLACKWELL,
    ),
    _card(
        "rtx5070ti",
        "NVIDIA GeForce RTX 5070 Ti",
        _sticker(16),
        (12, 0),
        70,
        896,
        43.9,
        43.9,
        87.9,
        87.9,
        _BLACKWELL,
    ),
    _card(
        "rtx5080",
        "NVIDIA GeForce RTX 5080",
        _sticker(16),
        (12, 0),
        84,
        960,
        56.3,
        56.3,
        112.6,
        112.6,
        _BLACKWELL,
    ),
    _card(
        "rtx5090",
        "NVIDIA GeForce RTX 5090",
        _seen(31.37 * GIB, "Wan-Video/Wan2.1/issues/465"),
        (12, 0),
        170,
        1792,
        104.8,
        104.8,
        209.5,
        209.5,
        _BLACKWELL,
    ),
    _card(
        "rtx-pro-6000",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        _seen(94.97 * GIB, "antirez/ds4/issues/431"),
        (12, 0),
        188,
        1792,
        125,
        251.9,
        503.8,
        503.8,
        "https://www.nvidia.com/en-us/products/workstations/professional-desktop-gpus/rtx-pro-6000/",
    ),
)
