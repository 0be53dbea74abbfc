"""What the libraries of a card take beside the tensors: cuDNN, cuBLAS, the back-ends of attention, Triton."""
