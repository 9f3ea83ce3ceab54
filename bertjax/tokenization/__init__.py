"""Tokenizers: text to ids and back, their files, and the exchange of vocabularies."""
