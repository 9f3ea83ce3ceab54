"""Claims about reading checkpoints of the released TensorFlow 1 code.

The checkpoints are made here as the released code made its own: variables in a graph, under its
names, saved by tf.train.Saver.
"""

import dataclasses
import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from etils import epath

from bertjax.convert import names, pretrained, tensorflow1, workdir
from bertjax.convert.families import bert
from bertjax.data import records
from bertjax.models import EncoderConfig
from bertjax.tokenization import tokenizer
from tests.convert import released_checkpoint

HIDDEN, INTERMEDIATE, VOCABULARY, LAYERS = 4, 6, 12, 2
CONFIG = EncoderConfig(
    vocab_size=VOCABULARY,
    hidden_size=HIDDEN,
    num_hidden_layers=LAYERS,
    num_attention_heads=2,
    intermediate_size=INTERMEDIATE,
    max_position_embeddings=8,
)
INDEX, DATA = "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ENTRIES = (*SPECIAL, "the", "court", "##s", "of", "law", "held")
LAYER_1 = "bert/encoder/layer_1"
POOLER_BIAS = "bert/pooler/dense/bias"
QUERY = f"{LAYER_1}/attention/self/query/kernel"


def released_shapes():
    """The variables of run_pretraining.py, written out by hand."""
    shapes = {
        "bert/embeddings/word_embeddings": (VOCABULARY, HIDDEN),
        "bert/embeddings/position_embeddings": (8, HIDDEN),
        "bert/embeddings/token_type_embeddings": (2, HIDDEN),
        "cls/predictions/output_bias": (VOCABULARY,),
        "cls/seq_relationship/output_weights": (2, HIDDEN),
        "cls/seq_relationship/output_bias": (2,),
    }
    dense = {"bert/pooler/dense": (HIDDEN, HIDDEN)}
    dense["cls/predictions/transform/dense"] = (HIDDEN, HIDDEN)
    norms = ["bert/embeddings/LayerNorm", "cls/predictions/transform/LayerNorm"]
    for layer in range(LAYERS):
        scope = f"bert/encoder/layer_{layer}"
        for name in ("self/query", "self/key", "self/value", "output/dense"):
            dense[f"{scope}/attention/{name}"] = (HIDDEN, HIDDEN)
        dense[f"{scope}/intermediate/dense"] = (HIDDEN, INTERMEDIATE)
        dense[f"{scope}/output/dense"] = (INTERMEDIATE, HIDDEN)
        norms += [f"{scope}/attention/output/LayerNorm", f"{scope}/output/LayerNorm"]
    for name, shape in dense.items():
        shapes |= {f"{name}/kernel": shape, f"{name}/bias": shape[1:]}
    for name in norms:
        shapes |= {f"{name}/gamma": (HIDDEN,), f"{name}/beta": (HIDDEN,)}
    return shapes


def released_variables():
    rng = np.random.default_rng(0)
    shapes = released_shapes()
    return {name: rng.normal(size=shapes[name]).astype(np.float32) for name in sorted(shapes)}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint as released; tests copy what they change."""
    directory = tmp_path_factory.mktemp("released") / "model"
    return released(directory, released_variables())


def released(directory, variables):
    directory.mkdir()
    released_checkpoint.save(variables, directory / "bert_model.ckpt")
    fields = {name: getattr(CONFIG, name) for name in bert.RELEASED.defaults}
    write_config(directory, vocab_size=VOCABULARY, **fields)
    (directory / "vocab.txt").write_text("".join(f"{entry}\n" for entry in ENTRIES))
    return directory


def write_config(directory, **fields):
    path = directory / "bert_config.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(known | fields))


def assert_same(got, wanted):
    assert got.keys() == wanted.keys()
    for name in wanted:
        assert got[name].dtype == wanted[name].dtype, name
        assert got[name].shape == wanted[name].shape, name
        assert got[name].tobytes() == wanted[name].tobytes(), name


def test_a_released_checkpoint_is_read_whole(saved):
    model = tensorflow1.read(saved)
    assert model.config == CONFIG
    assert model.head == "pretraining"
    assert model.unused == ()
    assert len(model.params) == len(released_shapes())
    assert isinstance(model.vocabulary, tokenizer.WordPieceTokenizer)
    assert model.vocabulary.vocabulary == ENTRIES
    variables = released_variables()
    for theirs, ours in SAME.items():
        np.testing.assert_array_equal(model.params[ours], variables[theirs], err_msg=theirs)
    # The released code multiplies with transpose_b; its kernels lie as ours do.
    kernel = model.params["nsp_head.dense.kernel"]
    np.testing.assert_array_equal(kernel, variables["cls/seq_relationship/output_weights"].T)
    # The names of both formats are those of one model.
    torch = names.to_theirs(model.params, bert.TENSORS)
    back = names.to_ours(torch, bert.TENSORS, shapes=pretrained.shapes(CONFIG))
    read_again = dataclasses.replace(model, params=back)
    assert_same(released_checkpoint.variables_of(read_again), variables)


# Variable -> parameter.
SAME = {
    "bert/embeddings/word_embeddings": "encoder.embeddings.word.embedding",
    "bert/embeddings/position_embeddings": "encoder.embeddings.position.embedding",
    "bert/embeddings/token_type_embeddings": "encoder.embeddings.segment.embedding",
    "bert/embeddings/LayerNorm/gamma": "encoder.embeddings.norm.scale",
    "bert/embeddings/LayerNorm/beta": "encoder.embeddings.norm.bias",
    f"{LAYER_1}/attention/self/query/kernel": "encoder.layers.1.attention.query.kernel",
    f"{LAYER_1}/attention/self/key/kernel": "encoder.layers.1.attention.key.kernel",
    f"{LAYER_1}/attention/self/value/bias": "encoder.layers.1.attention.value.bias",
    f"{LAYER_1}/attention/output/dense/kernel": "encoder.layers.1.attention.output.kernel",
    f"{LAYER_1}/attention/output/LayerNorm/gamma": "encoder.layers.1.attention_norm.scale",
    f"{LAYER_1}/intermediate/dense/kernel": "encoder.layers.1.intermediate.kernel",
    f"{LAYER_1}/output/dense/kernel": "encoder.layers.1.output.kernel",
    f"{LAYER_1}/output/LayerNorm/beta": "encoder.layers.1.output_norm.bias",
    "bert/pooler/dense/kernel": "pooler.dense.kernel",
    "cls/predictions/transform/dense/kernel": "mlm_head.dense.kernel",
    "cls/predictions/transform/LayerNorm/gamma": "mlm_head.norm.scale",
    "cls/predictions/output_bias": "mlm_head.bias",
    "cls/seq_relationship/output_bias": "nsp_head.dense.bias",
}


# The released programs make the pooler in each of their graphs. Head -> what else they make.
GRAPHS = {
    "pretraining": ("cls/predictions/", "cls/seq_relationship/"),
    "masked_lm": ("cls/predictions/",),
    "next_sentence": ("cls/seq_relationship/",),
    "none": (),
    "sequence_classification": {"output_weights": (3, HIDDEN), "output_bias": (3,)},
    "token_classification": {"output_weights": (5, HIDDEN), "output_bias": (5,)},
    "question_answering": {"cls/squad/output_weights": (2, HIDDEN), "cls/squad/output_bias": (2,)},
    "multiple_choice": {"output_weights": (1, HIDDEN), "output_bias": (1,)},
}


@pytest.mark.parametrize("head", GRAPHS)
def test_every_head_is_read_whole(tmp_path, head):
    """Through a workdir, too; masked_lm alone has no pooler."""
    made, shapes = GRAPHS[head], released_shapes()
    kept = ("bert/", *(made if isinstance(made, tuple) else ()))
    shapes = {name: shape for name, shape in shapes.items() if name.startswith(kept)}
    shapes |= made if isinstance(made, dict) else {}
    if head == "masked_lm":
        shapes = {name: shape for name, shape in shapes.items() if "pooler" not in name}
    rng = np.random.default_rng(0)
    variables = {name: rng.normal(size=shapes[name]).astype(np.float32) for name in shapes}
    beside = {
        name: released_variables()[name] for name in ("bert/pooler/dense/kernel", POOLER_BIAS)
    }
    read = tensorflow1.read(released(tmp_path / "model", beside | variables))
    if head == "masked_lm":  # whose program may make a pooler of which nothing is read
        assert set(read.unused) == beside.keys()
        read = dataclasses.replace(read, unused=())
    if read.head != head:  # tags and choices have the variables of a class
        assert read.head == "sequence_classification"
        read = pretrained.select(read, head)
    assert read.unused == ()
    if head == "sequence_classification":  # named so that transformers can count them
        assert read.labels == {number: f"LABEL_{number}" for number in range(3)}
    workdir.write(read, tmp_path / "workdir")
    found = released_checkpoint.variables_of(workdir.read(tmp_path / "workdir"))
    assert_same(found, variables)


def test_half_precision_becomes_float32_and_slots_of_the_optimizer_are_unused(tmp_path):
    halves = {
        name: value.astype((np.float16, ml_dtypes.bfloat16)[place % 2])
        for place, (name, value) in enumerate(released_variables().items())
    }
    slots = {
        f"{name}/{slot}": np.zeros_like(value)
        for name, value in halves.items()
        for slot in ("adam_m", "adam_v")
    }
    slots["global_step"] = np.asarray(7, np.int64)
    model = tensorflow1.read(released(tmp_path / "model", halves | slots))
    assert set(model.unused) == set(slots)
    assert len(model.params) == len(halves)
    assert {value.dtype.name for value in model.params.values()} == {"float32"}
    for theirs, ours in SAME.items():
        np.testing.assert_array_equal(model.params[ours], halves[theirs].astype(np.float32))


def test_a_checkpoint_is_found_by_its_directory_a_prefix_or_a_file(saved, tmp_path):
    for given in ("", "bert_model.ckpt", "bert_model.ckpt.index", "bert_model.ckpt.meta"):
        assert tensorflow1.find_checkpoint(saved / given) == saved / "bert_model.ckpt"
    for given in ("", "nowhere", "bert_model.ckpt"):
        with pytest.raises(FileNotFoundError, match=r"uncased_L-12|vocab\.txt"):
            tensorflow1.find_checkpoint(tmp_path / given)
    for step in (100, 200):
        (tmp_path / f"model.ckpt-{step}.index").touch()
    with pytest.raises(ValueError, match=r"several.*model.ckpt-100, model.ckpt-200"):
        tensorflow1.find_checkpoint(tmp_path)
    assert tensorflow1.find_checkpoint(tmp_path / "model.ckpt-100").name == "model.ckpt-100"


def test_the_casing_is_that_of_a_config_the_directorys_name_or_the_vocabulary(saved, tmp_path):
    cased = (*ENTRIES, "Court")
    for name, vocabulary, lowercase in (
        ("uncased_L-12_H-768_A-12", ENTRIES, True),
        ("wwm_cased_L-24_H-1024_A-16", cased, False),
        ("multi_cased_L-12_H-768_A-12", cased, False),
        ("chinese_L-12_H-768_A-12", ENTRIES, True),
        ("biobert", ENTRIES, True),
        ("biobert", cased, False),
        ("cased_L-12_H-768_A-12", ENTRIES, False),  # The name goes first.
    ):
        assert tensorflow1.is_lowercase(name, vocabulary, bert.RELEASED)[0] == lowercase
    directory = shutil.copytree(saved, tmp_path / "uncased_L-2")
    (directory / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert tensorflow1.read(directory).vocabulary.describe()["lowercase"] is False
    (directory / "vocab.txt").unlink()  # Then there are weights alone.
    assert tensorflow1.read(directory).vocabulary is None


def write_objects(directory):
    tf = records.import_tensorflow()
    tf.train.Checkpoint(kernel=tf.Variable([1.0])).write(str(directory / "bert_model.ckpt"))


def changed(directory, change):
    """Puts what `change` makes of the data in its place."""
    data = directory / DATA
    data.write_bytes(change(bytearray(data.read_bytes())))


def flipped(content):
    content[len(content) // 2] ^= 1
    return content


DAMAGES = [
    (
        lambda d: changed(d, lambda it: it[:-100]),
        r"3 of \d+ variables cannot be read .*: copy bert_model.ckpt.data-\* again",
    ),
    (lambda d: changed(d, flipped), r"1 of \d+ variables cannot be read .*Checksum"),
    (lambda d: (d / INDEX).write_bytes(b"no table"), f"{INDEX} cannot be read"),
    (lambda d: (d / DATA).unlink(), f"not its data, {DATA}"),
    (lambda d: (d / "bert_config.json").unlink(), "bert_config.json is missing"),
    (lambda d: (d / "tokenizer_config.json").write_text("{"), "tokenizer_config.json is not"),
    (lambda d: (d / "vocab.txt").write_text("a\na\n"), "vocab.txt is not a WordPiece"),
    (lambda d: write_config(d, vocab_size=5), "has 11 entries, .* vocab_size 5"),
    (lambda d: write_config(d, hidden_size=8), r"query/kernel has the shape \[4, 4\]"),
    (lambda d: write_config(d, num_hidden_layers=3), "layer_2/output/dense/kernel .*missing"),
    (lambda d: write_config(d, num_hidden_layers=1), "layer_1/output/dense/kernel"),
    (write_objects, "TensorFlow 2 objects"),
]


def test_a_broken_file_is_named(saved, tmp_path):
    for number, (damage, said) in enumerate(DAMAGES):
        directory = shutil.copytree(saved, tmp_path / str(number))
        damage(directory)
        with pytest.raises(ValueError, match=said):
            tensorflow1.read(directory)


def test_all_faults_are_reported_at_once(tmp_path):
    variables = released_variables()
    del variables["bert/pooler/dense/bias"]
    variables["bert/adapter/kernel"] = np.ones((2, 2), np.float32)
    variables[QUERY] = np.ones((4, 5), np.float32)
    variables["bert/pooler/dense/kernel"] = np.ones((4, 4), np.int32)
    directory = released(tmp_path / "model", variables)
    (directory / "vocab.txt").write_text("a\n")
    with pytest.raises(ValueError) as caught:
        tensorflow1.read(directory)
    for said in (
        "vocab.txt",
        "bert/pooler/dense/bias (pooler.dense.bias) is missing",
        "bert/adapter/kernel",
        f"{QUERY} has the shape [4, 5]",
        "bert/pooler/dense/kernel holds int32",
    ):
        assert said in str(caught.value)


def config_of(directory, text):
    path = epath.Path(directory) / "bert_config.json"
    path.write_text(text)
    return tensorflow1.read_configs(path, bert.FAMILY)[0]


def test_a_config_has_the_numbers_of_its_file_or_those_of_the_released_code(tmp_path):
    # The released BertConfig says 16 segments; its models have 2, and their files say so.
    default = EncoderConfig(vocab_size=7, type_vocab_size=16)
    assert config_of(tmp_path, '{"vocab_size": 7}') == default
    # Fields of the released multilingual files.
    unread = '{"vocab_size": 7, "directionality": "bidi", "pooler_fc_size": 768}'
    assert config_of(tmp_path, unread) == default
    fields = {"vocab_size": 12, "hidden_act": "relu", "hidden_dropout_prob": 0}
    expected = EncoderConfig(vocab_size=12, hidden_act="relu", hidden_dropout_prob=0.0)
    assert config_of(tmp_path, json.dumps(fields | {"type_vocab_size": 2})) == expected


def test_what_is_not_a_config_is_named(tmp_path):
    for text, said in (
        ("{", "bert_config.json is not JSON"),
        ("[1]", "must be a JSON object"),
        ('{"hidden_size": 8}', "vocab_size is missing"),
        ('{"vocab_size": 7, "hidden_act": "swish"}', "hidden_act is 'swish'; known are gelu"),
        ('{"vocab_size": 7, "embedding_size": 2}', "embedding_size is 2; the released BERT has no"),
        ('{"vocab_size": "7"}', "a BERT:\n  vocab_size is '7'; it must be a whole"),
        ('{"vocab_size": 7, "hidden_act": ["gelu"]}', "hidden_act is .*; it must be a text"),
        (
            '{"hidden_act": "swish", "hidden_size": 10, "position_embedding_type": "rope"}',
            "(?s)vocab_size.*position_embedding_type.*swish.*multiple",  # all faults at once
        ),
    ):
        with pytest.raises(ValueError, match=said):
            config_of(tmp_path, text)
