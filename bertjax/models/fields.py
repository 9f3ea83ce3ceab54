"""What describes an encoder, as its parts read it.

`encoder.EncoderConfig` is the same and checks it against the tables of parts, which therefore
cannot import it.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class EncoderFields:
    """The fields of `encoder.EncoderConfig`, which says what they mean; nothing is checked."""

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    embedding_size: int = 0
    embeddings: str = "learnt"
    layer: str = "post_norm"
    feed_forward: str = "plain"
    dtype: str = "float32"
    gradient_reduction_dtype: str = "float32"
    remat: str = "none"
    attention: str = "xla"
    pooler_act: str = "tanh"

    @property
    def embedding_width(self) -> int:
        """The numbers of an embedding: `embedding_size`, or where that is 0 `hidden_size`."""
        return self.embedding_size or self.hidden_size

    @property
    def gradient_dtype(self) -> str:
        """The type of the products that are gradients of kernels."""
        return self.dtype if self.gradient_reduction_dtype == "compute" else "float32"
