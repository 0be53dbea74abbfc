"""pytorch-metric-learning: triplets mined in each batch, with its sampler of M images a class."""

import argparse

import torch
from pytorch_metric_learning import distances, losses, miners, reducers, samplers
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=256)
args = parser.parse_args()

device = torch.device("cuda")
model = nn.Sequential(
    nn.Conv2d(1, 32, 3),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Dropout2d(0.25),
    nn.Flatten(),
    nn.Linear(9216, 128),
).to(device)
labels = torch.arange(4000) % 10
dataset = TensorDataset(torch.randn(4000, 1, 28, 28), labels)
sampler = samplers.MPerClassSampler(labels, m=4, length_before_new_iter=len(dataset))
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)
optimizer = optim.Adam(model.parameters(), lr=0.01)

distance = distances.CosineSimilarity()
reducer = reducers.ThresholdReducer(low=0)
loss_func = losses.TripletMarginLoss(margin=0.2, distance=distance, reducer=reducer)
mining_func = miners.TripletMarginMiner(margin=0.2, distance=distance, type_of_triplets="semihard")

for epoch in range(3):
    model.train()
    for batch_idx, (data, batch_labels) in enumerate(loader):
        data, batch_labels = data.to(device), batch_labels.to(device)
        optimizer.zero_grad()
        embeddings = model(data)
        indices_tuple = mining_func(embeddings, batch_labels)
        loss = loss_func(embeddings, batch_labels, indices_tuple)
        loss.backward()
        optimizer.step()
        if batch_idx % 20 == 0:
            print(f"epoch {epoch}, {mining_func.num_triplets} triplets, loss {loss.item():.3f}")
