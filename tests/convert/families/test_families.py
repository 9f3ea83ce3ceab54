"""Claims about every family that stands in FAMILIES: its tables are whole and undo themselves."""

import dataclasses
import json
import math

import numpy as np
import pytest

from bertjax import models, recipes
from bertjax.convert import families, heads, huggingface_config, names, pretrained
from bertjax.models import decoder_sharing

FAMILIES = families.FAMILIES.values()
TABLES = {
    f"{family.name}-{format}": (family, table)
    for family in FAMILIES
    for format, table in (
        ("huggingface", family.tensors),
        ("tf1", family.released.names if family.released else ()),
    )
    if table
}


# Fields that only some families have, and layers in a row where a family allows them.
SIZES = {
    "albert": {"embedding_size": 8, "num_hidden_groups": 2, "inner_group_num": 2},
    "electra": {"embedding_size": 8},
    "modernbert": {"window": 3, "global_every": 2, "rotary_base": 160.0, "local_rotary_base": 9.0},
    "xlm": {"language_embeddings": 3},
    "deberta-v2": {"relative_buckets": 8, "relative_span": 40},
    "esm": {"mask_id": 5},
    "eurobert": {"num_key_value_heads": 1},
    "vit_mae": {"value_width": 12, "max_position_embeddings": 17},
}


def sized(config, family):
    """An encoder of the family."""
    config = dataclasses.replace(config, **family.traits, **SIZES.get(family.model_type, {}))
    return dataclasses.replace(config, **family.derived(dataclasses.asdict(config)))


def shapes_of(config, table, labels=None):
    """The shapes of a member that has all that the table names."""
    if any(entry.ours.startswith("mask_decoder.") for entry in table):
        config = dataclasses.replace(config, mask_decoder=True, replaced_head="with_first")
    has_generator = any(entry.ours.startswith("generator.") for entry in table)
    generator = dataclasses.replace(config, hidden_size=16) if has_generator else None
    has_decoder = any(entry.ours.startswith("decoder.") for entry in table)
    is_of_sequences = any(entry.ours.startswith("decoder.cross.") for entry in table)
    # That of sequences is as wide as its encoder.
    changes = {"num_hidden_layers": 3} if is_of_sequences else {"hidden_size": 16}
    decoder = dataclasses.replace(config, **changes) if has_decoder else None
    of_decoder = {
        "decoder": decoder,
        "decoder_head": "sequence_to_sequence" if is_of_sequences else "masked_autoencoder",
        "shares": decoder_sharing.sharing([entry.ours for entry in table]),
    }
    return pretrained.shapes(config, labels=labels, generator=generator, **of_decoder)


def heads_of(family, table, shapes, pooler):
    """The heads of which the table names all that they need: the released code has not all."""
    return [
        head
        for head in family.architectures
        if all(
            names.knows(names.of_head(table, head), path)
            for path in shapes
            if heads.is_required(path, head, pooler)
        )
    ]


def made(shapes, head, table, pooler):
    """All that the head may have and the family has a name for."""
    rng = np.random.default_rng(0)
    return {
        path: rng.normal(size=shape).astype(np.float32)
        for path, shape in shapes.items()
        if heads.is_required(path, head, pooler)
        or (heads.belongs(path, head) and names.knows(table, path))
    }


@pytest.mark.parametrize(("family", "table"), TABLES.values(), ids=TABLES)
def test_there_and_back_is_the_identity_bit_for_bit(tiny, family, table):
    config = sized(tiny, family)
    is_huggingface = table is family.tensors
    table = names.in_a_row(table, config.inner_group_num)
    shapes = shapes_of(config, table, labels=3)
    complete = heads_of(family, table, shapes, config.pooler)
    assert complete and (not is_huggingface or complete == [*family.architectures])
    for head in complete:
        of_head = names.of_head(table, head)
        params = made(shapes, head, of_head, config.pooler)
        theirs = names.fuse(names.to_theirs(params, of_head), family.fused)
        back = names.to_ours(names.unfuse(theirs, family.fused), of_head, shapes=shapes)
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


ENDS = {"decoder_start_token_id": 2, "eos_token_id": 3}  # which only some families read


def test_a_config_that_is_written_is_read_back():
    for family in FAMILIES:
        assert families.named(family.name) is family
        assert family.architectures.keys() <= heads.HEADS.keys()
        config = sized(models.EncoderConfig(num_hidden_layers=3), family)
        assert family.lacks(config) == []
        for head in family.architectures:
            has_decoder = family.nested or family.decoder
            smaller = dataclasses.replace(config, num_hidden_layers=1) if has_decoder else None
            fields = huggingface_config.to_json(config, family, head=head, decoder=smaller)
            fields = json.loads(json.dumps(fields | ENDS))
            read = huggingface_config.parse_config(fields, source="config.json")
            assert (read.family, read.encoder, read.head) == (family, config, head)
            assert smaller is None or read.decoder == smaller


# The config.json of a family as it was released, or as the hub has it.
RELEASED = {
    "albert": {
        "architectures": ["AlbertForMaskedLM"], "attention_probs_dropout_prob": 0,
        "bos_token_id": 2, "classifier_dropout_prob": 0.1, "down_scale_factor": 1,
        "embedding_size": 128, "eos_token_id": 3, "gap_size": 0, "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0, "hidden_size": 768, "initializer_range": 0.02,
        "inner_group_num": 1, "intermediate_size": 3072, "layers_to_keep": [],
        "max_position_embeddings": 512, "model_type": "albert", "net_structure_type": 0,
        "num_attention_heads": 12, "num_hidden_groups": 1, "num_hidden_layers": 12,
        "num_memory_blocks": 0, "pad_token_id": 0, "type_vocab_size": 2, "vocab_size": 30000,
    },
    "distilbert": {
        "activation": "gelu", "architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1,
        "dim": 768, "dropout": 0.1, "hidden_dim": 3072, "initializer_range": 0.02,
        "max_position_embeddings": 512, "model_type": "distilbert", "n_heads": 12, "n_layers": 6,
        "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False, "tie_weights_": True, "transformers_version": "4.10.0.dev0",
        "vocab_size": 30522,
    },
    "roberta": {
        "architectures": ["RobertaForMaskedLM"], "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "roberta",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
        "type_vocab_size": 1, "vocab_size": 50265,
    },
    "xlm": {
        "architectures": ["XLMWithLMHeadModel"], "asm": False, "attention_dropout": 0.1,
        "bos_index": 0, "causal": False, "dropout": 0.1, "emb_dim": 1024,
        "embed_init_std": 0.03125, "eos_index": 1, "gelu_activation": True,
        "id2lang": {"0": "ar", "1": "bg"}, "init_std": 0.02, "is_encoder": True, "lang_id": 0,
        "lang2id": {"ar": 0, "bg": 1}, "layer_norm_eps": 1e-12, "mask_index": 5,
        "mask_token_id": 0, "max_position_embeddings": 512, "max_vocab": 95000, "min_count": 0,
        "model_type": "xlm", "n_heads": 8, "n_langs": 15, "n_layers": 12, "n_words": 95000,
        "pad_index": 2, "same_enc_dec": True, "share_inout_emb": True,
        "sinusoidal_embeddings": False, "start_n_top": 5, "summary_activation": None,
        "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "first",
        "summary_use_proj": True, "unk_index": 3, "use_lang_emb": True,
    },
    "esm": {
        "architectures": ["EsmForMaskedLM"], "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": None, "emb_layer_norm_before": False, "esmfold_config": None,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_size": 320,
        "initializer_range": 0.02, "intermediate_size": 1280, "is_folding_model": False,
        "layer_norm_eps": 1e-05, "mask_token_id": 32, "max_position_embeddings": 1026,
        "model_type": "esm", "num_attention_heads": 20, "num_hidden_layers": 6,
        "pad_token_id": 1, "position_embedding_type": "rotary", "token_dropout": True,
        "torch_dtype": "float32", "transformers_version": "4.25.0.dev0", "use_cache": True,
        "vocab_list": None, "vocab_size": 33,
    },
    "nomic_bert": {
        "activation_function": "swiglu", "architectures": ["NomicBertForPreTraining"],
        "attn_pdrop": 0.0, "bos_token_id": None, "causal": False, "dense_seq_output": True,
        "embd_pdrop": 0.1, "eos_token_id": None, "fused_bias_fc": True,
        "fused_dropout_add_ln": True, "initializer_range": 0.02, "layer_norm_epsilon": 1e-12,
        "mlp_fc1_bias": False, "mlp_fc2_bias": False, "model_type": "nomic_bert", "n_embd": 768,
        "n_head": 12, "n_inner": 3072, "n_layer": 12, "n_positions": 2048,
        "pad_vocab_size_multiple": 64, "parallel_block": False, "parallel_block_tied_norm": False,
        "prenorm": False, "qkv_proj_bias": False, "reorder_and_upcast_attn": False,
        "resid_pdrop": 0.1, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False, "rotary_emb_scale_base": None,
        "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
        "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
        "summary_type": "cls_index", "summary_use_proj": True, "type_vocab_size": 2,
        "use_cache": True, "use_flash_attn": True, "use_rms_norm": False, "use_xentropy": True,
        "vocab_size": 30528,
    },
    "eurobert": {
        "architectures": ["EuroBertForMaskedLM"], "attention_bias": False,
        "attention_dropout": 0.0, "bos_token": "<|begin_of_text|>", "bos_token_id": 128000,
        "clf_pooling": "late", "eos_token": "<|end_of_text|>", "eos_token_id": 128001,
        "head_dim": 64, "hidden_act": "silu", "hidden_dropout": 0.0, "hidden_size": 768,
        "initializer_range": 0.02, "intermediate_size": 3072, "mask_token": "<|mask|>",
        "mask_token_id": 128002, "max_position_embeddings": 8192, "mlp_bias": False,
        "model_type": "eurobert", "num_attention_heads": 12, "num_hidden_layers": 12,
        "num_key_value_heads": 12, "pad_token": "<|end_of_text|>", "pad_token_id": 128001,
        "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 250000,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": False,
        "vocab_size": 128256,
    },
    "mpnet": {
        "architectures": ["MPNetForMaskedLM"], "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
        "layer_norm_eps": 1e-05, "max_position_embeddings": 514, "model_type": "mpnet",
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
        "relative_attention_num_buckets": 32, "vocab_size": 30527,
    },
    "deberta-v2": {
        "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
        "layer_norm_eps": 1e-07, "max_position_embeddings": 512, "max_relative_positions": -1,
        "model_type": "deberta-v2", "norm_rel_ebd": "layer_norm", "num_attention_heads": 12,
        "num_hidden_layers": 12, "pos_att_type": "p2c|c2p", "position_biased_input": False,
        "position_buckets": 256, "relative_attention": True, "share_att_key": True,
        "type_vocab_size": 0, "vocab_size": 128100,
    },
    "bert": {"model_type": "bert"},
    "electra": {"model_type": "electra", "embedding_size": 128, "hidden_size": 256},
}  # fmt: skip


def parse(name, **changes):
    return huggingface_config.parse_config(RELEASED[name] | changes, source="config.json")


def test_a_released_model_has_its_sizes_and_its_number_of_parameters(caplog):
    for name, head, count in (
        ("albert", "masked_lm", 11_221_680),
        ("distilbert", "masked_lm", 66_985_530),
        ("roberta", "masked_lm", 124_697_433),
        ("roberta", "none", 124_645_632),
        ("xlm", "masked_lm", 249_071_384),
        ("esm", "masked_lm", 7_512_474 - (6 * 20 + 1)),  # without the head of contacts
        ("mpnet", "masked_lm", 109_518_527),
    ):
        found = parse(name)
        assert caplog.messages == []
        assert (found.head, found.family) == ("masked_lm", families.named(name))
        shapes = pretrained.shapes(found.encoder)
        of_class = (shapes[path] for path in shapes if heads.is_of_class(path, head))
        assert sum(map(math.prod, of_class)) == count
    of_google = {"directionality": "bidi", "pooler_fc_size": 768, "pooler_num_fc_layers": 3}
    for entries, layers, count in (
        *((119_547, 12, 177_853_440), (21_128, 12, 102_267_648)),  # multilingual, Chinese
        (21_128, 3, 38_476_800),  # RBT3
    ):
        found = parse("bert", vocab_size=entries, num_hidden_layers=layers, **of_google)
        shapes = pretrained.shapes(found.encoder)
        bare = (shapes[path] for path in shapes if heads.is_of_class(path, "none"))
        assert sum(map(math.prod, bare)) == count and caplog.messages == []
    for fields in ({"use_lang_emb": False}, {"n_langs": 1}):  # as the models of 17 and 100
        assert parse("xlm", **fields).encoder.language_embeddings == 0
    recipe = recipes.load("roberta:base").model.to_dict() | {"dtype": "float32", "attention": "xla"}
    assert parse("roberta").encoder == models.EncoderConfig(**recipe)
    six = models.EncoderConfig(num_hidden_layers=6, type_vocab_size=0, pooler_act="relu")
    assert parse("distilbert").encoder == six
    bare = huggingface_config.parse_config({"model_type": "distilbert"}, source="config.json")
    assert bare.encoder == six
    assert parse("albert").encoder.hidden_act == "gelu_tanh"


HEADS = "num_attention_heads"


def test_a_config_that_is_computed_otherwise_is_refused():
    for name, changes, message in (
        ("bert", {"type_vocab_size": 0}, "type_vocab_size is 0; it must be at least 1"),
        ("distilbert", {"tie_weights_": False}, "tie_weights_ is False; only True is supported"),
        ("electra", {"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new'"),
        ("electra", {"summary_type": "mean"}, "summary_type is 'mean'"),
        ("roberta", {"pad_token_id": 3}, "is 3; only 1 is supported: positions begin behind"),
        ("roberta", {"hidden_act": "gelu_new"}, "hidden_act is 'gelu_new'; known are gelu"),
        ("roberta", {"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ("roberta", {"is_decoder": True}, "is_decoder is True"),
        ("esm", {"position_embedding_type": "absolute"}, "only ESM-2 is supported, not ESM-1"),
        ("esm", {"is_folding_model": True}, "is_folding_model is True"),
        ("xlm", {"causal": True}, "causal is True; only False is supported"),
        ("mpnet", {"relative_attention_num_buckets": 64}, "num_buckets is 64; only 32"),
        ("deberta-v2", {"conv_kernel_size": 3}, "conv_kernel_size is 3; only 0"),
        ("deberta-v2", {"pos_att_type": "p2c"}, "pos_att_type is 'p2c'; it must be 'p2c|c2p'"),
        ("deberta-v2", {"embedding_size": 128}, "embedding_size is 128; it must be 768"),
        ("nomic_bert", {"prenorm": True}, "prenorm is True; only False is supported"),
        ("nomic_bert", {"qkv_proj_bias": True}, "qkv_proj_bias is True; it must be False"),
        ("nomic_bert", {"activation_function": "gelu"}, "activation_function is 'gelu'"),
        ("nomic_bert", {"embd_pdrop": 0.0}, "embd_pdrop is 0.0; it must be resid_pdrop, 0.1"),
        ("nomic_bert", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ("eurobert", {"tie_word_embeddings": True}, "tie_word_embeddings is True; only False"),
        ("eurobert", {"mlp_bias": True}, "mlp_bias is True; only False"),
        ("eurobert", {"head_dim": 128}, "head_dim is 128; it must be hidden_size / num_att"),
        ("eurobert", {"num_key_value_heads": 5}, "num_key_value_heads is 5; it must be 0 or a div"),
        ("eurobert", {"num_key_value_heads": 0}, "num_key_value_heads is 0; it must be a divisor"),
        ("eurobert", {"rope_scaling": {"type": "linear"}}, "rope_type is 'linear'"),
        (
            *("eurobert", {"rope_scaling": {"rope_type": "yarn"}, "rope_parameters": {}}),
            "rope_type is 'yarn'",
        ),
        ("eurobert", {"rope_parameters": [5.0]}, "rope_parameters is \\[5.0\\]; it must be an obj"),
        ("eurobert", {"head_dim": "a", HEADS: "b"}, f"{HEADS} is 'b'; it must be a whole number"),
        ("xlm", {"gelu_activation": 1}, "gelu_activation is 1; it must be true or false"),
        ("xlm", {"emb_dim": True}, "emb_dim is True; it must be a whole number"),
    ):
        with pytest.raises(ValueError, match=message):
            parse(name, **changes)


def test_a_released_deberta_has_its_size_and_states_the_form_of_its_attention():
    shapes = pretrained.shapes(parse("deberta-v2").encoder)
    encoder = (shapes[path] for path in shapes if path.startswith("encoder."))
    assert sum(map(math.prod, encoder)) == 183_831_552
    listed = parse("deberta-v2", pos_att_type=["p2c", "c2p"], max_relative_positions=512)
    assert listed.encoder == parse("deberta-v2").encoder
    for name in ("relative_attention", "share_att_key", "norm_rel_ebd", "pos_att_type"):
        fields = {it: value for it, value in RELEASED["deberta-v2"].items() if it != name}
        with pytest.raises(ValueError, match=f"{name} is"):
            huggingface_config.parse_config(fields, source="config.json")


def test_both_dialects_of_nomic_bert_are_read():
    older = parse("nomic_bert").encoder
    shapes = pretrained.shapes(older)
    of_class = (shapes[path] for path in shapes if heads.is_of_class(path, "masked_lm"))
    assert sum(map(math.prod, of_class)) == 137_354_304
    assert (older.rotary_base, older.hidden_dropout_prob, older.layer_norm_eps) == (1e3, 0.1, 1e-12)
    unsaid = {**RELEASED["nomic_bert"]}
    del unsaid["rotary_emb_base"]
    read = huggingface_config.parse_config(unsaid, source="config.json")
    assert read.encoder.rotary_base == 10_000  # of contrastors; transformers has 1,000
    today = {"model_type": "nomic_bert", "hidden_size": 768, "hidden_dropout_prob": 0.1}
    for rotary in ({"rope_theta": 1e3}, {"rope_parameters": {"rope_theta": 1e3}}, {}):
        read = huggingface_config.parse_config(today | rotary, source="config.json")
        assert read.encoder == older
    # As nomic-embed-text-v1.5 has it, and its descendants.
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 500.0}
    fields = {"n_positions": 8192, "max_position_embeddings": 8192, "rope_parameters": dynamic}
    read = huggingface_config.parse_config(today | fields, source="config.json").encoder
    assert (read.max_position_embeddings, read.rotary_base) == (2048, 500.0)


EUROBERTS = {
    **{"num_attention_heads": 18, "num_key_value_heads": 6, "head_dim": None},
    **{"num_hidden_layers": 26, "hidden_size": 1152, "intermediate_size": 4096},
}
LARGEST = {"num_hidden_layers": 32, "hidden_size": 2304, "intermediate_size": 6144}


def test_the_released_euroberts_have_their_sizes_without_a_word(caplog):
    for changes, bare, count in (
        ({}, 211_766_016, 310_266_624),
        (EUROBERTS, 607_874_688, 755_625_600),
        (EUROBERTS | LARGEST, 2_107_590_912, 2_403_092_736),
    ):
        read = parse("eurobert", **changes)
        assert (read.encoder.rotary_base, read.encoder.layer_norm_eps) == (250_000, 1e-5)
        shapes = pretrained.shapes(read.encoder)
        for head, parameters in (("none", bare), ("masked_lm", count)):
            of_class = (shape for it, shape in shapes.items() if heads.is_required(it, head))
            assert sum(map(math.prod, of_class)) == parameters
    assert caplog.messages == []
    today = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}
    assert parse("eurobert", **today).encoder.rotary_base == 5e5
    unsaid = huggingface_config.parse_config({"model_type": "eurobert"}, source="config.json")
    assert unsaid.encoder == parse("eurobert", rope_theta=10_000).encoder


SHARED = {"embedding_size": 128, "num_hidden_groups": 1}
BYTES = {"position_offset": 2, "type_vocab_size": 1}
XLM = {"type_vocab_size": 0, "mlm_transform": False, "language_embeddings": 2}


def test_an_encoder_is_of_the_first_family_that_has_it_and_the_head():
    for name, fields, lacking in (
        ("bert", {"type_vocab_size": 0}, ["type_vocab_size 0"]),
        ("bert", {"pooler_act": "relu"}, ["pooler_act 'relu'"]),
        ("bert", SHARED, ["embedding_size 128", "num_hidden_groups 1"]),
        ("albert", {}, ["embedding_size 0", "num_hidden_groups 0"]),
        ("roberta", BYTES | {"hidden_act": "relu"}, ["hidden_act 'relu'"]),
        ("bert", {"language_embeddings": 2}, ["language_embeddings 2"]),
        ("xlm", XLM | {"intermediate_size": 4}, ["intermediate_size 4"]),
    ):
        assert families.named(name).lacks(models.EncoderConfig(**fields)) == lacking
    for fields, name in (
        *(({}, "bert"), (SHARED, "albert")),
        (BYTES | {"layer_norm_eps": 1e-5}, "roberta"),
        (XLM, "xlm"),
    ):
        assert families.holding(models.EncoderConfig(**fields)) is families.named(name)
    six = parse("distilbert").encoder
    assert families.holding(six, "masked_lm") is families.named("distilbert")
    nearest = r"nearest: DistilBERT has no class for the head 'pretraining' \(known: masked_lm,"
    with pytest.raises(ValueError, match=nearest):
        families.holding(six, "pretraining")
    config = models.EncoderConfig(embedding_size=128, dtype="bfloat16", remat="full")
    with pytest.raises(ValueError, match=r"nearest: BERT has no embedding_size 128[;.]"):
        families.holding(config)
