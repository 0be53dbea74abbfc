"""What a script calls by name: torch.cuda, devices, streams, storages, graphs, autocast, with the imaginary card behind."""
