"""The outputs of our modules for weights of any head, in the order of transformers."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax import models
from bertjax.models import containers, decoder, parameters
from bertjax.tasks import next_token, pretraining, replaced_tokens

# Family -> its pair objective.
PAIRS = {"bert": "nsp", "albert": "sop"}


class PairModel(nnx.Module):
    def __init__(self, config, *, rngs):
        self.encoder = models.make_encoder(config, rngs=rngs)
        self.pooler = models.Pooler(config, rngs=rngs)
        self.nsp_head = models.PairHead(config, rngs=rngs)


def make_pooled(config, *, rngs):
    encoder = models.make_encoder(config, rngs=rngs)
    return containers.Dict(encoder=encoder, pooler=models.Pooler(config, rngs=rngs))


# Head -> our module; a family's pairs choose that of pretraining, and labels are counted.
MODULES = {
    "masked_lm": functools.partial(pretraining.PretrainingModel, pair_loss="none"),
    "causal_lm": next_token.NextTokenModel,
    "replaced_tokens": replaced_tokens.Discriminator,
    "none": models.make_bare,
    "pooled": make_pooled,
    "next_sentence": PairModel,
    "sequence_classification": models.SequenceClassifier,
    "token_classification": models.TokenClassifier,
    "question_answering": models.SpanClassifier,
    "multiple_choice": models.MultipleChoice,
}
LABELED = ("sequence_classification", "token_classification")


def module_of(read, **options):
    """The graph definition of our module for weights, and its parameters."""
    head = "pooled" if read.head == "none" and "pooler.dense.kernel" in read.params else read.head
    if head == "sequence_to_sequence":
        of_decoder = {"decoder_config": read.decoder, "shares": read.shares}
        make = functools.partial(decoder.EncoderDecoder, **of_decoder)
    elif head == "pretraining":
        pairs = PAIRS[read.family.model_type]
        make = functools.partial(pretraining.PretrainingModel, pair_loss=pairs)
    else:
        options |= {"num_labels": len(read.labels) or 1} if head in LABELED else {}
        make = functools.partial(MODULES[head], **options)
    graphdef, _ = parameters.split(nnx.eval_shape(lambda: make(read.config, rngs=nnx.Rngs(0))))
    return graphdef, parameters.nested(jax.tree.map(jnp.asarray, dict(read.params)))


def outputs_of(head, model, rows):
    """Returns the outputs for rows: logits, or states and what is pooled of them."""
    if head in ("sequence_classification", "token_classification", "multiple_choice"):
        return (model(rows),)
    if head == "question_answering":
        return tuple(model(rows))
    if head == "replaced_tokens":
        return (model.replaced_logits(rows),)
    if head == "sequence_to_sequence":  # a row is its own target
        return (
            model({**rows, "target_ids": rows["input_ids"], "target_mask": rows["input_mask"]}),
        )
    hidden = model.encoder(rows)
    if head == "causal_lm":
        return (model.next_logits(hidden),)
    if head == "next_sentence":
        return (model.nsp_head(model.pooler(hidden[:, 0])),)
    if head == "none":
        return (hidden, model.pooler(hidden[:, 0])) if hasattr(model, "pooler") else (hidden,)
    positions = jnp.broadcast_to(jnp.arange(hidden.shape[1]), hidden.shape[:2])
    logits = model.mlm_logits(hidden, positions)
    return (logits, model.pair_logits(hidden)) if head == "pretraining" else (logits,)
