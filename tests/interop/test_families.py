"""Every family of weights in transformers with torch: outputs, losses, gradients and exports.

tests/convert/test_parity.py compares every head of BERT with recorded outputs, without torch.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import fill_mask, inference
from bertjax.convert import __main__ as program
from bertjax.convert import families, formats, heads, names, pretrained
from bertjax.models import parameters
from bertjax.tasks import base, replaced_tokens
from tests import lazily
from tests.convert import outputs, weights
from tests.interop import exports

torch = lazily.imported("torch")
transformers = lazily.imported("transformers")
reader = lazily.imported("tests.readers.reader")

pytestmark = pytest.mark.usefixtures("quick_runs", "one_device", "heard")

BATCH, LENGTH, LABELS, VOCAB_SIZE = 4, 11, 3, 61

SIZES = {
    **{"vocab_size": VOCAB_SIZE, "hidden_size": 15, "num_attention_heads": 3},
    **{"intermediate_size": 29, "num_hidden_layers": 2, "max_position_embeddings": 13},
}
MODERNBERT = {
    **{"vocab_size": VOCAB_SIZE, "hidden_size": 18, "num_attention_heads": 3},
    **{"intermediate_size": 13, "num_hidden_layers": 4, "max_position_embeddings": 64},
    **{"global_attn_every_n_layers": 3, "local_attention": 6, "pad_token_id": 0},
    **dict.fromkeys(("bos_token_id", "cls_token_id"), 1),
    **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    "attn_implementation": "eager",  # plain torch
}
# Family -> the fields of transformers' config class.
FIELDS = {
    "bert": SIZES,
    "albert": SIZES
    | {"embedding_size": 7, "num_hidden_layers": 3, "num_hidden_groups": 1, "inner_group_num": 1},
    "distilbert": {
        **{"vocab_size": VOCAB_SIZE, "dim": 15, "n_heads": 3, "n_layers": 3, "hidden_dim": 29},
        **{"max_position_embeddings": 13},
    },
    "electra": SIZES | {"embedding_size": 10},
    **dict.fromkeys(("modernbert", "modernbert-decoder"), MODERNBERT),
    "xlm": {
        **{"vocab_size": VOCAB_SIZE, "emb_dim": 15, "n_heads": 3, "n_layers": 2, "n_langs": 3},
        **{"max_position_embeddings": 13},
    },
    # The other kin of RoBERTa are computed by the same modules: EXPORTS.
    "roberta": SIZES
    | {"max_position_embeddings": 15, "type_vocab_size": 1, "layer_norm_eps": 1e-5},
    "esm": {
        **{"vocab_size": VOCAB_SIZE, "hidden_size": 18, "num_attention_heads": 3},
        **{"intermediate_size": 29, "num_hidden_layers": 2, "layer_norm_eps": 1e-5},
        **{"pad_token_id": 1, "mask_token_id": 9, "bos_token_id": 0, "eos_token_id": 2},
        **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
        **{"position_embedding_type": "rotary", "token_dropout": True},
        "emb_layer_norm_before": False,
    },
}
DEBERTA = {
    **{"position_buckets": 4, "relative_attention": True, "share_att_key": True},
    **{"norm_rel_ebd": "layer_norm", "pos_att_type": "p2c|c2p", "position_biased_input": False},
    **{"type_vocab_size": 0, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    **{"pooler_hidden_size": 15, "max_position_embeddings": 9},
}
FIELDS["deberta-v2"] = SIZES | DEBERTA
FIELDS["mpnet"] = SIZES | {
    **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    **{"max_position_embeddings": 15, "layer_norm_eps": 1e-5},
}
FIELDS["nomic_bert"] = SIZES | {"hidden_size": 18, "attn_implementation": "eager"}
FIELDS["eurobert"] = SIZES | {
    **{"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1, "mask_token_id": 2},
    **{"rope_parameters": {"rope_type": "default", "rope_theta": 250.0}},
    "attn_implementation": "eager",
}
# ALBERT with several groups, layers in a row, embeddings as wide as the layers, erf.
GROUPS = {
    **{"embedding_size": 15, "num_hidden_layers": 4, "num_hidden_groups": 2},
    **{"inner_group_num": 2, "hidden_act": "gelu"},
}
# The heads for which a family has names, or layers, of its own; each head in one family at least.
HEADS = {
    "bert": ("pretraining",),
    "albert": ("pretraining", "masked_lm", "none", "sequence_classification"),
    "distilbert": ("masked_lm", "none", "sequence_classification", "multiple_choice"),
    "electra": (
        *("replaced_tokens", "masked_lm", "none", "sequence_classification"),
        *("token_classification", "multiple_choice"),
    ),
    "modernbert": ("masked_lm", "none", "sequence_classification", "question_answering"),
    "modernbert-decoder": ("causal_lm", "none"),
    "mpnet": (
        *("masked_lm", "none", "sequence_classification", "token_classification"),
        *("question_answering", "multiple_choice"),
    ),
    **dict.fromkeys(
        ("nomic_bert", "eurobert"),
        ("masked_lm", "none", "sequence_classification", "token_classification"),
    ),
    "roberta": ("masked_lm", "none", "sequence_classification", "token_classification"),
    "xlm": ("masked_lm", "none", "token_classification", "question_answering"),
    "esm": ("masked_lm", "none", "sequence_classification", "token_classification"),
    "deberta-v2": (
        *("masked_lm", "none", "sequence_classification", "token_classification"),
        *("question_answering", "multiple_choice"),
    ),
}
CASES = [
    *((name, head, {}) for name, heads in HEADS.items() for head in heads),
    ("albert", "pretraining", GROUPS),
    ("distilbert", "none", {"sinusoidal_pos_embds": True}),
    ("electra", "replaced_tokens", {"embedding_size": 15}),
    ("modernbert", "masked_lm", {"local_attention": 1}),  # a token sees itself alone
    ("modernbert", "masked_lm", {"classifier_activation": "silu"}),  # as of FlexBERT
    ("modernbert", "none", {"global_attn_every_n_layers": 1}),  # no window
    (
        *("modernbert", "sequence_classification"),
        {"classifier_pooling": "mean", "classifier_activation": "silu"},
    ),
    ("modernbert-decoder", "causal_lm", {"local_attention": 2}),  # the same
    ("modernbert-decoder", "causal_lm", {"global_attn_every_n_layers": 1}),  # no window
    ("deberta-v2", "masked_lm", {"legacy": False}),
    ("deberta-v2", "none", {"type_vocab_size": 2, "max_position_embeddings": 13}),
    ("nomic_bert", "masked_lm", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    *(
        ("eurobert", "sequence_classification", {"classifier_pooling": pooling})
        for pooling in ("bos", "mean")
    ),
    ("eurobert", "masked_lm", {"num_key_value_heads": 4, "hidden_act": "gelu"}),
    ("eurobert", "none", {"num_key_value_heads": 1}),
    ("xlm", "masked_lm", {"use_lang_emb": False, "gelu_activation": False}),
]
IDS = [f"{name}-{head}{'-other' if changes else ''}" for name, head, changes in CASES]
# Family -> transformers' names of the labels and logits of its pairs.
PAIRS = {
    "bert": ("next_sentence_label", "seq_relationship_logits"),
    "albert": ("sentence_order_label", "sop_logits"),
}
ENDS = {"start_positions": "start_logits", "end_positions": "end_logits"}
# Ours differ from theirs by at most this share of a tensor's largest entry; by the second if the
# tensor is zero but for rounding. .ci/in_double.py has smaller ones.
SHARE, ZERO = 1e-5, 5e-7


def of_torch(name, head, folder, **changes):
    """A random model of theirs with weights far from zero, saved; and what we read of it."""
    labels = {"num_labels": LABELS} if heads.HEADS[head].has_labels else {}
    config = transformers.CONFIG_MAPPING[name](**FIELDS[name] | changes, **labels)
    model = getattr(transformers, families.named(name).architectures[head])(config)
    torch.manual_seed(7)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape) * 0.2
            is_norm = path.lower().endswith("norm.weight")
            is_fitted_later = path.startswith(("esm.contact_head", "contact_head"))
            parameter.copy_(0 * noise if is_fitted_later else 1 + noise if is_norm else noise)
    model.save_pretrained(folder)
    read = formats.read(folder)
    assert (read.head, read.unused, read.family.model_type) == (head, (), name)
    return model.eval(), read


def assert_close(ours, theirs, name=""):
    """Ours are theirs but for rounding."""
    atol = max(SHARE * np.abs(theirs).max(), ZERO)
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=atol, err_msg=name)


def make_rows(head="none", *, padding=0):
    """Rows of several lengths; for a choice between two there are two in a row."""
    rng = np.random.default_rng(3)
    outer = (BATCH, 2) if head == "multiple_choice" else (BATCH,)
    lengths = rng.integers(4, LENGTH, (*outer, 1))
    lengths.flat[0] = LENGTH
    mask = (np.arange(LENGTH) < lengths).astype(np.int32)
    ids = rng.integers(padding + 1, VOCAB_SIZE, mask.shape)
    ids = np.where(mask != 0, ids, padding).astype(np.int32)
    segments = rng.integers(0, 2, mask.shape) * mask
    languages = rng.integers(0, 3, mask.shape, dtype=np.int32)
    rows = {"input_ids": ids, "input_mask": mask, "segment_ids": segments}
    return rows | {"language": languages}


def their_inputs(rows, read):
    """The rows as transformers names them; not all of its models have segments or languages."""
    theirs = {"input_ids": rows["input_ids"], "attention_mask": rows["input_mask"]}
    if read.config.type_vocab_size > 1:
        theirs["token_type_ids"] = rows["segment_ids"]
    if read.config.language_embeddings:
        theirs["langs"] = rows["language"]
    return {name: torch.tensor(array) for name, array in theirs.items()}


def make_labels(name, head, mask):
    """Labels as transformers takes them, -100 where there are none."""
    rng = np.random.default_rng(4)
    match head:
        case "pretraining" | "masked_lm" | "causal_lm":
            drawn = rng.integers(1, VOCAB_SIZE, mask.shape)
            labels = np.where((rng.random(mask.shape) < 0.4) & (mask != 0), drawn, -100)
            pairs = {PAIRS[name][0]: np.array([0, 1, 1, 0])} if head == "pretraining" else {}
            return {"labels": labels} | pairs
        case "replaced_tokens":
            return {"labels": rng.integers(0, 2, mask.shape).astype(np.float32)}
        case "token_classification":
            return {"labels": np.where(mask != 0, rng.integers(0, LABELS, mask.shape), -100)}
        case "question_answering":
            return dict(zip(ENDS, np.array([[1, 2, 0, 3], [3, 2, 1, 3]]), strict=True))
    return {"labels": rng.integers(0, 2 if head == "multiple_choice" else LABELS, BATCH)}


def our_logits(name, head, model, rows):
    """Our logits by the names of transformers' labels for them."""
    labels = ENDS if head == "question_answering" else ("labels", *PAIRS.get(name, ())[:1])
    return dict(zip(labels, outputs.outputs_of(head, model, rows), strict=False))


def their_logits(name, head, out):
    """Theirs by the same names."""
    if head == "pretraining":
        return {"labels": out.prediction_logits, PAIRS[name][0]: out[PAIRS[name][1]]}
    if head == "question_answering":
        return {labels: out[logits] for labels, logits in ENDS.items()}
    return {"labels": out.logits[:, :-1] if head == "causal_lm" else out.logits}


def our_loss(head, logits, labels, mask):
    """The loss of labels as transformers takes them."""
    if head == "replaced_tokens":
        real = mask.astype(jnp.float32)
        scores = replaced_tokens._scores(logits["labels"], labels["labels"] == 1, real, None)
        return scores["discriminator_loss"].total / real.sum()
    total = 0.0
    for name, array in labels.items():
        array = array[:, 1:] if head == "causal_lm" else array
        scored = (array >= 0).astype(jnp.float32)
        losses = base.cross_entropy(logits[name], jnp.maximum(array, 0))
        total += (losses * scored).sum() / scored.sum()
    return total / (2 if head == "question_answering" else 1)


def assert_state(ours, theirs):
    """Every parameter of two models of transformers is the same, to the bit."""
    ours, theirs = ours.state_dict(), theirs.state_dict()
    assert ours.keys() == theirs.keys()
    for name in ours:
        # Angles are computed in float32 there, in float64 here.
        slack = 1e-6 if name.endswith("inv_freq") else 0
        torch.testing.assert_close(ours[name], theirs[name], rtol=slack, atol=0)


@pytest.mark.parametrize(("name", "head", "changes"), CASES, ids=IDS)
def test_outputs_losses_and_gradients_are_theirs(tmp_path, name, head, changes):
    theirs, read = of_torch(name, head, tmp_path / "hf", **changes)
    formats.write(read, tmp_path / "again", format="huggingface")
    again = type(theirs).from_pretrained(tmp_path / "again")
    if changes.get("legacy", True):  # DeBERTa's older names of the head, which are written
        assert_state(theirs, again)
    for field in ("classifier_pooling", "classifier_activation"):  # of ModernBERT, EuroBERT
        assert getattr(again.config, field, None) == getattr(theirs.config, field, None)
    pooling = {"pooling": read.pooling} if head == "sequence_classification" else {}
    graphdef, params = outputs.module_of(read, **pooling)
    rows = make_rows(head, padding=theirs.config.pad_token_id)
    # In a window a padding sees other padding there and nothing here.
    pads_differ = read.config.window != 0
    # XLM's padding is zero after each layer; DeBERTa's sees all places there.
    pads_differ |= name in ("xlm", "deberta-v2")
    if head == "causal_lm":  # whose padding sees what is on its left
        rows["input_ids"] = np.maximum(rows["input_ids"], 1)
        rows["input_mask"] = np.ones_like(rows["input_mask"])
    if pads_differ and head == "question_answering":  # whose softmax there is over padding, too
        rows["input_mask"] = np.ones_like(rows["input_mask"])
    mask, ours = rows["input_mask"], jax.tree.map(jnp.asarray, rows)
    if head == "none":
        out = theirs(**their_inputs(rows, read), output_hidden_states=True)

        @jax.jit
        def run(params):
            return parameters.merge(graphdef, params).encoder.hidden_states(ours)

        states = run(params)
        expected = [state.detach().numpy() for state in out.hidden_states]
        for mine, state in zip(states, expected, strict=True):
            shown = mask != 0 if pads_differ else ...
            assert_close(np.asarray(mine)[shown], state[shown])
        if "pooler_output" in out:
            pooled = out.pooler_output.detach().numpy()
            pooler = parameters.merge(graphdef, params).pooler
            assert_close(pooler(states[-1][:, 0]), pooled)
        return
    labels = make_labels(name, head, mask)
    tensors = {label: torch.tensor(array) for label, array in labels.items()}
    out = theirs(**their_inputs(rows, read), **tensors)
    out.loss.backward()

    def objective(params):
        logits = our_logits(name, head, parameters.merge(graphdef, params), ours)
        return our_loss(head, logits, jax.tree.map(jnp.asarray, labels), ours["input_mask"]), logits

    (loss, logits), gradient = jax.jit(jax.value_and_grad(objective, has_aux=True))(params)
    assert_close(loss, out.loss.item())
    for label, expected in their_logits(name, head, out).items():
        is_by_token = pads_differ and logits[label].shape[:2] == mask.shape
        shown = mask != 0 if is_by_token else ...
        assert_close(np.asarray(logits[label])[shown], expected.detach().numpy()[shown], label)
    table = names.in_a_row(names.of_head(read.family.tensors, head), read.config.inner_group_num)
    tied = read.family.tied  # some classes name the copy
    (word_table,) = names.to_theirs({"encoder.embeddings.word.embedding": np.zeros(1)}, table)
    of_theirs = {
        read.family.spelling(tied.get(path, path)): it.grad.numpy()
        for path, it in theirs.named_parameters()
        if it.grad is not None
    }
    of_theirs = names.unfuse(of_theirs, read.family.fused)
    gradients = names.to_theirs(parameters.flat(gradient), table)
    assert gradients.keys() == of_theirs.keys()
    for path, array in gradients.items():
        expected = of_theirs[path]
        is_words, padding = path == word_table, theirs.config.pad_token_id
        if is_words and head == "question_answering" and not expected[padding].any():
            # torch gives the row of padding_idx no gradient of its lookup.
            array, expected = (np.delete(it, padding, axis=0) for it in (array, expected))
        assert_close(array, expected, path)
        if path == "roberta.embeddings.position_embeddings.weight":  # behind the id of padding
            assert (array[:2] == 0).all() and (np.abs(array[2 : 2 + LENGTH]) > 0).all()


EXPORTS = [(it.name, head) for it in exports.FAMILIES for head in it.architectures]


@pytest.mark.parametrize(("name", "head"), EXPORTS)
def test_an_export_loads_without_a_word_and_comes_back(tmp_path, capfd, name, head):
    family = families.named(name)
    made = exports.make(family, head)
    formats.write(made, tmp_path / "hf", format="huggingface")
    card = (tmp_path / "hf" / "README.md").read_text()
    assert f" {family.title} with" in card
    exports.write_facts(made, tmp_path / "hf")
    capfd.readouterr()
    model, tokenizer, complaints = reader.load(tmp_path / "hf")
    assert complaints == [] and capfd.readouterr() == ("", "")
    assert type(model).__name__ == family.architectures[head]
    # BART has three by itself.
    has_labels = heads.HEADS[head].has_labels or name == "bart"
    assert model.config.num_labels == (LABELS if has_labels else 2)
    if heads.HEADS[head].has_labels:
        assert model.config.id2label == weights.LABELS
    more = made.config.position_offset if name != "bart" else 0  # it counts positions, not rows
    sizes = getattr(model.config, "encoder", model.config)
    assert sizes.max_position_embeddings == exports.POSITIONS + more
    assert tokenizer.model_max_length == exports.POSITIONS
    has_segments = name in (
        *("bert", "albert", "electra", "bert-encoder-decoder", "nomic_bert", "deberta-v2"),
    )
    assert ("token_type_ids" in tokenizer("w1", "w2")) == has_segments
    model.save_pretrained(tmp_path / "again")
    tokenizer.save_pretrained(tmp_path / "again")
    again = formats.read(tmp_path / "again")
    # Some of their classes without a head have no pooler.
    table = names.of_head(family.tensors, head)
    wanted = {path: array for path, array in made.params.items() if names.knows(table, path)}
    lost = {path.split(".")[0] for path in made.params.keys() - wanted.keys()}
    assert lost <= ({"pooler"} if head == "none" else set())
    assert again.vocabulary.encode(exports.TEXT) == made.vocabulary.encode(exports.TEXT)
    assert again.vocabulary.special_ids == made.vocabulary.special_ids
    # Theirs saves a SentencePiece model as tokenizer.json alone.
    known = again.vocabulary if family.tokenizer.pieces else made.vocabulary
    weights.assert_equal(again, dataclasses.replace(made, params=wanted, vocabulary=known))


# Format of the weights, their head, --head. Which parts are chosen: tests/convert.
CHOICES = [
    ("huggingface", "pretraining", "none"),
    ("huggingface", "multiple_choice", "none"),
    ("tf1", "sequence_classification", "token_classification"),
]


@pytest.mark.parametrize(("format", "head", "chosen"), CHOICES)
def test_a_chosen_head_loads_without_a_word(tmp_path, format, head, chosen):
    made = exports.make(families.named("bert"), head)
    labels = made.labels if format == "huggingface" else {}  # the released code has none
    weights.write(dataclasses.replace(made, labels=labels), tmp_path / "source", format)
    program.convert(tmp_path / "source", tmp_path / "hf", head=chosen)
    exports.write_facts(pretrained.select(made, chosen), tmp_path / "hf")
    assert reader.load(tmp_path / "hf")[2] == []


def test_classes_with_fewer_parts_find_theirs_and_name_what_they_lack(tmp_path, heard):
    for head, name in (
        *(("pretraining", "AutoModelForMaskedLM"), ("pretraining", "AutoModel")),
        *(("next_sentence", "AutoModel"), ("sequence_classification", "AutoModel")),
        *(("multiple_choice", "AutoModel"), ("masked_lm", "AutoModel")),
    ):
        formats.write(weights.make(head), tmp_path / "hf", format="huggingface", overwrite=True)
        heard.clear()
        _, report = getattr(transformers, name).from_pretrained(
            tmp_path / "hf", output_loading_info=True
        )
        assert not report["mismatched_keys"]
        assert bool(report["missing_keys"]) == (head == "masked_lm")
        if head == "masked_lm":
            assert "pooler.dense.weight" in heard.text and "MISSING" in heard.text
        elif (head, name) == ("pretraining", "AutoModel"):
            assert "cls.predictions.bias" in heard.text and "MISSING" not in heard.text
    bare = pretrained.select(weights.make("masked_lm"), "none")
    formats.write(bare, tmp_path / "bare", format="huggingface")
    heard.clear()
    transformers.AutoModel.from_pretrained(tmp_path / "bare", add_pooling_layer=False)
    assert heard.messages == []


def test_masks_are_filled_with_the_same_probabilities(tmp_path):
    made = weights.make("masked_lm", norm_scale=1.0)
    formats.write(made, tmp_path / "run", format="bertjax")
    program.convert(tmp_path / "run", tmp_path / "hf", license="mit")
    text = "W3 w4, [MASK] w\u00e96 w7 [MASK]!"
    ours = fill_mask.fill_mask(inference.load(tmp_path / "run"), text)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    model = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "hf")
    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**inputs).logits[0].softmax(-1)
    masks = torch.nonzero(inputs["input_ids"][0] == tokenizer.mask_token_id).flatten()
    assert len(masks) == len(ours) == 2
    for position, candidates in zip(masks, ours, strict=True):
        best = probabilities[position].topk(5)
        assert tokenizer.convert_ids_to_tokens(best.indices) == [it["token"] for it in candidates]
        wanted = [candidate["probability"] for candidate in candidates]
        np.testing.assert_allclose(best.values.numpy(), wanted, atol=1e-4)


def test_both_dialects_of_modernberts_config_are_written(tmp_path):
    made = exports.make(families.named("modernbert"), "masked_lm")
    angles = {"rotary_base": 160_000.0, "local_rotary_base": 10_000.0}
    config = dataclasses.replace(made.config, num_hidden_layers=4, window=5, **angles)

    def written(config):
        given = weights.make("masked_lm", config=config, vocabulary=made.vocabulary)
        formats.write(given, tmp_path / "hf", format="huggingface", overwrite=True)
        assert formats.read(tmp_path / "hf").config == config
        return json.loads((tmp_path / "hf" / "config.json").read_text())

    fields = written(config)
    assert fields["layer_types"] == ["full_attention", "sliding_attention"] * 2
    assert (fields["global_attn_every_n_layers"], fields["local_attention"]) == (2, 10)
    assert fields["rope_parameters"]["full_attention"]["rope_theta"] == 160_000.0
    assert (fields["global_rope_theta"], fields["local_rope_theta"]) == (160_000.0, 10_000.0)
    # text-embeddings-inference requires these fields.
    wanted = {"initializer_cutoff_factor", "norm_bias", "pad_token_id", "cls_token_id"}
    assert wanted | {"bos_token_id", "eos_token_id", "sep_token_id"} <= fields.keys()
    whole = written(dataclasses.replace(config, window=0, global_every=1))
    assert whole["layer_types"] == ["full_attention"] * 4
