"""A CUDA runtime and driver without a GPU, put under an unmodified PyTorch with LD_PRELOAD.

The C++ and C sources say what is faked; `build` compiles them, `preload` starts Python over them. Used by the
allocator oracle (../oracle.py) and by whatever records what ATen operators allocate.
"""
