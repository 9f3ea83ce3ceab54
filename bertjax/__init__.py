"""bertjax: pretrain BERT-family encoders on your own text with JAX and Flax."""

__version__ = "0.1.0"
