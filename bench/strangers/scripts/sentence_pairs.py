"""sentence-transformers: its trainer with MultipleNegativesRankingLoss, as its documentation shows
it.
"""

import sys

from datasets import load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from transformers import HfArgumentParser

data, *rest = sys.argv[1:]
(args,) = HfArgumentParser(SentenceTransformerTrainingArguments).parse_args_into_dataclasses(rest)
model = SentenceTransformer(f"{data}/model")
rows = load_dataset("json", data_files=f"{data}/pairs.jsonl", split="train").train_test_split(
    test_size=60
)
trainer = SentenceTransformerTrainer(
    model=model,
    args=args,
    train_dataset=rows["train"],
    eval_dataset=rows["test"],
    loss=losses.MultipleNegativesRankingLoss(model),
)
trainer.train()
