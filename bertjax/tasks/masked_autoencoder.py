"""MAE: the encoder reads the visible positions alone, and a small decoder predicts the others.

Source: He et al. 2022, section 3; facebookresearch/mae, models_mae.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from bertjax.models import encoder, layers, parts, values, visibility
from bertjax.options import faults as faults_lib
from bertjax.tasks import base, config_needs, masked_values, value_baselines

DECODER_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


class DecoderInputs(nnx.Module):
    """States of visible positions in the decoder's width, a learnt vector elsewhere, and places."""

    def __init__(self, width: int, config: encoder.EncoderConfig, *, rngs: nnx.Rngs):
        draw = layers.EMBEDDING_INITIALIZERS[config.initializer](config.initializer_range)
        self.projection = parts.dense(config, width, config.hidden_size, rngs=rngs)
        self.mask = nnx.Embed(1, config.hidden_size, embedding_init=draw, rngs=rngs)
        self.positions, self.grid_rows = config.position_embedding, config.grid_rows
        if self.positions == "learnt":
            self.position = nnx.Embed(
                config.max_position_embeddings, config.hidden_size, embedding_init=draw, rngs=rngs
            )

    def __call__(
        self,
        states: Float[Array, "batch visible hidden"],
        places: Int[Array, "batch length"],
        is_visible: Array,
    ) -> Float[Array, "batch length decoder"]:
        """Returns the decoder's input: `places` are the places in `states` of each position."""
        projected = self.projection(states)
        taken = jnp.take_along_axis(projected, places[:, :, None], axis=1)
        mask = self.mask.embedding[...][None].astype(taken.dtype)
        inputs = jnp.where(is_visible[:, :, None], taken, mask)
        length, size = inputs.shape[1:]
        if self.positions == "learnt":
            return inputs + self.position.embedding[...][:length][None]
        if self.positions in values.PLACES:
            table = values.PLACES[self.positions](length, size, self.grid_rows)
            return inputs + jnp.asarray(table)[None]
        return inputs


class MaskedAutoencoderModel(nnx.Module):
    """The encoder, the decoder and the head that predicts values from the decoder's states."""

    def __init__(
        self, config: encoder.EncoderConfig, decoder: encoder.EncoderConfig, *, rngs: nnx.Rngs
    ):
        self.encoder = encoder.make_encoder(config, rngs=rngs)
        make_layer = encoder.LAYERS[decoder.layer]
        stack = [
            make_layer(decoder, number=number, rngs=rngs)
            for number in range(decoder.num_hidden_layers)
        ]
        is_open = decoder.layer in encoder.UNNORMALIZED
        self.decoder = encoder.Encoder(
            DecoderInputs(config.hidden_size, decoder, rngs=rngs),
            stack,
            remat=decoder.remat,
            final_norm=parts.norm(decoder, decoder.hidden_size) if is_open else None,
        )
        self.value_head = values.ValueHead(decoder, rngs=rngs)


@dataclasses.dataclass(frozen=True)
class MaskedAutoencoder:
    """Predicts hidden values by a small decoder; the encoder reads only visible positions.

    The encoder reads `visible(length)` of a row's positions that are not hidden. If a row has
    more of them the last are left out; if it has fewer, nothing sees the places that are left. The
    losses are the losses of `MaskedValues`, and so are `error` and `normalized_patches`.
    """

    encoder: encoder.EncoderConfig
    decoder: encoder.EncoderConfig
    share: float
    error: str = "squared"
    normalized_patches: bool = False

    @property
    def objectives(self) -> Mapping[str, float]:
        return {"value_loss": 1.0}

    @property
    def frozen(self) -> tuple[str, ...]:
        return ()

    def init(self, rngs: nnx.Rngs) -> MaskedAutoencoderModel:
        return MaskedAutoencoderModel(self.encoder, self.decoder, rngs=rngs)

    def visible(self, length: int) -> int:
        """Returns the number of positions that the encoder reads; the first, [CLS], is one."""
        return length - int((length - 1) * self.share)

    def weights(self, batch: base.Batch) -> dict[str, Float[Array, ""]]:
        return {"value_loss": masked_values.scored(batch).sum()}

    def predictions(
        self, model: MaskedAutoencoderModel, batch: base.Batch, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "batch length width"]:
        """Returns what the decoder predicts for every position."""
        embedded = model.encoder.embed(
            {name: it for name, it in batch.items() if name != "hidden"}, key=key
        )
        is_read = (batch["hidden"] == 0) & (batch["input_mask"] != 0)
        order = jnp.argsort(~is_read, axis=1, stable=True)
        chosen = order[:, : self.visible(order.shape[1])]
        gathered = jnp.take_along_axis(embedded, chosen[:, :, None], axis=1)
        is_real = jnp.take_along_axis(is_read, chosen, axis=1)
        visible = visibility.Visibility(is_real)
        states = model.encoder.contextualize(gathered, visible, key=key)[-1]
        places = jnp.argsort(order, axis=1)
        is_visible = is_read & (places < chosen.shape[1])
        inputs = model.decoder.embeddings(
            states, jnp.minimum(places, chosen.shape[1] - 1), is_visible
        )
        whole = visibility.Visibility(batch["input_mask"] != 0)
        decoder_key = layers.folded(key, DECODER_KEY)
        return model.value_head(model.decoder.contextualize(inputs, whole, key=decoder_key)[-1])

    def loss(
        self, model: MaskedAutoencoderModel, batch: base.Batch, *, key: PRNGKeyArray | None
    ) -> base.Means:
        """Returns value_loss, value_mae, mean_loss and mean_mae over hidden, observed values."""
        targets = model.encoder.embeddings.targets(batch)
        mean = value_baselines.mean_shown(targets, batch)
        if self.normalized_patches:
            targets, mean = masked_values.normalized(targets), jnp.zeros(())
        weights = masked_values.scored(batch)
        errors = self.predictions(model, batch, key=key) - targets
        means = masked_values.of_numbers(self.error, errors, weights)
        return means | masked_values.of_numbers(self.error, targets - mean, weights, "mean")

    def evaluate(self, model: MaskedAutoencoderModel, batch: base.Batch) -> base.Means:
        return self.loss(model, batch, key=None)

    def predict(self, model: MaskedAutoencoderModel, batch: base.Batch) -> dict[str, Array]:
        """Returns "values" [batch, length, width], in the units of the records."""
        predicted = self.predictions(model, batch)
        if not self.normalized_patches:
            return {"values": predicted}
        mean, deviation = masked_values.patch_moments(batch["values"])
        return {"values": predicted * deviation + mean}

    def train_flops(self, batch_size: int, length: int, predictions: int) -> float:
        """Three times the forward pass: the encoder of visible positions, the decoder of all."""
        del predictions
        width, size = self.encoder.value_width, self.decoder.hidden_size
        visible = self.visible(length)
        forward = self.encoder.forward_flops(visible) + self.decoder.forward_flops(length)
        outside = length * width * (self.encoder.hidden_size + size)
        outside += visible * self.encoder.hidden_size * size
        return 3.0 * batch_size * (forward + 2.0 * outside)


DECODER_KEY = 1 << 20  # folded into the key of the encoder, which has its layers' numbers


def of_options(sizes: encoder.EncoderConfig, options: Any) -> MaskedAutoencoder:
    """Returns the task that config.pretraining asks for."""
    decoder = dataclasses.replace(sizes, **{name: options.decoder[name] for name in DECODER_SIZES})
    return MaskedAutoencoder(
        sizes,
        decoder,
        share=options.masked_lm_prob,
        error=options.value_error,
        normalized_patches=options.normalized_patches,
    )


def faults(config: Any) -> Iterator[str]:
    """Yields a sentence for each option that does not fit this objective."""
    of_groups = [*(f"phases.{name}" for name in config.phases), "evaluation"]
    shares = [f"{group}.masked_lm_prob" for group in of_groups]
    shares += [f"{group}.final_masked_lm_prob" for group in of_groups[:-1]]
    one_share = "its share of masks is config.pretraining.masked_lm_prob alone"
    apart = "the encoder reads positions without the positions between them"
    needed: config_needs.Needs = {
        "model.embeddings": (("patches",), "it reads patches"),
        "pretraining.masking": (("dynamic",), "values are hidden as they are read"),
        "model.window": ((0,), apart),
        "model.left_to_right": ((False,), apart),
        **dict.fromkeys(shares, ((0,), one_share)),
    }
    yield from config_needs.faults(config, "masked_autoencoder", needed)
    if config.model.position_embedding == "rotary":
        option, must = "config.model.position_embedding", "another one with masked_autoencoder"
        yield str(faults_lib.wrong(option, "rotary", must, apart))
