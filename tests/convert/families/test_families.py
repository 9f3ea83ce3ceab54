"""Claims about every family that stands in FAMILIES: its tables are whole and undo themselves."""

import dataclasses
import json

import numpy as np
import pytest

from bertjax import models
from bertjax.convert import families, huggingface_config, names, pretrained
from bertjax.convert.families import bert

FAMILIES = families.FAMILIES.values()
TABLES = {
    f"{family.model_type}-{format}": (family, table)
    for family in FAMILIES
    for format, table in (
        ("huggingface", family.tensors),
        ("tf1", family.released.names if family.released else ()),
    )
    if table
}


# What a family says of sizes that others leave open, and layers in a row where it has them.
SIZES = {
    "albert": {"embedding_size": 8, "num_hidden_groups": 2, "inner_group_num": 2},
    "electra": {"embedding_size": 8},
    "modernbert": {"window": 3, "global_every": 2, "rotary_base": 160.0, "local_rotary_base": 9.0},
}


def sized(config, family):
    """An encoder of the family."""
    return dataclasses.replace(config, **family.traits, **SIZES.get(family.model_type, {}))


def shapes_of(config, table, labels=None):
    """The shapes of a member that has all that the table names."""
    has_generator = any(entry.ours.startswith("generator.") for entry in table)
    generator = dataclasses.replace(config, hidden_size=16) if has_generator else None
    return pretrained.shapes(config, labels=labels, generator=generator)


def heads_of(family, table, shapes, pooler):
    """The heads of which the table names all that they need: the released code has not all."""
    return [
        head
        for head in family.architectures
        if all(
            names.knows(names.of_head(table, head), path)
            for path in shapes
            if pretrained.is_required(path, head, pooler)
        )
    ]


def made(shapes, head, table, pooler):
    """All that the head may have and the family has a name for."""
    rng = np.random.default_rng(0)
    return {
        path: rng.normal(size=shape).astype(np.float32)
        for path, shape in shapes.items()
        if pretrained.is_required(path, head, pooler)
        or (pretrained.belongs(path, head) and names.knows(table, path))
    }


@pytest.mark.parametrize(("family", "table"), TABLES.values(), ids=TABLES)
def test_there_and_back_is_the_identity_bit_for_bit(tiny, family, table):
    config = sized(tiny, family)
    is_huggingface = table is family.tensors
    table = names.in_a_row(table, config.inner_group_num)
    shapes = shapes_of(config, table, labels=3)
    heads = heads_of(family, table, shapes, config.pooler)
    assert len(heads) > 1 and (not is_huggingface or heads == [*family.architectures])
    for head in heads:
        of_head = names.of_head(table, head)
        params = made(shapes, head, of_head, config.pooler)
        theirs = names.joined(names.to_theirs(params, of_head), family.fused)
        back = names.to_ours(names.parted(theirs, family.fused), of_head, shapes=shapes)
        assert params.keys() == back.keys()
        for path, array in params.items():
            assert array.tobytes() == back[path].tobytes()
            assert back[path].flags.c_contiguous


@pytest.mark.parametrize(("family", "table"), TABLES.values(), ids=TABLES)
def test_every_name_stands_once_for_a_head_on_either_side(tiny, family, table):
    shapes = shapes_of(sized(tiny, family), table)
    for head in family.architectures:
        of_head = names.of_head(table, head)
        for side in ("theirs", "ours"):
            assert len({getattr(entry, side) for entry in of_head}) == len(of_head)
        # Nothing is named that no model has: a misspelt path would never be found.
        paths = {entry.ours.format(layer=1) for entry in of_head}  # not all have a first one
        assert paths <= shapes.keys(), paths - shapes.keys()


@pytest.mark.parametrize("family", FAMILIES, ids=families.FAMILIES)
def test_a_config_that_is_written_is_read_back(family):
    assert families.named(family.model_type) is family
    assert family.architectures.keys() <= pretrained.PARTS.keys()
    config = sized(models.EncoderConfig(num_hidden_layers=3), family)
    assert family.lacks(config) == []
    for head in family.architectures:
        fields = json.loads(json.dumps(huggingface_config.to_json(config, family, head=head)))
        read = huggingface_config.parse_config(fields, source="config.json")
        assert (read.family, read.encoder, read.head) == (family, config, head)


def test_an_encoder_that_none_has_is_told_by_what_sets_it_apart():
    config = models.EncoderConfig(embedding_size=128, dtype="bfloat16", remat="full")
    with pytest.raises(ValueError, match=r"nearest: BERT has no embedding_size 128[;.]"):
        families.holding(config)


@pytest.mark.parametrize(("field", "value"), [("type_vocab_size", 0), ("pooler_act", "relu")])
def test_what_no_bert_is_is_not_written_as_one(field, value):
    config = models.EncoderConfig(**{field: value})
    assert bert.FAMILY.lacks(config) == [f"{field} {value!r}"]


def test_a_bert_without_segments_is_refused():
    with pytest.raises(ValueError, match="type_vocab_size is 0; it must be at least 1"):
        huggingface_config.parse_config({"type_vocab_size": 0}, source="config.json")
