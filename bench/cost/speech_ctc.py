"""wav2vec2 with CTC on recordings of uneven length, from a configuration."""

import argparse

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Wav2Vec2Config, Wav2Vec2ForCTC


class Recordings(Dataset):
    def __len__(self):
        return 3_000

    def __getitem__(self, index):
        samples = 16_000 + index * 7_919 % 120_000
        return torch.zeros(samples), torch.randint(1, 32, (samples // 2_000,))


def padded(rows):
    sounds, letters = zip(*rows, strict=True)
    pad = torch.nn.utils.rnn.pad_sequence
    lengths = torch.tensor([len(sound) for sound in sounds])[:, None]
    sounds = pad(sounds, batch_first=True)
    mask = (torch.arange(sounds.size(1)) < lengths).long()
    return sounds, mask, pad(letters, batch_first=True, padding_value=-100)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = Wav2Vec2ForCTC(Wav2Vec2Config(vocab_size=32, mask_time_prob=0.05)).cuda().train()
    model.freeze_feature_encoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Recordings(), args.batch_size, shuffle=True, collate_fn=padded)
    for sounds, mask, letters in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(sounds.cuda(), mask.cuda(), labels=letters.cuda()).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
