"""The engine for CUDA: kernels in Triton."""
