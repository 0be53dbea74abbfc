"""Jobs that are trained on a real card and predicted on an imaginary one. `bench/measure_gpu.py` runs them."""
