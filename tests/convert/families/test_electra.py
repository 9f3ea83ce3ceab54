"""Claims about ELECTRA's weights: both models in one workdir, released checkpoints, config."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from etils import epath

from bertjax import encode, evaluate, fill_mask, inference
from bertjax.convert import __main__ as program
from bertjax.convert import formats, huggingface_config, workdir
from bertjax.convert.families import electra
from bertjax.inference import likelihood
from bertjax.models import embedding_sharing, parameters
from bertjax.training import warm_start
from tests.convert import weights

pytestmark = pytest.mark.usefixtures("one_device", "quick_runs")

# Heads of 64, as the released code has them: it keeps no file that would tell.
SIZES = dataclasses.replace(
    *(weights.CONFIG,),
    hidden_size=128,
    num_attention_heads=2,
    intermediate_size=96,
    embedding_size=24,
    pooler_act="gelu",
    type_vocab_size=2,
)
GENERATOR = dataclasses.replace(
    SIZES, hidden_size=64, num_attention_heads=1, intermediate_size=72, num_hidden_layers=1
)


def make(sharing="shared"):
    """Random weights of both, whole."""
    generator = GENERATOR
    if sharing == "separate":
        generator = dataclasses.replace(GENERATOR, embedding_size=0)
    made = weights.make("replaced_tokens", config=SIZES, generator=generator)
    params = dict(made.params)
    if sharing == "shared":
        shared = tuple(f"encoder.embeddings.{name}." for name in embedding_sharing.SHARED)
        params |= {f"generator.{path}": a for path, a in params.items() if path.startswith(shared)}
    return dataclasses.replace(made, params=params, model_type="electra")


def of_generator(made):
    return {
        path.removeprefix("generator."): array
        for path, array in made.params.items()
        if path.startswith("generator.")
    }


def of_discriminator(made):
    return {path: a for path, a in made.params.items() if not path.startswith("generator.")}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A workdir with both, as of the released code."""
    directory = tmp_path_factory.mktemp("electra") / "run"
    workdir.write(make(), directory)
    return directory


def assert_same(params, wanted):
    assert params.keys() == wanted.keys()
    for path, array in wanted.items():
        assert np.asarray(params[path]).tobytes() == array.tobytes(), path


def test_a_directory_for_transformers_is_of_one_of_them_the_discriminator_unless_told(
    trained, tmp_path
):
    program.convert(trained, tmp_path / "discriminator")
    program.convert(trained, tmp_path / "generator", head="masked_lm")
    program.convert(trained, tmp_path / "encoder", head="none")
    discriminator, generator = (
        formats.read(tmp_path / name) for name in ("discriminator", "generator")
    )
    assert (discriminator.head, generator.head) == ("replaced_tokens", "masked_lm")
    assert (discriminator.config, generator.config) == (SIZES, GENERATOR)
    assert_same(discriminator.params, of_discriminator(make()))
    assert_same(generator.params, of_generator(make()))
    assert formats.read(tmp_path / "encoder").head == "none"
    card = (tmp_path / "discriminator" / "README.md").read_text()
    assert f"An ELECTRA with {sum(a.size for a in discriminator.params.values()):,} para" in card


@pytest.mark.parametrize(("sharing", "has_config"), [("shared", False), ("separate", True)])
def test_a_released_checkpoint_has_both_and_needs_no_config(tmp_path, sharing, has_config):
    made = make(sharing)
    weights.write(made, tmp_path / "tf1", "tf1")
    if not has_config:
        (tmp_path / "tf1" / "electra_config.json").unlink()
    read = formats.read(tmp_path / "tf1")
    weights.assert_equal(read, made)
    assert (read.generator, read.model_type) == (made.generator, "electra")
    names = [it for it in made.params if ".embeddings." in it and it.startswith("generator.")]
    assert len(names) == (7 if sharing == "shared" else 5)
    workdir.write(read, tmp_path / "run")
    kept = workdir.read(tmp_path / "run")
    weights.assert_equal(kept, made)
    assert (kept.generator, kept.model_type) == (made.generator, "electra")


def test_the_variables_of_shared_embeddings_are_there_once_by_their_released_names(tmp_path):
    weights.write(make(), tmp_path / "tf1", "tf1")
    prefix = epath.Path(tmp_path) / "tf1" / "electra_model.ckpt"
    variables, _ = formats.tensorflow1.read_variables(prefix)
    assert {
        *("electra/embeddings/word_embeddings", "electra/embeddings/LayerNorm/gamma"),
        *("electra/embeddings_project/kernel", "generator/embeddings_project/kernel"),
        *("electra/encoder/layer_1/attention/self/query/kernel",),
        *("generator/encoder/layer_0/output/LayerNorm/beta",),
        *("generator_predictions/dense/kernel", "generator_predictions/LayerNorm/gamma"),
        *("generator_predictions/output_bias", "discriminator_predictions/dense/kernel"),
        *("discriminator_predictions/dense_1/bias",),
    } <= set(variables)
    assert not any(name.startswith("generator/embeddings/") for name in variables)


def test_embeddings_as_wide_as_the_layers_are_written_so_and_read_as_ours(tmp_path):
    config = dataclasses.replace(SIZES, embedding_size=0)
    fields = huggingface_config.to_json(config, electra.FAMILY, head="none")
    assert fields["embedding_size"] == fields["hidden_size"] == 128
    read = huggingface_config.parse_config(json.loads(json.dumps(fields)), source="it")
    assert read.encoder == config


def test_finetuning_starts_from_the_discriminators_encoder(trained):
    source = formats.read(trained)
    shapes = {p: a for p, a in of_discriminator(make()).items() if p.startswith("encoder.")}
    target = warm_start.Target(
        encoder=SIZES,
        params=parameters.nested(shapes | {"classifier.bias": np.zeros(3, np.float32)}),
        vocabulary=source.vocabulary,
        max_seq_length=8,
        has_own_heads=True,
    )
    assert_same(warm_start.match(source, target).values, shapes)


def test_fill_mask_has_the_generator_and_all_else_the_discriminator(trained):
    text = "w1 [MASK] w2"
    generator = inference.load(trained, generator=True)
    assert generator.fills_masks and len(fill_mask.fill_mask(generator, text)[0]) == 5
    model = inference.load(trained)
    with pytest.raises(ValueError, match="fills no masks"):
        fill_mask.fill_mask(model, text)
    assert encode.encode(model, ["w1 w2"])["features"].shape == (1, 128)


def test_a_discriminator_scores_a_text_by_the_sum_of_its_originals(trained):
    model = inference.load(trained)
    texts = ["w1 w2 w3", "", "w4 " * 30]
    found = list(likelihood.scores(model, texts, batch_size=2))
    batch = inference.single_segment_batch(model.vocabulary.encode_batch(texts), model)
    logits = np.float64(model.module().replaced_logits(jax.tree.map(jnp.asarray, batch)))
    for row, (text, score) in enumerate(zip(texts, found, strict=True)):
        count = len(text.split())
        wanted = -np.log1p(np.exp(logits[row, 1 : count + 1])).sum()
        assert score.num_tokens == count
        assert score.log_likelihood == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    with pytest.raises(ValueError, match="reads a text as it is and masks nothing"):
        next(likelihood.scores(model, texts, masking="word_to_right"))


def test_a_discriminator_alone_is_not_evaluated_on_records(trained, tmp_path, monkeypatch):
    program.convert(trained, tmp_path / "hf")
    program.convert(tmp_path / "hf", tmp_path / "alone", format="bertjax")
    found = evaluate.reader.read(tmp_path / "alone")
    wanted = parameters.nested(make().params)
    with pytest.raises(ValueError, match="has no generator, which the objective 'replaced_tokens'"):
        evaluate._task_params(found, wanted)
