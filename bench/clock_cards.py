"""Training speeds that NVIDIA published for cards other than the RTX 3090: figures to check the
clock's level by.

Images per second on one card, from the READMEs of NVIDIA/DeepLearningExamples
(PyTorch/Classification/ConvNets: resnet50v1.5, resnext101-32x4d, se-resnext101-32x4d, efficientnet;
"Training performance results"; containers 20.12 to 21.03). Batch sizes are those of their
configs.yml. The models are timm's of the same architecture; mixed precision was run with channels
last.
"""

from typing import NamedTuple


class Published(NamedTuple):
    model: str  # timm's name
    card: str
    precision: str  # of bench/scripts/timm_benchmark.py
    batch_size: int
    images_per_s: float

    @property
    def options(self) -> list[str]:
        first = [] if self.precision == "amp" else ["--channels-first"]
        return ["--precision", self.precision, *first, "--foreach"]


PUBLISHED = tuple(
    Published(model, card, precision, batch_size, speed)
    for model, rows in {
        "resnet50": [
            ("a100-80gb", "amp", 256, 2470),
            ("a100-80gb", "tf32", 256, 938),
            ("v100-16gb", "amp", 256, 1200),
            ("v100-16gb", "fp32", 112, 367),
        ],
        "resnext101_32x4d": [
            ("a100-80gb", "amp", 128, 1211),
            ("a100-80gb", "tf32", 128, 456),
            ("v100-16gb", "amp", 128, 587),
            ("v100-16gb", "fp32", 64, 147),
        ],
        "seresnext101_32x4d": [
            ("a100-80gb", "amp", 128, 855),
            ("a100-80gb", "tf32", 128, 395),
            ("v100-16gb", "amp", 112, 443),
            ("v100-16gb", "fp32", 64, 132),
        ],
        "efficientnet_b0": [
            ("a100-80gb", "amp", 256, 2489),
            ("a100-80gb", "tf32", 256, 1078),
            ("v100-16gb", "amp", 128, 1301),
            ("v100-16gb", "fp32", 64, 655),
        ],
    }.items()
    for card, precision, batch_size, speed in rows
)
