"""What to do, from values alone: no torch, no input or output, no clock."""
