"""The parts of the training loop: the program, its state, the monitor and the writers."""
