"""Readers of sources: one module for each kind of file or dataset."""
