"""What lies in a workdir: checkpoints, config, vocabulary, curves; read and written here alone."""
