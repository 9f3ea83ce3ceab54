"""Offline programs that turn text into records. Run once; training never imports them."""
