"""Parts of `train_vocabulary`: counts, entries, coverage, extension."""
