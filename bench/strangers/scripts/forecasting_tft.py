"""pytorch-forecasting: a temporal fusion transformer, after the tutorial of its documentation."""

import argparse

import lightning.pytorch as pl
import numpy as np
import pandas as pd
from pytorch_forecasting import QuantileLoss, TemporalFusionTransformer, TimeSeriesDataSet

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=64)
args = parser.parse_args()

series = [
    pd.DataFrame(
        {
            "series": str(at),
            "time": range(120),
            "value": np.random.default_rng(at).normal(size=120).cumsum(),
        }
    )
    for at in range(8)
]
data = pd.concat(series, ignore_index=True)
training = TimeSeriesDataSet(
    data[data.time < 100],
    time_idx="time",
    target="value",
    group_ids=["series"],
    max_encoder_length=24,
    max_prediction_length=6,
    static_categoricals=["series"],
    time_varying_known_reals=["time"],
    time_varying_unknown_reals=["value"],
)
validation = TimeSeriesDataSet.from_dataset(training, data, predict=True, stop_randomization=True)
model = TemporalFusionTransformer.from_dataset(
    training,
    learning_rate=0.03,
    hidden_size=32,
    attention_head_size=2,
    dropout=0.1,
    hidden_continuous_size=16,
    loss=QuantileLoss(),
)
trainer = pl.Trainer(
    max_epochs=3, accelerator="gpu", devices=1, gradient_clip_val=0.1, logger=False
)
trainer.fit(
    model,
    train_dataloaders=training.to_dataloader(train=True, batch_size=args.batch_size, num_workers=0),
    val_dataloaders=validation.to_dataloader(
        train=False, batch_size=args.batch_size * 10, num_workers=0
    ),
)
