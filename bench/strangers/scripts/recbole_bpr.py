"""RecBole: its quick start, a model by its name, on the MovieLens ratings that it brings."""

import argparse
from pathlib import Path

import recbole
from recbole.quick_start import run_recbole

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="BPR")
parser.add_argument("--train_batch_size", type=int, default=2048)
args = parser.parse_args()

run_recbole(
    model=args.model,
    dataset="ml-100k",
    config_dict={
        "data_path": str(Path(recbole.__file__).parent / "dataset_example"),
        "train_batch_size": args.train_batch_size,
        "epochs": 3,
    },
)
