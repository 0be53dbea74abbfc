"""Name tagging with DistilBERT from a configuration: a fast tokenizer, labels aligned with tokens,
dynamic padding.
"""

import argparse
import random

import torch
from accelerate import Accelerator
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader, Dataset
from transformers import (
    DataCollatorForTokenClassification,
    DistilBertConfig,
    DistilBertForTokenClassification,
    PreTrainedTokenizerFast,
    get_scheduler,
)

NAMES = ["Anna", "Bo", "Chen", "Dmitri", "Elif", "Fatima", "Goran", "Hana"]
PLACES = ["Aarhus", "Bogota", "Cairo", "Delhi", "Essen", "Fez"]
OTHER = [
    "lives",
    "in",
    "went",
    "to",
    "and",
    "problem",
    "the",
    "river",
    "with",
    "from",
    "before",
    "a",
    "long",
    "day",
]
LABELS = ["O", "PERSON", "PLACE"]


def make_tokenizer():
    words = ["[PAD]", "[UNK]", *OTHER, *NAMES, *PLACES]
    tokenizer = Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


class Sentences(Dataset):
    def __init__(self, count, tokenizer, seed):
        source = random.Random(seed)
        self.tokenizer, self.sentences = tokenizer, []
        for _ in range(count):
            words = [(word, 0) for word in source.choices(OTHER, k=source.randint(5, 60))]
            words += [(source.choice(NAMES), 1), (source.choice(PLACES), 2)]
            source.shuffle(words)
            self.sentences.append(words)

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        words = self.sentences[index]
        encoded = self.tokenizer(
            [word for word, _ in words], is_split_into_words=True, truncation=True, max_length=64
        )
        owners = encoded.word_ids()
        encoded["labels"] = [-100 if owner is None else words[owner][1] for owner in owners]
        return encoded


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(0)
    accelerator = Accelerator(mixed_precision="fp16")
    tokenizer = make_tokenizer()
    config = DistilBertConfig(
        vocab_size=len(tokenizer),
        dim=256,
        n_layers=4,
        n_heads=4,
        hidden_dim=1024,
        num_labels=len(LABELS),
    )
    model = DistilBertForTokenClassification(config)
    collator = DataCollatorForTokenClassification(tokenizer, pad_to_multiple_of=8)
    train_loader = DataLoader(
        Sentences(4096, tokenizer, 1), shuffle=True, collate_fn=collator, batch_size=args.batch_size
    )
    eval_loader = DataLoader(
        Sentences(512, tokenizer, 2), collate_fn=collator, batch_size=args.batch_size
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(
        model, optimizer, train_loader, eval_loader
    )
    steps = args.epochs * len(train_loader)
    scheduler = accelerator.prepare(
        get_scheduler("linear", optimizer, num_warmup_steps=20, num_training_steps=steps)
    )

    for epoch in range(args.epochs):
        model.train()
        for batch in train_loader:
            outputs = model(**batch)
            accelerator.backward(outputs.loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        model.eval()
        right = seen = 0
        for batch in eval_loader:
            with torch.no_grad():
                predicted = model(**batch).logits.argmax(dim=-1)
            labels = batch["labels"]
            predicted = accelerator.pad_across_processes(predicted, dim=1, pad_index=-100)
            labels = accelerator.pad_across_processes(labels, dim=1, pad_index=-100)
            predicted, labels = accelerator.gather((predicted, labels))
            known = labels != -100
            right += ((predicted == labels) & known).sum().item()
            seen += known.sum().item()
        accelerator.print(
            f"epoch {epoch}: loss {outputs.loss.item():.3f}, {right} of {seen} tokens right"
        )
    accelerator.unwrap_model(model).save_pretrained("tagger", save_function=accelerator.save)


if __name__ == "__main__":
    main()
