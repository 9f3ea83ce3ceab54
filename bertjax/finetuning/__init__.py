"""What finetuning reads: a module for each family of files, and batches over their features."""
