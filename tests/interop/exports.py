"""Small random models of every family and head as exports, with what ours computes from them."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import models
from bertjax.convert import families, heads, names
from bertjax.models import parameters
from bertjax.tokenization import letters, library_tokenizer
from tests import small_byte_bpe, small_records
from tests.convert import outputs, weights
from tests.convert.families import test_families
from tests.data_pipelines import test_train_vocabulary

# Families whose models read text; the other has its tests in test_masked_autoencoder.
FAMILIES = [family for family in families.FAMILIES.values() if family.tokenizer.fields]
TEXT = "w1 w2 w3"
POSITIONS = 16


def make(family, head, **changes):
    """Returns a small random model of a family of weights with a head; `changes` are of sizes."""
    config, vocabulary = small(family, max_position_embeddings=POSITIONS)
    config = dataclasses.replace(config, **changes)
    made = weights.make(head, config=config, vocabulary=vocabulary)
    return dataclasses.replace(made, model_type=family.name)


def make_for_vectors(family, sentence, *, with_pooler=False):
    """Returns a small random model of a family that makes vectors as `sentence` says."""
    made = make(family, "none", max_position_embeddings=40, language_embeddings=0)
    params = {
        path: array
        for path, array in made.params.items()
        if with_pooler or not path.startswith("pooler")
    }
    return weights.for_sentences(dataclasses.replace(made, params=params), sentence)


def write_facts(made, directory: pathlib.Path) -> None:
    """Writes what `tests.readers.reader` expects of an export into its directory.

    The outputs are those for TEXT, in the first of the languages if there are any.
    """
    known = made.vocabulary
    ids = [known.cls_id, *known.encode(TEXT), known.sep_id]
    shape = (1, 1, len(ids)) if made.head == "multiple_choice" else (1, len(ids))
    ids = jnp.array(ids).reshape(shape)
    rows = {"input_ids": ids, "input_mask": jnp.ones_like(ids), "segment_ids": jnp.zeros_like(ids)}
    rows |= {"language": jnp.zeros(shape[:-1], np.int32)}
    table, pooler = names.of_head(made.family.tensors, made.head), made.config.pooler
    params = {  # some classes have no pooler
        path: array
        for path, array in made.params.items()
        if names.knows(table, path) and heads.is_of_class(path, made.head, pooler)
    }
    graphdef, params = outputs.module_of(dataclasses.replace(made, params=params))

    @jax.jit
    def compute(params):
        return outputs.outputs_of(made.head, parameters.merge(graphdef, params), rows)

    facts = {"head": made.head, "text": TEXT, "ids": ids.ravel().tolist()}
    facts["outputs"] = [np.asarray(array).tolist() for array in compute(params)]
    (directory / "expected.json").write_text(json.dumps(facts))


def small(family, *, max_position_embeddings: int):
    """Returns small sizes of a family of weights, and a vocabulary of its kind."""
    is_of_letters = family.tokenizer.fields["tokenizer_class"] == letters.CLASS
    is_roberta = family.traits.get("position_offset", 0) > 0
    vocabulary = small_byte_bpe.vocabulary() if is_roberta else small_records.vocabulary()
    if family.tokenizer.pieces:
        vocabulary = test_train_vocabulary.trained(
            small_records.WORDS, kind="sentencepiece", special_tokens=family.model_type, size=90
        )
    if is_of_letters:
        entries = letters.entries(letters.TEXT, "w123")
        vocabulary = library_tokenizer.of_letters(entries, {})
    config = models.EncoderConfig(
        vocab_size=vocabulary.vocab_size,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=max_position_embeddings,
        type_vocab_size=1 if is_roberta else 2,
    )
    # ALBERT of version 4 cannot compute with layers in a row.
    sizes = dataclasses.replace(test_families.sized(config, family), inner_group_num=1)
    return (
        dataclasses.replace(sizes, mask_id=vocabulary.mask_id) if is_of_letters else sizes
    ), vocabulary
