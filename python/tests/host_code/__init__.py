"""Programs that run twice: with PyTorch's real CUDA host code over a CUDA runtime without a GPU, and traced on fake tensors."""
