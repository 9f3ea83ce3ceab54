"""What lies in a workdir: checkpoints, config, vocabulary, the curves; written and read here alone."""
