"""WordPiece behind one small protocol, so that another kind of tokenizer is one more class.

The tokenization is that of the released BERT (google-research/bert, tokenization.py): clean text,
space CJK characters, split on punctuation, greedy longest match; a word of more than 200
characters is [UNK] (transformers says 100). The work is done by the Rust `tokenizers` library.
"""
