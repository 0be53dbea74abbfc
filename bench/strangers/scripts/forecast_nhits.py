"""neuralforecast: N-HiTS over many series, of which each batch draws windows."""

import argparse

from neuralforecast import NeuralForecast
from neuralforecast.models import NHITS
from utilsforecast.data import generate_series

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
args = parser.parse_args()

series = generate_series(256, freq="D", min_length=100, max_length=300)
model = NHITS(h=12, input_size=48, max_steps=200, batch_size=args.batch_size, accelerator="gpu")
forecast = NeuralForecast(models=[model], freq="D")
forecast.fit(df=series, val_size=12)
forecast.save(path="forecast", overwrite=True)
