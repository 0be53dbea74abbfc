"""Sentiment with BERT and the Trainer of Transformers: sentences of different lengths, padded batch
by batch.
"""

import argparse
import random

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)

GOOD = ["good", "great", "fine", "lovely", "bright", "kind"]
BAD = ["bad", "poor", "dull", "awful", "grey", "rude"]
OTHER = [
    "the",
    "film",
    "was",
    "and",
    "a",
    "story",
    "of",
    "its",
    "people",
    "with",
    "music",
    "in",
    "every",
    "scene",
]


def make_tokenizer():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *OTHER, *GOOD, *BAD]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )


class Reviews(Dataset):
    def __init__(self, count, tokenizer, seed):
        source = random.Random(seed)
        self.labels = [source.randint(0, 1) for _ in range(count)]
        texts = []
        for label in self.labels:
            words = source.choices(OTHER, k=source.randint(6, 90)) + source.choices(
                GOOD if label else BAD, k=4
            )
            source.shuffle(words)
            texts.append(" ".join(words))
        self.encoded = tokenizer(texts, truncation=True, max_length=128)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {
            **{name: rows[index] for name, rows in self.encoded.items()},
            "labels": self.labels[index],
        }


def compute_metrics(prediction):
    predicted = np.argmax(prediction.predictions, axis=-1)
    right = predicted == prediction.label_ids
    return {"accuracy": right.mean(), "positives": float(predicted.mean())}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--fp16", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    tokenizer = make_tokenizer()
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        num_labels=2,
    )
    training_args = TrainingArguments(
        output_dir="out",
        per_device_train_batch_size=args.batch_size,
        per_device_eval_batch_size=2 * args.batch_size,
        gradient_accumulation_steps=args.accumulate,
        num_train_epochs=args.epochs,
        learning_rate=3e-4,
        warmup_steps=10,
        weight_decay=0.01,
        fp16=args.fp16,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        report_to="none",
    )
    trainer = Trainer(
        model=BertForSequenceClassification(config),
        args=training_args,
        train_dataset=Reviews(4096, tokenizer, seed=1),
        eval_dataset=Reviews(512, tokenizer, seed=2),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=compute_metrics,
        callbacks=[EarlyStoppingCallback(early_stopping_patience=3)],
    )
    trainer.train()
    print(trainer.evaluate())


if __name__ == "__main__":
    main()
