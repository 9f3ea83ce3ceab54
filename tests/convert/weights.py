"""Random weights with every head, small, for the tests of conversion."""

import dataclasses

import numpy as np

from bertjax import models
from bertjax.convert import formats, heads, pretrained
from tests import small_records
from tests.convert import released_checkpoint

CONFIG = models.EncoderConfig(
    vocab_size=95,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=40,
)
LANGUAGES = ("de", "eo", "fr")
LABELS = {0: "no", 1: "yes", 2: "perhaps"}
NUM_LABELS = {"sequence_classification": 3, "token_classification": 3, "multiple_choice": 1}


def make(
    head="pretraining",
    *,
    config=CONFIG,
    vocabulary=None,
    generator=None,
    decoder=None,
    shares="embeddings",
    scale=0.2,
    norm_scale=0.0,
    seed=0,
):
    """A model with N(0, `scale`) everywhere, so that a mistake shows in the outputs.

    LayerNorm's scales are around `norm_scale`: 1 for a model whose answers are used. `generator` is
    the encoder of ELECTRA's, which it has then, too. A `decoder` of sequences has the sizes of the
    encoder, if no others are given.
    """
    rng = np.random.default_rng(seed)
    vocabulary = vocabulary or small_records.vocabulary()
    if vocabulary.vocab_size > config.vocab_size:
        config = dataclasses.replace(config, vocab_size=vocabulary.vocab_size)
    if head == "sequence_to_sequence":
        decoder = decoder or config
    of_decoder = {"decoder": decoder, "decoder_head": head, "shares": shares}
    shapes = pretrained.shapes(
        config, labels=NUM_LABELS.get(head, 2), generator=generator, **of_decoder
    )
    params = {
        path: rng.normal(norm_scale if path.endswith("scale") else 0.0, scale, shape)
        for path, shape in shapes.items()
        if heads.is_of_class(path, head, config.pooler) or (generator and heads.belongs(path, head))
    }
    return pretrained.Pretrained(
        config=config,
        params={path: array.astype(np.float32) for path, array in params.items()},
        vocabulary=vocabulary,
        head=head,
        labels=LABELS if NUM_LABELS.get(head) == 3 else {},
        source="a test",
        generator=generator,
        decoder=decoder,
    )


def in_languages(head="masked_lm", *, names=LANGUAGES):
    """A model with an embedding of each language, with LayerNorms of about 1."""
    config = dataclasses.replace(CONFIG, language_embeddings=len(names))
    made = make(head, config=config, norm_scale=1.0)
    return dataclasses.replace(made, languages=tuple(names))


def reordered(weights, names):
    """The same model with its languages in another order."""
    path = "encoder.embeddings.language.embedding"
    table = weights.params[path][[weights.languages.index(name) for name in names]]
    params = {**weights.params, path: table}
    return dataclasses.replace(weights, params=params, languages=tuple(names))


def for_sentences(weights, sentence, *, seed=0):
    """The model with choices for vectors, and random dense layers where the choices have any."""
    rng, size, params = np.random.default_rng(seed), weights.config.hidden_size, {}
    for number, projection in enumerate(sentence.projections if sentence else ()):
        kernel = rng.normal(0.0, size**-0.5, (size, projection.size))
        params[f"projections.{number}.kernel"] = kernel.astype(np.float32)
        size = projection.size
        if projection.use_bias:
            params[f"projections.{number}.bias"] = rng.normal(0.0, 0.2, size).astype(np.float32)
    return dataclasses.replace(weights, params={**weights.params, **params}, sentence=sentence)


def write(weights, directory, format):
    """Writes a format that is only read, too: "tf1", as its released code wrote it."""
    if format == "tf1":
        released_checkpoint.write(weights, directory)
    else:
        formats.write(weights, directory, format=format)


def assert_equal(got, wanted):
    """Bit for bit, and everything that goes with the weights."""
    assert got.params.keys() == wanted.params.keys()
    for path, array in wanted.params.items():
        assert got.params[path].dtype == np.float32
        assert got.params[path].tobytes() == array.tobytes(), path
    assert (got.config, got.head) == (wanted.config, wanted.head)
    assert (got.decoder, got.generator) == (wanted.decoder, wanted.generator)
    assert dict(got.labels) == dict(wanted.labels)
    assert got.vocabulary.describe() == wanted.vocabulary.describe()
