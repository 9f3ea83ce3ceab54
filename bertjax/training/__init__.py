"""What the training loop is made of: a program, its state, what watches it and what writes."""
