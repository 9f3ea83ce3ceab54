"""Claims about the files of sentence-transformers: what is read of them, and what is refused."""

import dataclasses
import json
import math
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from bertjax import encode, inference, jobs, predict
from bertjax.convert import __main__ as convert
from bertjax.convert import formats, pretrained
from bertjax.models import parameters, sentence_vectors
from bertjax.tasks import base as tasks_base
from bertjax.training import warm_start
from tests import small_embeddings, small_sentences
from tests.convert import weights

MODES = ("cls_token", "mean_tokens", "max_tokens", "weightedmean_tokens", "lasttoken")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "model"
    small_sentences.write(path)
    return path


@pytest.fixture
def directory(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "model")
    return tmp_path / "model"


def change(directory, name, **fields):
    """Changes fields of a JSON file; None takes one away."""
    path = directory / name
    found = json.loads(path.read_text()) if path.exists() else {}
    found = {name: value for name, value in {**found, **fields}.items() if value is not None}
    path.write_text(json.dumps(found))


def modules(directory, *kinds, prefix="sentence_transformers.models."):
    listed = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": prefix + kind}
        for n, kind in enumerate(kinds)
    ]
    (directory / "modules.json").write_text(json.dumps(listed[::-1]))  # idx orders them


def sentence(directory):
    """How vectors are made, as it is read of a directory."""
    found = formats.read(directory).sentence
    assert found is not None
    return found


def test_the_files_have_their_documented_keys(exported):
    pooling = json.loads((exported / "1_Pooling" / "config.json").read_text())
    assert {key for key, value in pooling.items() if value is True} == {
        "pooling_mode_mean_tokens",
        "include_prompt",
    }
    assert pooling["word_embedding_dimension"] == small_sentences.HIDDEN
    assert {f"pooling_mode_{mode}" for mode in MODES} < set(pooling)
    config = json.loads((exported / "config_sentence_transformers.json").read_text())
    assert config["prompts"] == {"query": "w9 ", "document": ""}
    assert (config["similarity_fn_name"], config["default_prompt_name"]) == ("cosine", None)
    assert json.loads((exported / "sentence_bert_config.json").read_text())["max_seq_length"] == 20
    assert json.loads((exported / "tokenizer_config.json").read_text())["model_max_length"] == 20
    listed = json.loads((exported / "modules.json").read_text())
    assert [module["path"] for module in listed] == ["", "1_Pooling", "2_Normalize"]
    assert (exported / "2_Normalize").is_dir()


def test_each_pooling_is_read_by_its_older_key_and_its_newer_name(directory):
    for ours, key in zip(("cls", "mean", "max", "weighted", "last"), MODES, strict=True):
        keys = {f"pooling_mode_{mode}": mode == key for mode in MODES}
        change(directory, "1_Pooling/config.json", **keys)
        assert sentence(directory).pooling == ours
    names = {"cls": "cls", "weighted": "weightedmean", "last": "lasttoken", "max": ["max"]}
    for ours, theirs in names.items():
        config = json.dumps({"pooling_mode": theirs})
        (directory / "1_Pooling" / "config.json").write_text(config)
        assert sentence(directory).pooling == ours


def test_the_oldest_files_are_read(directory):
    """Those of all-MiniLM-L6-v2: no prompts, no similarity, a 2_Normalize without files."""
    shutil.rmtree(directory / "2_Normalize")
    version = {"sentence_transformers": "2.0.0"}
    (directory / "config_sentence_transformers.json").write_text(
        json.dumps({"__version__": version})
    )
    found = formats.read(directory).sentence
    assert found == sentence_vectors.SentenceVectors(normalize=True, max_seq_length=20)
    (directory / "config_sentence_transformers.json").unlink()
    assert formats.read(directory).sentence == found


def test_without_a_stated_length_it_is_the_tokenizers(directory):
    change(directory, "sentence_bert_config.json", max_seq_length=None)
    change(directory, "tokenizer_config.json", model_max_length=13)
    assert sentence(directory).max_seq_length == 13
    change(directory, "tokenizer_config.json", model_max_length=10**30)
    assert sentence(directory).max_seq_length == 0


def test_vectors_are_cut_as_the_file_says_and_unknown_fields_are_listed(directory, caplog):
    whole = encode.encode(inference.load(directory), ["w1 w2"])["features"]
    change(directory, CONFIG, truncate_dim=5, new_field=1, other=None)
    model = inference.load(directory)
    assert "has unknown fields: new_field" in caplog.text
    cut = encode.encode(model, ["w1 w2"])["features"]
    np.testing.assert_array_equal(cut, whole[:, :5])  # as theirs, not normalized again
    unit = encode.encode(model, ["w1 w2"], normalize=True)["features"]
    np.testing.assert_allclose(unit, cut / np.linalg.norm(cut), atol=1e-6)
    np.testing.assert_array_equal(encode.encode(model, ["w1 w2"], dims=0)["features"], whole)
    assert encode.encode(model, ["w1 w2"], pooling="none")["features"].shape[1] == whole.shape[1]
    formats.write(formats.read(directory), directory.with_name("again"), format="huggingface")
    assert sentence(directory.with_name("again")).truncate_dim == 5
    change(directory, CONFIG, truncate_dim="5")
    with pytest.raises(ValueError, match="truncate_dim is '5'; it must be a whole number"):
        formats.read(directory)


def test_exports_name_the_prompts_of_both_roles(directory):
    """Version 6 takes an empty `document` where it finds `passage` alone."""
    for given, written in (
        ({"query": "q ", "passage": "p "}, {"query": "q ", "passage": "p ", "document": "p "}),
        ({"any": "a "}, {"any": "a ", "query": "", "document": ""}),
        ({}, {}),
    ):
        default = "query" if "query" in given else None
        change(directory, CONFIG, prompts=given, default_prompt_name=default)
        place = directory.with_name("again")
        formats.write(formats.read(directory), place, format="huggingface")
        fields = json.loads((place / CONFIG).read_text())
        assert (fields["prompts"], fields["default_prompt_name"]) == (written, default)
        shutil.rmtree(place)


def test_a_cross_encoder_gives_its_number_or_the_sigmoid_of_it(tmp_path):
    one = pretrained.select(weights.make("multiple_choice"), "sequence_classification")
    directory, answers = tmp_path / "model", {}
    formats.write(dataclasses.replace(one, labels={0: "LABEL_0"}), directory, format="huggingface")
    change(directory, "config.json", problem_type=None)
    line = {"text": "w1 w2", "text_pair": "w3"}
    sigmoid, identity = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"
    for name, fields, has_modules in (
        ("plain", {}, False),
        ("identity", {"sentence_transformers": {"activation_fn": identity}}, True),
        ("sigmoid", {"sentence_transformers": {"activation_fn": sigmoid}}, True),
        ("older", {"sbert_ce_default_activation_function": sigmoid}, False),
        ("newest", {CONFIG: {"model_type": "CrossEncoder", "activation_fn": sigmoid}}, True),
    ):
        place = tmp_path / name
        shutil.copytree(directory, place)
        for field, value in fields.items():
            name_of_file = field if field == CONFIG else "config.json"
            change(place, name_of_file, **(value if field == CONFIG else {field: value}))
        if has_modules:
            modules(place, "Transformer")
        (answers[name],) = predict.predict(inference.load_finetuned(place), [line])
    number = answers["plain"]["prediction"]
    assert answers["identity"]["prediction"] == number != 0
    for name in ("sigmoid", "older", "newest"):
        probability = answers[name]["probabilities"]["LABEL_0"]
        assert probability == pytest.approx(1 / (1 + np.exp(-number)), abs=1e-6)
    change(directory, "config.json", sentence_transformers={"activation_fn": "torch.nn.Tanh"})
    with pytest.raises(ValueError, match="activation_fn 'torch.nn.Tanh'; supported are torch's"):
        formats.read(directory)


def test_weights_in_a_directory_of_their_own_are_those_of_the_model(exported, directory):
    """The layout 0_Transformer/, by which older models are saved."""
    inner = directory / "0_Transformer"
    inner.mkdir()
    for path in directory.iterdir():
        if path.is_file() and path.name not in ("modules.json", CONFIG):
            path.rename(inner / path.name)
    listed = json.loads((directory / "modules.json").read_text())
    listed[0]["path"] = "0_Transformer"
    (directory / "modules.json").write_text(json.dumps(listed))
    ours, theirs = formats.read(directory), formats.read(exported)
    assert ours.sentence == theirs.sentence and ours.params.keys() == theirs.params.keys()
    assert formats.describe(directory).vocabulary.describe() == ours.vocabulary.describe()
    found = [encode.encode(inference.load(path), ["w1 w2"]) for path in (directory, exported)]
    np.testing.assert_array_equal(found[0]["features"], found[1]["features"])


def test_other_modules_are_refused(directory):
    for kinds, message in (
        (("Transformer", "Dense", "Pooling"), "modules Transformer, Dense, Pooling"),
        (("Transformer", "Pooling", "Normalize", "Dense"), "Pooling, Normalize, Dense"),
        (("Transformer", "Normalize", "Pooling"), "modules Transformer, Normalize, Pooling"),
        (("Transformer",), "supported are a Transformer, a Pooling, any Dense and"),
        (("CLIPModel",), "has the modules CLIPModel"),
        (("Transformer", "Pooling", "Pooling"), "modules Transformer, Pooling, Pooling"),
    ):
        modules(directory, *kinds)
        with pytest.raises(ValueError, match=rf"modules.json .*{message}"):
            formats.read(directory)
    change(directory, "config.json", architectures=["BertForSequenceClassification"])
    for content in ("{", "5", "null", "[1]", '[{"idx": 0, "type": "a.Transformer"}]'):
        (directory / "modules.json").write_text(content)
        for path in (directory, directory / "model.safetensors"):
            with pytest.raises(ValueError, match="^[^:]*modules.json is not a list of modules"):
                formats.read(path)


DENSE = {
    "in_features": small_sentences.HIDDEN,
    "out_features": 8,
    "bias": True,
    "activation_function": "torch.nn.modules.activation.Tanh",
}
WEIGHT, BIAS = "linear.weight", "linear.bias"  # [out, in]


def write_dense(directory, place, tensors, **fields):
    """A dense layer as version 2 to 4 of sentence-transformers writes it."""
    (directory / place).mkdir(exist_ok=True)
    (directory / place / "config.json").write_text(json.dumps({**DENSE, **fields}))
    safetensors.numpy.save_file(tensors, directory / place / "model.safetensors")


def random_dense(in_size, out_size, *, has_bias=True):
    rng = np.random.default_rng(out_size)
    tensors = {WEIGHT: rng.normal(0, in_size**-0.5, (out_size, in_size)).astype(np.float32)}
    return tensors | ({BIAS: rng.normal(0, 0.3, out_size).astype(np.float32)} if has_bias else {})


# Reference of each activation, in float64.
REFERENCES = {
    "torch.nn.modules.activation.Tanh": np.tanh,
    "torch.nn.modules.linear.Identity": lambda x: x,
    "torch.nn.modules.activation.ReLU": lambda x: np.maximum(x, 0),
    "torch.nn.modules.activation.GELU": lambda x: (
        x * 0.5 * (1 + np.vectorize(math.erf)(x / 2**0.5))
    ),
    "torch.nn.modules.activation.Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "torch.nn.modules.activation.SiLU": lambda x: x / (1 + np.exp(-x)),
}
# The layout of a model; size, activation and whether there is a bias of each dense layer.
LAYOUTS = [
    ("Normalize", [(16, "torch.nn.modules.activation.Tanh", True)]),  # LaBSE
    ("", [(8, "torch.nn.modules.activation.Tanh", True)]),  # distiluse
    ("Normalize", [(16, "torch.nn.modules.linear.Identity", False)]),  # GTR
    ("", [(20, name, True) for name in REFERENCES]),
]


@pytest.mark.slow
def test_dense_layers_behind_the_pooling_are_read_used_and_written(directory, tmp_path):
    texts = small_sentences.texts(9)
    model = inference.load(directory)
    pooled = encode.encode(model, texts, normalize=False)["features"].astype(np.float64)
    for number, (last, layers) in enumerate(LAYOUTS):
        place, expected = tmp_path / f"source{number}", pooled
        shutil.copytree(directory, place)
        modules(place, "Transformer", "Pooling", *["Dense"] * len(layers), *[last][: bool(last)])
        for n, (size, activation, has_bias) in enumerate(layers, start=2):
            in_size = expected.shape[1]
            tensors = random_dense(in_size, size, has_bias=has_bias)
            fields = {"in_features": in_size, "out_features": size, "bias": has_bias}
            write_dense(place, f"{n}_Dense", tensors, **fields, activation_function=activation)
            sums = expected @ tensors[WEIGHT].T.astype(np.float64) + tensors.get(BIAS, 0.0)
            expected = REFERENCES[activation](sums)
        if last:
            expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        again = [tmp_path / f"{name}{number}" for name in ("workdir", "export", "second")]
        for source, target in zip([place, *again], again, strict=False):
            format = "bertjax" if target is again[0] else "huggingface"
            convert.convert(source, target, format=format)
        for path in (place, again[1]):
            found = encode.encode(inference.load(path), texts)["features"]
            np.testing.assert_allclose(found, expected, atol=1e-5)
            assert formats.vectors(path) == sentence(again[0]) == sentence(again[2])
        listed = json.loads((again[1] / "modules.json").read_text())
        assert [module["path"] for module in listed] == [
            *("", "1_Pooling", *(f"{n}_Dense" for n in range(2, 2 + len(layers)))),
            *[f"{2 + len(layers)}_Normalize"] * bool(last),
        ]
        for n in range(2, 2 + len(layers)):
            config = json.loads((place / f"{n}_Dense/config.json").read_text())
            assert json.loads((again[1] / f"{n}_Dense/config.json").read_text()) == config
            for name in ("config.json", "model.safetensors"):
                files = [(path / f"{n}_Dense" / name).read_bytes() for path in again[1:]]
                assert files[0] == files[1]
        assert f"| size of a vector | {expected.shape[1]} |" in (again[1] / "README.md").read_text()


def test_vectors_of_dense_layers_are_cut_and_features_are_without_them(directory, tmp_path):
    modules(directory, "Transformer", "Pooling", "Dense", "Normalize")
    write_dense(directory, "2_Dense", random_dense(small_sentences.HIDDEN, 8))
    model, text = inference.load(directory), ["w1 w2"]
    whole = encode.encode(model, text, normalize=False)["features"]
    short = encode.encode(model, text, dims=3)["features"]
    np.testing.assert_allclose(short, whole[:, :3] / np.linalg.norm(whole[:, :3]), atol=1e-6)
    with pytest.raises(ValueError, match="--dims=9 is more than the 8 numbers of the vectors"):
        encode.encode(model, text, dims=9)
    for options in ({"pooling": "none"}, {"layers": "second_to_last"}):
        features = encode.encode(model, text, **options)["features"]
        assert features.shape[1] == small_sentences.HIDDEN
    hashes = {model.sha256()}
    write_dense(directory, "2_Dense", random_dense(small_sentences.HIDDEN, 8) | {BIAS: np.ones(8)})
    assert inference.load(directory).sha256() not in hashes
    change(directory, CONFIG, truncate_dim=5)
    assert encode.encode(inference.load(directory), text)["features"].shape[1] == 5


def test_dense_layers_that_would_give_other_vectors_are_refused(directory, caplog):
    modules(directory, "Transformer", "Pooling", "Dense")
    tensors, config = random_dense(small_sentences.HIDDEN, 8), "2_Dense/config.json"
    for fields, message in (
        ({"in_features": 17}, "in_features is 17; it must be 16, the size of"),
        ({"out_features": 0}, "out_features is 0; it must be from 1 to 100,000"),
        ({"out_features": 10**12}, "out_features is 1000000000000"),
        ({"out_features": True}, "out_features is True"),
        ({"bias": 1}, "bias is 1; it must be true or false"),
        ({"use_residual": True}, "use_residual is True; it must be false"),
        ({"activation_function": "torch.nn.modules.activation.ELU"}, "ELU'; it must be torch.nn.I"),
        ({"activation_function": ["x"]}, "activation_function is .'x'.; it must be"),
        ({"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'"),
        ({"in_features": None, "bias": None}, "in_features is None; .* bias is None"),
    ):
        write_dense(directory, "2_Dense", tensors, **fields)
        for read in (formats.read, formats.vectors):
            with pytest.raises(ValueError, match=rf"(?s){config} is not supported.*{message}"):
                read(directory)
    file = "2_Dense/model.safetensors"
    for changed, message in (
        ({WEIGHT: tensors[WEIGHT]}, r"linear.bias \(projections.0.bias\) is missing"),
        ({**tensors, WEIGHT: tensors[WEIGHT].T.copy()}, r"has the shape .16, 8.; .* .8, 16."),
    ):
        write_dense(directory, "2_Dense", changed)
        with pytest.raises(ValueError, match=rf"(?s){file}: .*{message}"):
            formats.read(directory)
    write_dense(directory, "2_Dense", tensors, bias=False)
    with pytest.raises(ValueError, match="linear.bias belongs to a layer"):
        formats.read(directory)
    write_dense(directory, "2_Dense", tensors, new_field=1)
    assert sentence(directory).projections == (sentence_vectors.Projection(8),)
    assert f"{config} has unknown fields: new_field" in caplog.text
    for name in ("model.safetensors", "config.json"):
        (directory / "2_Dense" / name).unlink()
        with pytest.raises(FileNotFoundError, match="2_Dense"):
            formats.read(directory)


POOLING, CONFIG = "1_Pooling/config.json", "config_sentence_transformers.json"
MEAN_SQRT = "pooling_mode_mean_sqrt_len_tokens"
# A file, its fields, and what is said of them.
CHOICES = [
    (POOLING, {"pooling_mode_cls_token": True}, "cls with mean; supported is"),
    (
        *(POOLING, {"pooling_mode_mean_tokens": False, MEAN_SQRT: True}),
        f"has the pooling {MEAN_SQRT}; supported is one of cls, mean",
    ),
    (POOLING, {"pooling_mode": "attention"}, "has the pooling attention"),
    (POOLING, {"include_prompt": False}, "include_prompt false"),
    ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "token_embeddings"),
    (CONFIG, {"similarity_fn_name": "manhattan"}, "manhattan"),
    (CONFIG, {"prompts": {"query": 3}}, "prompts.query is 3; it must be a text"),
    (CONFIG, {"default_prompt_name": "sts"}, "'sts'; known are"),
    (CONFIG, {"default_prompt_name": ["sts"]}, "default_prompt_name is .*must be a text"),
    (CONFIG, {"prompts": ["query"]}, "prompts is .*must be an object of names"),
    (CONFIG, {"prompts": "query"}, "prompts is 'query'; it must be an object"),
    (CONFIG, {"truncate_dim": True}, "truncate_dim is True"),
    ("sentence_bert_config.json", {"max_seq_length": [7]}, "max_seq_length is .7.; it must be"),
    ("sentence_bert_config.json", {"max_seq_length": float("inf")}, "max_seq_length is inf"),
    (POOLING, {"pooling_mode": [["mean"]]}, "has the pooling .'mean'."),
    (POOLING, {"pooling_mode": 5}, "has the pooling 5"),
    ("sentence_bert_config.json", {"module_output_name": "x"}, "module_output_name 'x'"),
]


def test_choices_that_would_give_other_vectors_are_refused(directory):
    for name, fields, message in CHOICES:
        before = (directory / name).read_text()
        change(directory, name, **fields)
        with pytest.raises(ValueError, match=rf"(?s){name}.*{message}"):
            formats.read(directory)
        (directory / name).write_text(before)
    (directory / "1_Pooling" / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"1_Pooling/config.json"):
        formats.read(directory)


def test_what_was_written_is_read_also_of_a_workdir_made_of_it(exported, tmp_path):
    assert formats.read(exported).sentence == small_sentences.VECTORS
    convert.convert(exported, tmp_path / "workdir", format="bertjax")
    assert inference.load(tmp_path / "workdir").sentence == small_sentences.VECTORS
    assert formats.read(tmp_path / "workdir").sentence == small_sentences.VECTORS
    card = (exported / "README.md").read_text()
    assert "SentenceTransformer(" in card and "| pooling | mean |" in card
    assert "| prompt `query` | `w9 ` |" in card
    with pytest.raises(ValueError, match="--step=3 chooses a checkpoint of a workdir"):
        inference.load(exported, step=3)


@pytest.mark.slow
def test_the_layout_of_all_mpnet_is_read_by_encode_and_trained_on(tmp_path):
    small_sentences.write_mpnet(tmp_path / "model")
    model = inference.load(tmp_path / "model")
    texts = ["w1 W2 nothing", "w3", " ".join(["w5"] * 40)]
    found = encode.encode(model, texts, truncate=True)["features"]
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-5)
    known = model.vocabulary
    rows = [[0, *known.encode(text)[: small_sentences.MAX_LENGTH - 2], 2] for text in texts]
    assert rows[0] == [0, known.encode("w1")[0], known.encode("w2")[0], known.unk_id, 2]
    module = parameters.merge(model.graphdef, model.params)
    for row, vector in zip(rows, found, strict=True):
        batch = {"input_ids": jnp.array([row]), "input_mask": jnp.ones((1, len(row)), jnp.int32)}
        mean = np.asarray(module.encoder(batch))[0].mean(axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=2e-6)
    prompted = encode.encode(model, texts[:2], prompt="w9 ")["features"]
    wanted = encode.encode(model, [f"w9 {text}" for text in texts[:2]])["features"]
    np.testing.assert_allclose(prompted, wanted, atol=2e-6)

    config = small_embeddings.make_config(tmp_path / "data", tmp_path / "model")
    job = jobs.JOBS["finetuning"].open(config)
    _, params = tasks_base.abstract_model(job.task)
    begun = warm_start.of_job(job, params)
    assert begun is not None and not begun.fresh
    batch = next(job.data.train_batches(job.phases[0], start_step=0, rows=None))
    ids = batch["input_ids"].reshape(-1, batch["input_ids"].shape[-1])
    assert {*ids[:, 0]} <= {0, 1} and (ids == 2).any(axis=1).sum() > 1
