"""Batches of sources and targets, as they are made of random rows."""

import jax.numpy as jnp
import numpy as np

from bertjax.data import sequence_rows

PAD, CLS, SEP, MASK = range(4)


def ids(vocab_size):
    """A vocabulary whose first entries are the special ones."""
    return sequence_rows.Ids(vocab_size, PAD, SEP, MASK, (PAD, CLS, SEP, MASK))


def batch(name, vocab_size, rows=4, length=12, seed=0, fillers=(-1,)):
    """Rows of several lengths, made by a key of SEQUENCE_ROWS; `fillers` only fill up."""
    rng = np.random.default_rng(seed)
    lengths = np.array([length, *rng.integers(5, length, rows - 1)])
    place = np.arange(length)
    tokens = np.where(
        place == lengths[:, None] - 1, SEP, rng.integers(4, vocab_size, (rows, length))
    )
    tokens[:, 0] = CLS
    mask = (place < lengths[:, None]).astype(np.int32)
    plain = {"input_ids": (tokens * mask).astype(np.int32), "input_mask": mask}
    plain["ends_sentence"] = (rng.random(mask.shape) < 0.3).astype(np.int32)
    plain["segment_ids"] = np.zeros_like(mask)
    made = plain | sequence_rows.SEQUENCE_ROWS[name].draw(plain, ids(vocab_size), rng)
    weights = np.ones(rows, np.float32)
    weights[[*fillers]] = 0
    del made["ends_sentence"]
    return {key: jnp.asarray(it) for key, it in made.items()} | {"example_weights": weights}
