"""Training programs that nobody here wrote, as their packages on PyPI bring them: a command line,
or what their documentation shows (scripts/, where a package has no command). `make_data.py` makes
their data."""

from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Stranger:
    """One program. In `words`, {bin} is the folder of its environment's programs and {data} that of
    its data.
    """

    name: str
    package: str
    data: str  # a kind of make_data.py
    words: tuple[str, ...]  # {batch_size} stands where the batch size goes
    batch_size: int
    gpu: str = "a100-40gb"
    older: bool = False  # lives in the environment of requirements-older.txt

    def command(self, programs: str, data: str) -> list[str]:
        """The command, its batch size still open."""
        places = {"{bin}": programs, "{data}": data, "{scripts}": str(HERE / "scripts")}
        words = list(self.words)
        for place, value in places.items():
            words = [word.replace(place, value) for word in words]
        return words


def _script(name: str, *words: str) -> tuple[str, ...]:
    return ("{bin}/python", "{scripts}/" + name, *words)


_YOLO = ("epochs=3", "workers=1", "device=0", "batch={batch_size}")
_TRAINER = (
    "--output_dir",
    "out",
    "--num_train_epochs",
    "3",
    "--report_to",
    "none",
    "--eval_strategy",
    "epoch",
)
_BATCHES = ("--per_device_train_batch_size", "{batch_size}", "--per_device_eval_batch_size", "8")
_TRL = (
    "--model_name_or_path",
    "{data}/model",
    "--dataset_name",
    "{data}/rows",
    "--dtype",
    "bfloat16",
    *_TRAINER,
    *_BATCHES,
)
_LITGPT = (
    "--train.micro_batch_size",
    "{batch_size}",
    "--train.global_batch_size",
    "16",
    "--out_dir",
    "out",
)

STRANGERS = (
    Stranger(
        "yolo detect train",
        "ultralytics",
        "boxes",
        (
            "{bin}/yolo",
            "detect",
            "train",
            "model=yolo11n.yaml",
            "data={data}/data.yaml",
            "imgsz=160",
            *_YOLO,
        ),
        16,
    ),
    Stranger(
        "yolo classify train",
        "ultralytics",
        "pictures",
        (
            "{bin}/yolo",
            "classify",
            "train",
            "model=yolo11n-cls.yaml",
            "data={data}",
            "imgsz=64",
            *_YOLO,
        ),
        16,
    ),
    Stranger(
        "open_clip_train",
        "open_clip_torch",
        "captions",
        (
            *(
                "{bin}/python",
                "-m",
                "open_clip_train.main",
                "--dataset-type",
                "csv",
                "--csv-separator",
                "\t",
            ),
            *(
                "--train-data",
                "{data}/train.csv",
                "--val-data",
                "{data}/val.csv",
                "--model",
                "RN50",
                "--precision",
                "amp",
            ),
            *("--workers", "1", "--epochs", "2", "--batch-size", "{batch_size}"),
        ),
        32,
    ),
    Stranger(
        "litgpt pretrain",
        "litgpt",
        "text_files",
        (
            *(
                "{bin}/litgpt",
                "pretrain",
                "pythia-14m",
                "--tokenizer_dir",
                "{data}/model",
                "--data",
                "TextFiles",
            ),
            *(
                "--data.train_data_path",
                "{data}/text",
                "--data.num_workers",
                "1",
                "--train.max_seq_length",
                "128",
            ),
            *("--train.max_tokens", "400000", *_LITGPT),
        ),
        4,
    ),
    Stranger(
        "litgpt finetune_lora",
        "litgpt",
        "lightning_checkpoint",
        (
            *(
                "{bin}/litgpt",
                "finetune_lora",
                "{data}/model",
                "--data",
                "JSON",
                "--data.json_path",
                "{data}/rows.json",
            ),
            *(
                "--data.val_split_fraction",
                "0.1",
                "--data.num_workers",
                "0",
                "--train.epochs",
                "2",
                *_LITGPT,
            ),
        ),
        4,
    ),
    Stranger("trl sft", "trl", "texts", ("{bin}/trl", "sft", *_TRL), 8),
    Stranger("trl dpo", "trl", "preferences", ("{bin}/trl", "dpo", *_TRL), 8),
    Stranger(
        "Trainer",
        "transformers",
        "texts",
        _script("transformers_trainer.py", "{data}", *_TRAINER, *_BATCHES),
        16,
    ),
    Stranger(
        "Trainer, ZeRO-3",
        "deepspeed",
        "texts",
        (
            *("{bin}/deepspeed", "--num_gpus", "2", "--no_local_rank", "--master_port", "29612"),
            *("{scripts}/transformers_trainer.py", "{data}", "--deepspeed", "{scripts}/zero3.json"),
            *("--bf16", "True", "--warmup_steps", "10", *_TRAINER, *_BATCHES),
        ),
        16,
        "a100-40gb:2",
    ),
    Stranger(
        "SentenceTransformerTrainer",
        "sentence-transformers",
        "pairs",
        _script("sentence_pairs.py", "{data}", *_TRAINER, *_BATCHES),
        32,
    ),
    Stranger(
        "create_loader, ModelEmaV3",
        "timm",
        "pictures",
        _script("timm_loader.py", "{data}", "-b", "{batch_size}"),
        32,
    ),
    Stranger(
        "TopKPooling",
        "torch_geometric",
        "nothing",
        _script("pyg_graphs.py", "--batch-size", "{batch_size}"),
        60,
    ),
    Stranger(
        "UNet, CacheDataset",
        "monai",
        "nothing",
        _script("monai_unet.py", "--batch_size", "{batch_size}"),
        4,
    ),
    Stranger(
        "Unet, DiceLoss",
        "segmentation-models-pytorch",
        "nothing",
        _script("smp_unet.py", "--batch-size", "{batch_size}"),
        8,
    ),
    Stranger(
        "LightningCLI",
        "lightning",
        "nothing",
        _script(
            "lightning_cli.py",
            "fit",
            "--trainer.max_epochs",
            "3",
            "--data.batch_size",
            "{batch_size}",
        ),
        64,
    ),
    Stranger(
        "TemporalFusionTransformer",
        "pytorch-forecasting",
        "nothing",
        _script("forecasting_tft.py", "--batch-size", "{batch_size}"),
        64,
    ),
    Stranger(
        "vision_learner",
        "fastai",
        "pictures",
        _script("fastai_vision.py", "{data}", "--bs", "{batch_size}"),
        16,
    ),
    Stranger(
        "TabNetClassifier",
        "pytorch-tabnet",
        "nothing",
        _script("tabnet.py", "--batch-size", "{batch_size}"),
        256,
    ),
    Stranger(
        "NeuralNetClassifier",
        "skorch",
        "nothing",
        _script("skorch_mlp.py", "--batch-size", "{batch_size}"),
        128,
    ),
    Stranger(
        "UNet2DModel, EMAModel",
        "diffusers",
        "nothing",
        _script("diffusers_unconditional.py", "--train_batch_size", "{batch_size}"),
        16,
    ),
    Stranger(
        "pykeen train transe",
        "pykeen",
        "nothing",
        (
            *(
                "{bin}/pykeen",
                "train",
                "transe",
                "--dataset",
                "nations",
                "--device",
                "cuda",
                "--number-epochs",
                "3",
            ),
            *("--batch-size", "{batch_size}", "--stopper", "NopStopper"),
        ),
        64,
    ),
    Stranger(
        "PPO",
        "stable-baselines3",
        "nothing",
        _script("sb3_ppo.py", "--batch-size", "{batch_size}"),
        64,
    ),
    Stranger(
        "SAC",
        "stable-baselines3",
        "nothing",
        _script("sb3_sac.py", "--batch-size", "{batch_size}"),
        256,
    ),
    Stranger(
        "trl grpo",
        "trl",
        "preferences",
        (
            *("{bin}/trl", "grpo", "--reward_funcs", "get_soft_overlong_punishment"),
            *("--max_completion_length", "16", *_TRL),
        ),
        8,
    ),
    Stranger(
        "llamafactory-cli train",
        "llamafactory",
        "instructions",
        (
            *("{bin}/llamafactory-cli", "train", "--stage", "sft", "--do_train", "True"),
            *("--finetuning_type", "lora", "--model_name_or_path", "{data}/model"),
            *("--dataset", "rows", "--dataset_dir", "{data}", "--template", "alpaca"),
            *("--cutoff_len", "256", "--val_size", "0.1", "--bf16", "True", *_TRAINER, *_BATCHES),
        ),
        8,
        older=True,
    ),
    Stranger(
        "TripletMarginLoss, MPerClassSampler",
        "pytorch-metric-learning",
        "nothing",
        _script("metric_learning.py", "--batch-size", "{batch_size}"),
        256,
    ),
    Stranger(
        "SCVI",
        "scvi-tools",
        "nothing",
        _script("scvi_model.py", "--batch-size", "{batch_size}"),
        128,
    ),
    Stranger(
        "NHITS",
        "neuralforecast",
        "nothing",
        _script("forecast_nhits.py", "--batch-size", "{batch_size}"),
        32,
    ),
    Stranger(
        "deepspeed.initialize, ZeRO-2",
        "deepspeed",
        "nothing",
        (
            *("{bin}/deepspeed", "--num_gpus", "2", "--master_port", "29611"),
            *("{scripts}/deepspeed_engine.py", "--batch-size", "{batch_size}"),
        ),
        16,
        "a100-40gb:2",
    ),
    Stranger(
        "accelerate launch, FSDP2",
        "accelerate",
        "texts",
        (
            *("{bin}/accelerate", "launch", "--num_processes", "2", "--mixed_precision", "bf16"),
            *("--use_fsdp", "--fsdp_version", "2"),
            *("--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP"),
            *("--fsdp_transformer_layer_cls_to_wrap", "LlamaDecoderLayer"),
            *("{scripts}/accelerate_fsdp2.py", "{data}", "--batch_size", "{batch_size}"),
        ),
        16,
        "a100-40gb:2",
    ),
    Stranger(
        "chemprop train",
        "chemprop",
        "molecules",
        (
            *("{bin}/chemprop", "train", "--data-path", "{data}/molecules.csv"),
            *("--task-type", "regression", "--output-dir", "out", "--accelerator", "gpu"),
            *("--devices", "1", "--epochs", "3", "--batch-size", "{batch_size}"),
        ),
        64,
    ),
    Stranger(
        "run_recbole",
        "recbole",
        "nothing",
        _script("recbole_bpr.py", "--train_batch_size", "{batch_size}"),
        2048,
        older=True,
    ),
    Stranger(
        "tune run full_finetune_single_device",
        "torchtune",
        "torchtune_files",
        (
            *("{bin}/tune", "run", "full_finetune_single_device"),
            *("--config", "{data}/settings.yaml"),
        ),
        4,
        older=True,
    ),
    Stranger(
        "nnUNetv2_train",
        "nnunetv2",
        "volumes",
        (
            *("env", "nnUNet_raw={data}/raw", "nnUNet_preprocessed={data}/preprocessed"),
            *("nnUNet_results=results", "nnUNet_n_proc_DA=0", "nnUNet_compile=f"),
            *("{bin}/nnUNetv2_train", "1", "2d", "0"),
        ),
        5,
        older=True,
    ),
)
