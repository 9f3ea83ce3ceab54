"""Flax NNX modules of the BERT family, for this trainer and for other JAX projects.

They know nothing of tasks, data or config files. A module holds parameters, submodules and static
numbers; randomness is the call argument `key`, and `key=None` means no dropout. Use them directly,
or functionally with `nnx.split(module, graph=False)` and plain `jax.jit`.

Glossary of the letters in einsums and of the dimensions in types:
  B batch    L length (of the query)    S length (of the key)    D hidden    F intermediate
  H heads    K head size                V vocabulary             M masked positions    C classes
"""

from bertjax.models.attention import SelfAttention
from bertjax.models.classification import (
    MultipleChoice,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
)
from bertjax.models.encoder import Embeddings, Encoder, EncoderConfig, EncoderLayer
from bertjax.models.heads import MlmHead, PairHead, Pooler

__all__ = [
    "Embeddings",
    "Encoder",
    "EncoderConfig",
    "EncoderLayer",
    "MlmHead",
    "MultipleChoice",
    "PairHead",
    "Pooler",
    "SelfAttention",
    "SequenceClassifier",
    "SpanClassifier",
    "TokenClassifier",
]
