"""What the bytes of a source mean: one module for each kind of file or dataset."""
