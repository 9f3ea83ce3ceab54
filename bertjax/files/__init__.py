"""Files: how those of others are opened and read, and how ours are put down whole."""
