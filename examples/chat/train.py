"""Train a small GPT-2 from scratch on Chinese dialogues with Transformers' Trainer, one token a
character.

    python examples/chat/train.py --per_device_train_batch_size 8 --num_train_epochs 3

Each sample is a conversation of one to six turns from dialogues.tsv, so lengths vary and are padded
batch by batch.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser, Trainer, TrainingArguments

HERE = Path(__file__).parent
PAD, ASK, ANSWER, END = 0, 1, 2, 3
SPECIALS = 4


@dataclass
class ModelArguments:
    layers: int = field(default=4, metadata={"help": "transformer blocks"})
    width: int = field(default=128, metadata={"help": "size of the embeddings"})
    heads: int = field(default=4, metadata={"help": "attention heads"})
    conversations: int = field(default=1024, metadata={"help": "training conversations"})


def read_pairs(path):
    return [
        tuple(line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines() if line
    ]


class Conversations(Dataset):
    """Conversations of one to six random pairs, as lists of token numbers; only answers are
    learned.
    """

    def __init__(self, pairs, vocabulary, count, seed):
        self.vocabulary = vocabulary
        source = random.Random(seed)
        self.conversations = [source.choices(pairs, k=source.randint(1, 6)) for _ in range(count)]

    def __len__(self):
        return len(self.conversations)

    def __getitem__(self, index):
        tokens, labels = [], []
        for question, answer in self.conversations[index]:
            asked = [ASK, *(self.vocabulary[c] for c in question), ANSWER]
            answered = [*(self.vocabulary[c] for c in answer), END]
            tokens += asked + answered
            labels += [-100] * len(asked) + answered
        return {"input_ids": tokens, "labels": labels}


def pad_batch(samples):
    """Pads a batch to its own longest conversation."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    batch = {"input_ids": [], "labels": [], "attention_mask": []}
    for sample in samples:
        length, missing = len(sample["input_ids"]), longest - len(sample["input_ids"])
        batch["input_ids"].append(sample["input_ids"] + [PAD] * missing)
        batch["labels"].append(sample["labels"] + [-100] * missing)
        batch["attention_mask"].append([1] * length + [0] * missing)
    return {name: torch.tensor(rows) for name, rows in batch.items()}


def main():
    parser = HfArgumentParser((ModelArguments, TrainingArguments))
    parser.set_defaults(
        output_dir=str(HERE / "out"),
        num_train_epochs=1,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_steps=20,
        remove_unused_columns=False,
        report_to="none",
    )
    model_args, training_args = parser.parse_args_into_dataclasses()

    pairs = read_pairs(HERE / "dialogues.tsv")
    characters = sorted({character for pair in pairs for text in pair for character in text})
    vocabulary = {character: SPECIALS + number for number, character in enumerate(characters)}
    train_set = Conversations(pairs, vocabulary, model_args.conversations, seed=1)
    eval_set = Conversations(pairs, vocabulary, model_args.conversations // 8, seed=2)

    torch.manual_seed(training_args.seed)
    config = GPT2Config(
        vocab_size=SPECIALS + len(characters),
        n_positions=1024,
        n_embd=model_args.width,
        n_layer=model_args.layers,
        n_head=model_args.heads,
        bos_token_id=ASK,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=training_args,
        data_collator=pad_batch,
        train_dataset=train_set,
        eval_dataset=eval_set,
    )
    trainer.train()
    print(
        {name: round(value, 4) for name, value in trainer.evaluate().items() if name == "eval_loss"}
    )


if __name__ == "__main__":
    main()
