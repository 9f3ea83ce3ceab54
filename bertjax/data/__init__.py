"""The data of training: records, streams, tokenizers, masks. NumPy and tf.data, not jax.numpy."""
