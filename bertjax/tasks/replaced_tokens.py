"""Replaced-token detection, ELECTRA's pretraining: a generator fills masks, a discriminator judges.

Source: Clark et al. 2020, section 2; google-research/electra, run_pretraining.py. Both encoders are
trained together. The generator learns to predict masked tokens; its samples take their places
when the discriminator predicts for every token whether it was replaced. No gradient goes through
the sample. The discriminator is the model that is used afterwards.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt32

from bertjax.models import embedding_sharing, encoder, heads, layers, parameters
from bertjax.scores import baselines
from bertjax.tasks import base, config_needs, metrics, pretraining

# Knuth's multiplier, 2**32 over the golden ratio: ids that follow each other get far apart.
_GOLDEN = 0x9E3779B1


class Discriminator(nnx.Module):
    """An encoder with the head that detects replaced tokens."""

    def __init__(self, config: encoder.EncoderConfig, *, rngs: nnx.Rngs):
        self.encoder = encoder.make_encoder(config, rngs=rngs)
        self.rtd_head = heads.ReplacedHead(config, rngs=rngs)

    def replaced_logits(
        self, inputs: layers.Inputs, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length"]:
        """Returns every token's logit of being replaced."""
        hidden = self.encoder(inputs, key=key)
        with jax.named_scope("rtd_head"):
            return self.rtd_head(hidden, inputs.get("sequence_ids"))


class ReplacedTokensModel(Discriminator):
    """The discriminator, and the generator at `generator`, sharing embeddings as `sharing` says.

    Shared parameters are stored once: `ReplacedTokens.parts` makes the two models.
    """

    def __init__(
        self,
        config: encoder.EncoderConfig,
        generator: encoder.EncoderConfig,
        *,
        sharing: str,
        rngs: nnx.Rngs,
    ):
        super().__init__(config, rngs=rngs)
        self.generator = pretraining.PretrainingModel(generator, pair_loss="none", rngs=rngs)
        embeddings = self.encoder.embeddings, self.generator.encoder.embeddings
        for module in embeddings:
            if hasattr(module, "projection"):
                # TensorFlow's default: the released code gives it no initializer.
                kernel = module.projection.kernel
                glorot = nnx.initializers.glorot_uniform()
                kernel[...] = glorot(rngs.params(), kernel.shape, kernel.dtype)
        embedding_sharing.SHARINGS[sharing](*embeddings, rngs)


@dataclasses.dataclass(frozen=True)
class ReplacedTokens:
    """ELECTRA's task. `generator` is the generator's encoder, `sharing` a key of SHARINGS.

    The loss is the generator's mean cross-entropy over masked tokens plus `discriminator_weight`
    times the discriminator's over all real positions; both means are exact over the global batch,
    where the released code computes them per TPU core and adds 1e-6 to the counts. Samples are
    drawn at `temperature`. Source: Clark et al. 2020, section 2 and appendix A.
    """

    encoder: encoder.EncoderConfig
    generator: encoder.EncoderConfig
    sharing: str = "shared"
    temperature: float = 1.0
    discriminator_weight: float = 50.0
    sentence_rows: ClassVar[str] = "whole"

    @property
    def objectives(self) -> Mapping[str, float]:
        return {"mlm_loss": 1.0, "discriminator_loss": self.discriminator_weight}

    @property
    def frozen(self) -> tuple[str, ...]:
        return ()

    def init(self, rngs: nnx.Rngs) -> ReplacedTokensModel:
        return ReplacedTokensModel(self.encoder, self.generator, sharing=self.sharing, rngs=rngs)

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        return {
            "mlm_loss": batch["masked_lm_weights"].sum(),
            "discriminator_loss": _real(batch).sum(),
        }

    def parts(
        self, model: ReplacedTokensModel
    ) -> tuple[Discriminator, pretraining.PretrainingModel]:
        """Returns discriminator and generator, each whole; shared parts get both gradients."""
        whole = embedding_sharing.apart(parameters.split(model)[1])
        generator = pretraining.Pretraining(self.generator, pair_loss="none")
        theirs = parameters.merge(
            base.abstract_model(generator)[0], whole.pop(embedding_sharing.GENERATOR)
        )
        ours = parameters.merge(discriminator_graph(self.encoder), whole)
        added = getattr(model.encoder.embeddings, embedding_sharing.delta("word"), None)
        if added is not None:
            words = theirs.encoder.embeddings.word
            ours.encoder.embeddings.word = embedding_sharing.WordsOfBoth(words, added)
        return ours, theirs

    def loss(
        self, model: ReplacedTokensModel, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns mlm_loss and mlm_accuracy of the generator, and of the discriminator `_scores`.

        Without a key the samples are the same every time. Those of a row depend on the key and its
        own tokens, not on the other rows.
        """
        discriminator, generator = self.parts(model)
        generator_key, discriminator_key, sample_key = layers.split(key, 3)
        positions = batch["masked_lm_positions"]
        logits = generator.masked_logits(batch, positions, key=generator_key)
        with jax.named_scope("sample"):
            sampled = sample(logits / self.temperature, row_seeds(sample_key, batch["input_ids"]))
            corrupted, is_replaced = replaced(batch, sampled)
        replaced_logits = discriminator.replaced_logits(
            {**batch, "input_ids": corrupted}, key=discriminator_key
        )
        return {
            **pretraining.of_masks(logits, batch),
            **_scores(replaced_logits, is_replaced, _real(batch), batch.get("sequence_ids")),
        }

    def evaluate(self, model: ReplacedTokensModel, batch: base.Batch) -> base.Means:
        return self.loss(model, batch, key=None)

    def predict(self, model: Discriminator, batch: base.Batch) -> dict[str, Array]:
        """Returns the "log_likelihood" [batch]: the log-probabilities of "original", added.

        The sum is over the tokens between the first position and the last real one. It is no
        likelihood, but ranks two sentences. The model may lack the generator.
        """
        if isinstance(model, ReplacedTokensModel):
            model, _ = self.parts(model)
        logits = model.replaced_logits(batch)
        # Between [CLS] and [SEP] stands what has a real position to its right.
        is_token = batch["input_mask"][:, 2:] != 0
        originals = jnp.where(is_token, jax.nn.log_sigmoid(-logits[:, 1:-1]), 0.0)
        return {"log_likelihood": originals.sum(axis=1)}

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Three times the forward passes of both encoders and both heads."""
        hidden = self.encoder.hidden_size
        forward = self.encoder.forward_flops(length) + 2.0 * length * hidden * (hidden + 1)
        generator = pretraining.Pretraining(self.generator, pair_loss="none")
        return 3.0 * batch_size * forward + generator.train_flops(batch_size, length, predictions)


@functools.lru_cache(maxsize=16)
def discriminator_graph(config: encoder.EncoderConfig) -> nnx.GraphDef:
    """Returns the graph definition of a discriminator without a generator."""
    return parameters.split(nnx.eval_shape(lambda: Discriminator(config, rngs=nnx.Rngs(0))))[0]


def row_seeds(
    key: PRNGKeyArray | None, input_ids: Int[Array, "batch length"]
) -> tuple[UInt32[Array, " batch"], UInt32[Array, " batch"]]:
    """Returns two random words for each row, made from the key and the row's tokens.

    Micro-batches, meshes and the batch size of an evaluation therefore change no sample.
    """
    words = jnp.zeros(2, jnp.uint32) if key is None else jax.random.bits(key, (2,), jnp.uint32)
    places = jax.lax.broadcasted_iota(jnp.uint32, input_ids.shape, 1)
    tokens = layers.mixed(input_ids.astype(jnp.uint32) * jnp.uint32(_GOLDEN) + places)
    row = layers.mixed(tokens * (2 * places + 1)).sum(axis=1, dtype=jnp.uint32)
    return layers.mixed(row ^ words[0]), layers.mixed(row + words[1])


def sample(
    logits: Float[Array, "batch positions vocab"],
    seeds: tuple[UInt32[Array, " batch"], UInt32[Array, " batch"]],
) -> Int[Array, "batch positions"]:
    """Returns tokens drawn from softmax(logits), without a gradient, by the Gumbel-max trick."""
    logits = jax.lax.stop_gradient(logits)
    noise = layers.gumbel_noise(seeds, logits.shape)
    return jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)


def replaced(
    batch: base.Batch, sampled: Int[Array, "batch positions"]
) -> tuple[Int[Array, "batch length"], Bool[Array, "batch length"]]:
    """Returns the tokens with samples in place of the masks, and which tokens changed.

    A sample that equals the original token does not count as a replacement.
    """
    ids, positions = batch["input_ids"], batch["masked_lm_positions"]
    # A comparison with an iota rather than a scatter: places of weight 0 all point at position 0.
    shape = (*positions.shape, ids.shape[1])
    is_here = positions[:, :, None] == jax.lax.broadcasted_iota(jnp.int32, shape, 2)
    is_here &= batch["masked_lm_weights"][:, :, None] > 0
    is_masked = is_here.any(axis=1)
    original, drawn = (
        jnp.where(is_here, tokens[:, :, None], 0).max(axis=1)
        for tokens in (batch["masked_lm_ids"], sampled)
    )
    return jnp.where(is_masked, drawn, ids), is_masked & (drawn != original)


def _real(batch: base.Batch) -> Float[Array, "batch length"]:
    return (batch["input_mask"] != 0) * batch["example_weights"][:, None]


def _scores(
    logits: Float[Array, "batch length"],
    is_replaced: Bool[Array, "batch length"],
    real: Float[Array, "batch length"],
    sequence_ids: Int[Array, "batch length"] | None,
) -> base.Means:
    """Returns the metrics of the discriminator over real positions.

    They are discriminator_loss; replaced_share, the share of tokens that are not the original ones;
    discriminator_precision and discriminator_recall of the class "replaced"; discriminator_auc, the
    share of pairs of a replaced and an original token of one sequence in which the replaced one has
    the higher logit, ties counting half. (The released code's AUC compares tokens of all sequences
    of an evaluation. This one is a mean like the others, the same for any batch size.)
    """
    labels = is_replaced.astype(jnp.float32)
    losses = jax.nn.softplus(logits) - labels * logits
    logits = jax.lax.stop_gradient(logits)
    said, fake, genuine = logits > 0, real * labels, real * (1 - labels)
    higher, equal = (
        compare(logits[:, :, None], logits[:, None, :]).astype(jnp.float32)
        for compare in (jnp.greater, jnp.equal)
    )
    is_won = higher + 0.5 * equal
    pairs = (fake.sum(axis=1) * genuine.sum(axis=1)).sum()
    if sequence_ids is not None:
        is_own = sequence_ids[:, :, None] == sequence_ids[:, None, :]
        is_won = jnp.where(is_own, is_won, 0.0)
        pairs = jnp.einsum("BL,BLS,BS->", fake, is_own.astype(jnp.float32), genuine)
    won = jnp.einsum("BL,BLS,BS->", fake, is_won, genuine)
    return {
        "discriminator_loss": base.weighted(losses, real),
        "replaced_share": base.weighted(labels, real),
        "discriminator_precision": base.weighted(labels, real * said),
        "discriminator_recall": base.weighted(said.astype(jnp.float32), fake),
        "discriminator_auc": metrics.Mean(won, pairs),
    }


def chance(averages: Mapping[str, float]) -> dict[str, float]:
    """Returns `share_loss`, the loss of predicting the share of replaced tokens for every token."""
    share = averages.get("replaced_share", math.nan)
    return {"share_loss": baselines.share_entropy(share)} if 0 < share < 1 else {}


def generator_config(sizes: encoder.EncoderConfig, options: Any) -> encoder.EncoderConfig:
    """Returns the generator's encoder: the discriminator's with config.pretraining.generator.

    Source: google-research/electra run_pretraining.py, get_generator_config.
    """
    hidden_size = options.hidden_size or max(sizes.hidden_size // 4, 1)
    shared = sizes.embedding_width
    is_as_wide = shared == hidden_size
    return dataclasses.replace(
        sizes,
        hidden_size=hidden_size,
        num_hidden_layers=options.num_hidden_layers or sizes.num_hidden_layers,
        num_attention_heads=options.num_attention_heads or max(hidden_size // 64, 1),
        intermediate_size=options.intermediate_size or 4 * hidden_size,
        # Embeddings that are not shared are as wide as its layers.
        embedding_size=0 if is_as_wide or options.embeddings == "separate" else shared,
    )


def faults(config: Any) -> Iterator[str]:
    """Yields a sentence for every option of a config that does not fit the objective."""
    options = config.pretraining
    of_pairs = {"pretraining.pair_loss": (("none",), "it learns nothing of pairs")}
    yield from config_needs.faults(config, "replaced_tokens", of_pairs)
    # The size of the vocabulary and the type may not be known yet.
    sizes = config.model.to_dict() | {"vocab_size": 1, "dtype": "float32"}
    try:
        of_model = encoder.EncoderConfig(**sizes)
    except ValueError:
        return  # which config.model's own faults report
    try:
        generator_config(of_model, options.generator)
    except ValueError as error:
        yield f"config.pretraining.generator describes no encoder: {error}"


def of_options(sizes: encoder.EncoderConfig, options: Any) -> ReplacedTokens:
    """Returns the task that config.pretraining asks for."""
    return ReplacedTokens(
        sizes,
        generator_config(sizes, options.generator),
        sharing=options.generator.embeddings,
        temperature=options.generator.temperature,
        discriminator_weight=options.discriminator_weight,
    )
