"""The part that all command-line programs share: start, flags, errors and end."""
