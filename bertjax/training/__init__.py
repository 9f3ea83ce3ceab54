"""What the training loop is made of: the program of a job, its state, what watches and writes it."""
