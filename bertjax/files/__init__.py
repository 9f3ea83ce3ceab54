"""Files of others are opened and read here, and files of ours are put down whole."""
