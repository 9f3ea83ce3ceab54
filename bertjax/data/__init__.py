"""What training reads: records, streams, tokenizers and masks. NumPy and tf.data, never jax.numpy."""
