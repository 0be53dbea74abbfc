"""Speech recognition on one to six seconds of sound: convolutions on the waveform, a transformer on
what they find, the CTC loss.
"""

import torch
from shared import flags, loader_of, train
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

RATE, LETTERS = 16000, 32
CONVOLUTIONS = ((10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2))  # kernels, strides


def utterance(number, length):
    source = torch.Generator().manual_seed(number)
    text = torch.randint(1, LETTERS, (8 * length // RATE,), generator=source)
    return torch.rand(length, generator=source), text


def collate(samples):
    waves, texts = map(list, zip(*samples, strict=True))
    lengths, of_texts = (torch.tensor([len(part) for part in parts]) for parts in (waves, texts))
    return pad_sequence(waves, batch_first=True), lengths, torch.cat(texts), of_texts


class Recognizer(nn.Module):
    def __init__(self, width=128, states=256, layers=4):
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width if number else 1, width, kernel, stride, bias=False)
            for number, (kernel, stride) in enumerate(CONVOLUTIONS)
        )
        self.norm = nn.GroupNorm(width, width)
        self.project = nn.Linear(width, states)
        layer = nn.TransformerEncoderLayer(states, 4, 4 * states, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(states, LETTERS)

    def forward(self, waves, lengths):
        features = waves[:, None]
        for number, convolution in enumerate(self.convolutions):
            features = convolution(features)
            features = F.gelu(features if number else self.norm(features))
        for kernel, stride in CONVOLUTIONS:
            lengths = (lengths - kernel) // stride + 1
        states = self.project(features.transpose(1, 2))
        is_padding = torch.arange(states.size(1)) >= lengths[:, None]
        states = self.encoder(states, src_key_padding_mask=is_padding.to(states.device))
        return self.head(states).log_softmax(-1).transpose(0, 1), lengths


def loss_of(model, waves, lengths, texts, of_texts):
    scores, of_scores = model(waves.cuda(), lengths)
    return F.ctc_loss(scores, texts.cuda(), of_scores, of_texts, zero_infinity=True)


args = flags(2000)
model = Recognizer().cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
loader = loader_of(args, utterance, [(RATE, 6 * RATE - 1)], collate)
train(model, optimizer, loader, loss_of)
