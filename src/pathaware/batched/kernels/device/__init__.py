"""What runs on the GPU, written for Triton; the modules beside this package launch it."""
