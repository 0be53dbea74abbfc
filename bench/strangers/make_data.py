"""Makes small data for the programs of `bench.strangers`: `python make_data.py KIND FOLDER`, in the
environment they run in.

Nothing is downloaded: pictures are noise, texts are words drawn at random, models have random
weights.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

WORDS = [
    "the",
    "a",
    "red",
    "small",
    "quick",
    "cat",
    "dog",
    "bird",
    "tree",
    "house",
    "river",
    "runs",
    "sees",
    "finds",
    "likes",
    "under",
    "over",
    "near",
    "and",
    "then",
    "again",
]


def sentences(count: int, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(5, 24))) for _ in range(count)]


def pictures(folder: Path, count: int = 96, side: int = 96) -> None:
    """train/ and val/ with a folder for each of two classes."""
    import numpy as np
    from PIL import Image

    draw = np.random.default_rng(0)
    for split, number in (("train", count), ("val", count // 3)):
        for at in range(number):
            path = folder / split / f"class{at % 2}" / f"{at:04}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(draw.integers(0, 255, (side, side, 3), dtype=np.uint8)).save(path)


def boxes(folder: Path) -> None:
    """A data set as `yolo detect train` reads it."""
    pictures(folder / "all", 64, 160)
    lines = {}
    for split in ("train", "val"):
        images, labels = folder / "images" / split, folder / "labels" / split
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        for path in sorted((folder / "all" / split).rglob("*.jpg")):
            path.rename(images / path.name)
            (labels / f"{path.stem}.txt").write_text("0 0.5 0.5 0.4 0.3\n1 0.25 0.3 0.2 0.2\n")
        lines[split] = f"images/{split}"
    text = (
        f"path: {folder.resolve()}\ntrain: {lines['train']}\nval: {lines['val']}\nnames:\n  0: "
        "one\n  1: two\n"
    )
    (folder / "data.yaml").write_text(text)


def captions(folder: Path) -> None:
    """Pictures, and a table of them with a caption each, as open_clip reads it."""
    pictures(folder / "all", 256, 64)
    for split in ("train", "val"):
        paths = sorted((folder / "all" / split).rglob("*.jpg"))
        rows = [
            f"{path.resolve()}\t{text}"
            for path, text in zip(paths, sentences(len(paths)), strict=True)
        ]
        (folder / f"{split}.csv").write_text("\n".join(["filepath\ttitle", *rows]) + "\n")


def tokenizer(folder: Path) -> None:
    """A tokenizer of whole words with a chat template, as `AutoTokenizer` reads it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<unk>", "<s>", "</s>", "<pad>", "user", "assistant", ":"]
    words = Tokenizer(
        models.WordLevel(
            {word: at for at, word in enumerate([*special, *WORDS])}, unk_token="<unk>"
        )
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    made = PreTrainedTokenizerFast(
        tokenizer_object=words,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>",
        model_max_length=256,
    )
    made.chat_template = "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {% endfor %}"
    made.save_pretrained(folder)


def model(folder: Path, config: str, network: str, **more: int) -> None:
    """A small one of Transformers with its tokenizer, by the names of its classes."""
    import transformers

    layers = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 256}
    sizes = {**layers, "vocab_size": 4096, "pad_token_id": 3, **more}
    made = getattr(transformers, config)(**sizes)
    getattr(transformers, network)(made).save_pretrained(folder)
    tokenizer(folder)


def language_model(folder: Path) -> None:
    more = {"intermediate_size": 688, "max_position_embeddings": 512}
    model(folder, "LlamaConfig", "LlamaForCausalLM", **more, bos_token_id=1, eos_token_id=2)


def _rows(path: Path, count: int, *names: str) -> None:
    """Rows of a sentence for each name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = (sentences(count, seed) for seed in range(len(names)))
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def texts(folder: Path) -> None:
    """Rows of text, with a small language model."""
    language_model(folder / "model")
    _rows(folder / "rows" / "train.jsonl", 400, "text")
    _rows(folder / "rows" / "test.jsonl", 40, "text")


def preferences(folder: Path) -> None:
    """Prompts with an answer that was chosen and one that was not, with a small language model."""
    language_model(folder / "model")
    _rows(folder / "rows" / "train.jsonl", 400, "prompt", "chosen", "rejected")
    _rows(folder / "rows" / "test.jsonl", 40, "prompt", "chosen", "rejected")


def pairs(folder: Path) -> None:
    """Pairs of sentences, with a small encoder."""
    model(folder / "model", "BertConfig", "BertModel", intermediate_size=1024)
    _rows(folder / "pairs.jsonl", 600, "anchor", "positive")


def lightning_checkpoint(folder: Path) -> None:
    """Rows of instructions, and a checkpoint of litgpt with random weights."""
    import torch
    from litgpt import GPT, Config
    from litgpt.utils import save_config

    tokenizer(folder / "model")
    config = Config.from_name("pythia-14m")
    save_config(config, folder / "model")
    torch.save(GPT(config).state_dict(), folder / "model" / "lit_model.pth")
    _instructions(folder / "rows.json")


def _instructions(path: Path) -> None:
    parts = zip(sentences(300, 1), sentences(300, 2), strict=True)
    rows = [{"instruction": question, "input": "", "output": answer} for question, answer in parts]
    path.write_text(json.dumps(rows))


def instructions(folder: Path) -> None:
    """Rows of instructions as LLaMA-Factory reads them, with a small language model."""
    language_model(folder / "model")
    _instructions(folder / "rows.json")
    (folder / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))


def molecules(folder: Path) -> None:
    """Chains of small groups as SMILES, with a number each."""
    draw = random.Random(0)
    groups = ["C", "N", "O", "C(C)", "C(=O)", "c1ccccc1"]
    lines = [
        f"C{''.join(draw.choices(groups, k=draw.randint(2, 9)))},{draw.gauss(0, 1):.3f}"
        for _ in range(1000)
    ]
    folder.mkdir(parents=True)
    (folder / "molecules.csv").write_text("\n".join(["smiles,target", *lines]) + "\n")


def text_files(folder: Path) -> None:
    """Plain text, and litgpt's tokenizer."""
    tokenizer(folder / "model")
    (folder / "text").mkdir(parents=True)
    for at in range(4):
        (folder / "text" / f"{at}.txt").write_text("\n".join(sentences(2000, at)))


def torchtune_files(folder: Path) -> None:
    """A recipe's file of settings, with a tokenizer and a checkpoint of random weights."""
    import sentencepiece
    import torch
    from torchtune.models.llama2 import llama2

    (folder / "weights").mkdir(parents=True)
    (folder / "text.txt").write_text("\n".join(sentences(2000)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "tokenizer"),
        vocab_size=64,
        hard_vocab_limit=False,
    )
    _instructions(folder / "rows.json")
    sizes = {"vocab_size": 64, "num_layers": 4, "num_heads": 8, "num_kv_heads": 8}
    sizes |= {"embed_dim": 256, "max_seq_len": 512}
    torch.save(llama2(**sizes).state_dict(), folder / "weights" / "weights.pt")
    settings = {
        "tokenizer": {
            "_component_": "torchtune.models.llama2.llama2_tokenizer",
            "path": str(folder / "tokenizer.model"),
            "max_seq_len": 256,
        },
        "dataset": {
            "_component_": "torchtune.datasets.alpaca_dataset",
            "source": "json",
            "data_files": str(folder / "rows.json"),
        },
        "model": {"_component_": "torchtune.models.llama2.llama2", **sizes},
        "checkpointer": {
            "_component_": "torchtune.training.FullModelTorchTuneCheckpointer",
            "checkpoint_dir": str(folder / "weights"),
            "checkpoint_files": ["weights.pt"],
            "output_dir": "${output_dir}",
            "model_type": "LLAMA2",
        },
        "optimizer": {"_component_": "torch.optim.AdamW", "fused": True},
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "metric_logger": {
            "_component_": "torchtune.training.metric_logging.DiskLogger",
            "log_dir": "${output_dir}",
        },
        "output_dir": "out",
        "seed": 1,
        "shuffle": True,
        "resume_from_checkpoint": False,
        "batch_size": 4,
        "epochs": 2,
        "max_steps_per_epoch": None,
        "gradient_accumulation_steps": 2,
        "optimizer_in_bwd": False,
        "compile": False,
        "device": "cuda",
        "dtype": "bf16",
        "enable_activation_checkpointing": True,
        "enable_activation_offloading": False,
        "log_every_n_steps": 1,
        "log_peak_memory_stats": True,
    }
    # YAML has JSON in it; a line for each, as in torchtune's own files
    lines = (f"{name}: {json.dumps(value)}" for name, value in settings.items())
    (folder / "settings.yaml").write_text("\n".join(lines) + "\n")


def volumes(folder: Path) -> None:
    """Volumes with a bright box each, planned and preprocessed by nnU-Net."""
    import numpy as np
    import SimpleITK

    cases = folder / "raw" / "Dataset001_Boxes"
    for part in ("imagesTr", "labelsTr"):
        (cases / part).mkdir(parents=True)
    draw = np.random.default_rng(0)
    for number in range(12):
        image, label = draw.normal(size=(8, 96, 96)), np.zeros((8, 96, 96), np.uint8)
        top, left = draw.integers(10, 60, 2)
        label[2:6, top : top + 25, left : left + 25] = 1
        image[label == 1] += 3
        for part, name, values in (("imagesTr", "_0000", image), ("labelsTr", "", label)):
            volume = SimpleITK.GetImageFromArray(values.astype(np.float32 if name else np.uint8))
            SimpleITK.WriteImage(volume, str(cases / part / f"case{number:02}{name}.nii.gz"))
    described = {"channel_names": {"0": "CT"}, "labels": {"background": 0, "box": 1}}
    described |= {"numTraining": 12, "file_ending": ".nii.gz"}
    (cases / "dataset.json").write_text(json.dumps(described))
    folders = {f"nnUNet_{name}": str(folder / name) for name in ("raw", "preprocessed", "results")}
    plan = [str(Path(sys.executable).with_name("nnUNetv2_plan_and_preprocess")), "-d", "1"]
    plan += ["-c", "2d", "-np", "1", "-npfp", "1"]
    subprocess.run(plan, env={**os.environ, **folders}, check=True)


def nothing(folder: Path) -> None:
    """The program brings its own data."""


KINDS = {
    made.__name__: made
    for made in (
        boxes,
        captions,
        instructions,
        lightning_checkpoint,
        molecules,
        nothing,
        pairs,
        pictures,
        preferences,
        text_files,
        texts,
        torchtune_files,
        volumes,
    )
}

if __name__ == "__main__":
    kind, where = sys.argv[1:]
    KINDS[kind](Path(where))
