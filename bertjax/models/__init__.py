"""Flax NNX modules of the BERT family, for this trainer and for other JAX projects.

They know nothing of tasks, data or config files. A module holds parameters, submodules and static
numbers; randomness is the call argument `key`, and `key=None` means no dropout. Use them directly,
or functionally with `nnx.split(module)` and plain `jax.jit`.

Glossary of the letters in einsums and of the dimensions in types:
  B batch, L length (of the query), S length (of the key), D hidden, F intermediate, H heads,
  K head size, E embedding size, V vocabulary, M masked positions, C classes.
"""

from bertjax.models.attention import SelfAttention
from bertjax.models.classification import (
    MultipleChoice,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
)
from bertjax.models.decoder import Decoder, EncoderDecoder
from bertjax.models.embeddings import LearntEmbeddings
from bertjax.models.encoder import Encoder, EncoderConfig, make_bare, make_encoder
from bertjax.models.encoder_layers import PostNormLayer
from bertjax.models.generation import Search, generate
from bertjax.models.heads import MlmHead, PairHead, Pooler, ReplacedHead
from bertjax.models.parameters import encoder_paths
from bertjax.models.visibility import Visibility

__all__ = [
    "Decoder",
    "Encoder",
    "EncoderConfig",
    "EncoderDecoder",
    "LearntEmbeddings",
    "MlmHead",
    "MultipleChoice",
    "PairHead",
    "Pooler",
    "PostNormLayer",
    "ReplacedHead",
    "Search",
    "SelfAttention",
    "SequenceClassifier",
    "SpanClassifier",
    "TokenClassifier",
    "Visibility",
    "encoder_paths",
    "generate",
    "make_bare",
    "make_encoder",
]
