"""Sort numbers with a T5 made from a configuration; evaluation generates on the card and compares
whole sequences.
"""

import argparse

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Adafactor, T5Config, T5ForConditionalGeneration

PAD, END, OFFSET = 0, 1, 2


class Sorting(Dataset):
    """Sequences of 8 to 48 numbers; the target is the same numbers in order."""

    def __init__(self, count, seed):
        source = torch.Generator().manual_seed(seed)
        lengths = torch.randint(8, 49, (count,), generator=source)
        self.rows = [torch.randint(0, 500, (int(n),), generator=source) + OFFSET for n in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        return torch.cat([row, torch.tensor([END])]), torch.cat(
            [row.sort().values, torch.tensor([END])]
        )


def collate(samples):
    sources, targets = zip(*samples, strict=True)
    sources = torch.nn.utils.rnn.pad_sequence(sources, batch_first=True, padding_value=PAD)
    targets = torch.nn.utils.rnn.pad_sequence(targets, batch_first=True, padding_value=-100)
    return {"input_ids": sources, "attention_mask": (sources != PAD).long(), "labels": targets}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--beams", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=512,
        d_model=256,
        d_kv=32,
        d_ff=1024,
        num_layers=3,
        num_heads=8,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=PAD,
        pad_token_id=PAD,
        eos_token_id=END,
    )
    model = T5ForConditionalGeneration(config).cuda()
    optimizer = Adafactor(
        model.parameters(), lr=1e-3, relative_step=False, scale_parameter=False, warmup_init=False
    )
    train_loader = DataLoader(
        Sorting(4096, 1),
        batch_size=args.batch_size,
        shuffle=True,
        collate_fn=collate,
        num_workers=1,
    )
    eval_loader = DataLoader(Sorting(256, 2), batch_size=args.batch_size, collate_fn=collate)

    for epoch in range(args.epochs):
        model.train()
        for batch in train_loader:
            batch = {name: rows.to("cuda") for name, rows in batch.items()}
            loss = model(**batch).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        exact = 0
        with torch.no_grad():
            for batch in eval_loader:
                made = model.generate(
                    input_ids=batch["input_ids"].cuda(),
                    attention_mask=batch["attention_mask"].cuda(),
                    max_new_tokens=50,
                    num_beams=args.beams,
                ).cpu()
                labels = batch["labels"]
                for row, label in zip(made, labels, strict=True):
                    wanted = label[label != -100]
                    exact += int(torch.equal(row[1 : 1 + len(wanted)], wanted))
        print(f"epoch {epoch}: loss {loss.item():.3f}, exact {exact / 256:.2%}")
    torch.save(model.state_dict(), "t5.pt")


if __name__ == "__main__":
    main()
