"""Documents of input files: languages, sentences, words, and what is left out."""
