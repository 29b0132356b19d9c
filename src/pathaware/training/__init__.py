"""Configuration, the training loop, evaluation and run folders."""
