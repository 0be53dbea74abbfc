"""The programs of bench/scripts: what each one exercises and how it is started.

`make bench-scripts` predicts every one of them and writes docs/how/programs.md;
tests/bench/test_scripts_run.py runs the light ones. To add a program, write it as its users write
theirs (no word of brimful in it) and add a line here.
"""

from dataclasses import dataclass
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
BOTH = ("train", "eval")
# named wherever there are convolutions
ORDINARY = ("cudnn workspace without benchmark", "cudnn.benchmark in float32")


@dataclass(frozen=True)
class Program:
    """One command line: ``python [launcher] bench/scripts/<script> <flags> <batch_flag>
    <batch_size>``.
    """

    script: str  # file name in bench/scripts
    shows: str  # what it exercises, as the table says it
    batch_size: int
    flags: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()  # modules besides torch, by the names they are imported by
    light: bool = True  # run by `make test` as well
    phases: tuple[str, ...] = BOTH  # what a prediction must have seen
    gpu: str = "a100-40gb"
    # what stands before the script: ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    launcher: tuple[str, ...] = ()
    batch_flag: str = "--batch-size"
    # upper bounds and assumptions that a prediction may name, besides `ORDINARY`
    approximations: tuple[str, ...] = ()
    accumulation: int = 1  # batches that go into one step
    # arguments with which the script is run before, for real, on the CPU, in the same folder
    prepare: tuple[str, ...] = ()
    name: str = ""  # in the table; the script's stem where there is one line of it

    @property
    def key(self) -> str:
        return self.name or Path(self.script).stem

    @property
    def may_be_approximated(self) -> set[str]:
        return {*self.approximations, *ORDINARY}

    @property
    def samples_per_step(self) -> int:
        return self.batch_size * self.accumulation

    def command(self, python: str) -> list[str]:
        script = str(SCRIPTS / self.script)
        return [python, *self.launcher, script, *self.flags, self.batch_flag, str(self.batch_size)]


PROGRAMS: tuple[Program, ...] = (
    Program(
        "mlp.py",
        "a perceptron, Adam, loaders of tensors",
        256,
        flags=(
            "--input-size",
            "512",
            "--output-size",
            "32",
            "--depth",
            "3",
            "--architecture",
            "uniform",
        ),
        phases=("train",),
    ),
    Program(
        "lstm_lm.py",
        "LSTM language model, hidden state carried, tied weights, clipping, whole model saved, "
        "no loader",
        20,
        phases=("train",),
        approximations=("cudnn rnn reserve space",),
    ),
    Program(
        "lstm_packed.py",
        "bidirectional LSTM, pack_padded_sequence, RMSprop, tqdm, lengths that vary",
        64,
        needs=("tqdm",),
        approximations=("cudnn rnn reserve space",),
    ),
    Program(
        "checkpointed_transformer.py",
        "torch.utils.checkpoint(use_reentrant=False), fp16 autocast, GradScaler, "
        "nn.TransformerEncoderLayer",
        64,
        name="checkpointed_transformer",
    ),
    Program(
        "checkpointed_transformer.py",
        "the same with use_reentrant=True",
        64,
        flags=("--kind", "reentrant"),
        name="checkpointed_transformer, reentrant",
    ),
    Program(
        "checkpointed_transformer.py",
        "the same with checkpoint_sequential",
        64,
        flags=("--kind", "sequential"),
        light=False,
        name="checkpointed_transformer, sequential",
    ),
    Program(
        "resume.py",
        'torch.load(map_location="cuda") of a checkpoint that a run on the CPU wrote, '
        "TensorBoard, tqdm, torch.save",
        128,
        needs=("tensorboard", "tqdm"),
        prepare=("--device", "cpu", "--epochs", "1", "--samples", "256"),
    ),
    Program(
        "trainer_gpt2.py",
        "Trainer of Transformers: GPT-2, bf16, gradient checkpointing, evaluation, saving",
        8,
        flags=("--bf16", "--gradient_checkpointing", "true", "--report_to", "none"),
        needs=("transformers", "accelerate"),
        batch_flag="--per_device_train_batch_size",
    ),
    Program(
        "trainer_gpt2.py",
        "the same with fp16, four batches accumulated, fused AdamW, TensorBoard",
        8,
        flags=(
            "--fp16",
            "--gradient_accumulation_steps",
            "4",
            "--optim",
            "adamw_torch_fused",
            "--report_to",
            "tensorboard",
        ),
        needs=("transformers", "accelerate", "tensorboard"),
        light=False,
        batch_flag="--per_device_train_batch_size",
        accumulation=4,
        name="trainer_gpt2, fp16, accumulation",
    ),
    Program(
        "accelerate_images.py",
        "Accelerate: prepare, accumulate, bf16, clipping, gather_for_metrics, save_state",
        64,
        flags=("--mixed-precision", "bf16", "--accumulate", "2"),
        needs=("accelerate",),
        accumulation=2,
    ),
    Program(
        "accelerate_images.py",
        "the same with fp16 and no accumulation",
        64,
        flags=("--mixed-precision", "fp16"),
        needs=("accelerate",),
        light=False,
        name="accelerate_images, fp16",
    ),
    Program(
        "lightning_unet.py",
        "Lightning on one card: 16-mixed, validation, checkpoints, CSV logger, "
        "validate(ckpt_path=best), a U-Net",
        16,
        needs=("lightning",),
    ),
    Program(
        "peft_lora.py",
        "PEFT: LoRA on a GPT-2 configuration in bfloat16, frozen base",
        8,
        needs=("transformers", "peft"),
        light=False,
    ),
    Program(
        "peft_lora.py",
        "the same with gradient checkpointing",
        8,
        flags=("--gradient-checkpointing",),
        needs=("transformers", "peft"),
        light=False,
        name="peft_lora, checkpointing",
    ),
    Program(
        "qlora.py",
        "QLoRA of a Llama of 7 billion: from_pretrained in 4 bits, double quantization "
        "(bitsandbytes), PEFT, checkpointing",
        4,
        flags=("--double-quant",),
        needs=("transformers", "peft", "bitsandbytes"),
        light=False,
        phases=("train",),
        gpu="rtx4090",
        approximations=("torch.compile",),
    ),
    Program(
        "t5_generate.py",
        "T5 encoder and decoder, Adafactor, a loader with a worker, model.generate in evaluation",
        32,
        needs=("transformers",),
        light=False,
    ),
    Program(
        "t5_generate.py",
        "the same with a beam search",
        32,
        flags=("--beams", "4"),
        needs=("transformers",),
        light=False,
        name="t5_generate, beams",
    ),
    Program(
        "cuda_graphs.py",
        "a whole training step captured as a CUDA graph and replayed, after a warm-up on a side "
        "stream; capturable Adam",
        640,
    ),
    Program(
        "prefetcher.py",
        "batches prefetched on a side stream, record_stream, two workers, pinned memory, steps "
        "timed by CUDA events",
        128,
    ),
    Program(
        "dcgan.py",
        "DCGAN: two networks with an optimizer each, BCELoss, transposed convolutions",
        128,
        phases=("train",),
    ),
    Program(
        "data_parallel.py",
        "nn.DataParallel over all cards, here one",
        512,
        light=False,
    ),
    Program(
        "data_parallel.py",
        "the same over three cards",
        510,
        gpu="a100-40gb:3",
        name="data_parallel_three",
        light=False,
    ),
    Program(
        "ddp_resnet.py",
        "torchrun with three ranks: DistributedDataParallel, DistributedSampler, "
        "gradient_as_bucket_view, all_reduce, barrier",
        64,
        gpu="a100-40gb:3",
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"),
        light=False,
        phases=("train",),
    ),
    Program(
        "fsdp2_gpt.py",
        "torchrun with two ranks: fully_shard in bfloat16, a model made on the meta device, "
        "AdamW of DTensors, clipping",
        8,
        flags=("--layers", "4"),
        gpu="a100-40gb:2",
        launcher=("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        light=False,
        phases=("train",),
    ),
    Program(
        "zero1.py",
        "mp.spawn, a rank for each card: ZeroRedundancyOptimizer",
        64,
        gpu="a100-40gb:2",
        light=False,
        phases=("train",),
    ),
    Program(
        "contrastive.py",
        "every sample meets every other one: NT-Xent, pairwise distances, a margin loss",
        1024,
        light=False,
        phases=("train",),
    ),
    Program(
        "compiled_mixture.py",
        "torch.compile of a mixture of experts, RMSNorm, causal attention, bf16, fused AdamW",
        8,
        light=False,
        approximations=("torch.compile",),
    ),
    Program(
        "vit_ema.py",
        "Vision Transformer, AveragedModel as EMA, bf16 autocast, fused AdamW, OneCycleLR, two "
        "workers",
        128,
        light=False,
    ),
    Program(
        "unet_segmentation.py",
        "U-Net: channels_last, cudnn.benchmark, fp16, checkpointed encoder, Dice loss, RMSprop",
        8,
        flags=("--amp", "--checkpointing"),
        light=False,
    ),
    Program(
        "detection.py",
        "a one-stage detector: images and boxes of varying size and number, boolean masks",
        8,
        light=False,
        approximations=("boolean mask", "nonzero"),
    ),
    Program(
        "torchvision_maskrcnn.py",
        "torchvision's detection tutorial: Mask R-CNN, images of many sizes, sampled proposals, "
        "suppression of boxes",
        2,
        needs=("torchvision",),
        light=False,
        approximations=("nonzero", "non-maximum suppression"),
    ),
    Program(
        "timm_train.py",
        "a network of timm with cudnn.benchmark, no loader",
        32,
        flags=("--model", "resnet18"),
        needs=("timm",),
        light=False,
        phases=("train",),
    ),
    Program(
        "timm_benchmark.py",
        "timm's own training benchmark: amp, channels last, cudnn.benchmark, no loader",
        32,
        flags=("--model", "resnet18"),
        needs=("timm",),
        light=False,
        phases=("train",),
    ),
)


def by_key(key: str) -> Program:
    """The program of that name. Raises KeyError for an unknown one."""
    return {program.key: program for program in PROGRAMS}[key]
