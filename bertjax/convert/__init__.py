"""Weights in and out: Hugging Face directories, TF1 checkpoints and workdirs of this trainer."""
