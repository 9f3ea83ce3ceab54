"""What the command-line programs share: their start, their flags, their errors and their end."""
