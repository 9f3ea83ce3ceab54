"""Parts of `train_vocabulary`: kinds and their options, counts, entries, coverage, extension."""
