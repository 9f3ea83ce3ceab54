"""What training reads: records, streams, tokenizers, masks. NumPy and tf.data, not jax.numpy."""
