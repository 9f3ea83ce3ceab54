"""The files of a workdir: checkpoints, config, vocabulary, scalars, and the lock of its owner."""
