"""Vectors of many texts: computed fast, kept on disk in few bytes, searched."""
