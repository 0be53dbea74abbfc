"""Jobs that bench/measure_gpu.py trains on a real card and predicts on an imaginary one."""
