"""Claims about texts in a named language, for models with an embedding of each."""

import dataclasses
import json
import re

import jax.numpy as jnp
import numpy as np
import pytest

import bertjax
from bertjax import encode, evaluate, inference
from bertjax.convert import formats
from bertjax.data import records, text_lines
from bertjax.inference import encoding, vector_files
from bertjax.scores import parallel
from tests import programs, small_modules
from tests.convert import weights

TEXTS = ["w1 w2 w3", "w4 w5"]
OTHERWISE = ("fr", "de", "eo")  # the order of the languages in a second model

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """One model, with its languages in two orders, finetuned, and a model without any."""
    root = tmp_path_factory.mktemp("languages")
    for head in ("masked_lm", "sequence_classification"):
        made = weights.in_languages(head)
        formats.write(made, root / head, format="bertjax")
        formats.write(weights.reordered(made, OTHERWISE), root / f"{head}_2", format="bertjax")
    formats.write(weights.make("masked_lm"), root / "plain", format="bertjax")
    return root


def test_a_text_has_the_vector_that_the_encoder_gives_it_in_its_language(directory):
    model = inference.load(directory / "masked_lm")
    ids = jnp.array([[2, *model.vocabulary.encode(TEXTS[0]), 3]] * len(weights.LANGUAGES))
    rows = {"input_ids": ids, "input_mask": jnp.ones_like(ids)}
    rows[records.LANGUAGE_FEATURE] = jnp.arange(len(ids))
    states = small_modules.run(lambda it, batch: it.encoder(batch), model.module(), rows)
    vectors = [
        encode.encode(inference.in_language(model, name), TEXTS[:1])["features"][0]
        for name in weights.LANGUAGES
    ]
    np.testing.assert_allclose(vectors, states.mean(axis=1), atol=1e-5)
    assert min(np.abs(vectors[0] - it).max() for it in vectors[1:]) > 0.1


# A use of a model in a language -> its outcome in numbers.
USES = {
    "encode": lambda model, name: model.encode(TEXTS, language=name)["features"],
    "fill_mask": lambda model, name: [
        it["probability"] for it in model.fill_mask("w1 [MASK]", language=name)[0]
    ],
    "score": lambda model, name: [it.log_likelihood for it in model.score(TEXTS, language=name)],
    "attention": lambda model, name: model.attention(TEXTS[0], language=name).weights,
}


def test_languages_are_known_by_name_and_change_all_that_a_model_says(directory):
    one, other = (bertjax.load(directory / name) for name in ("masked_lm", "masked_lm_2"))
    for use, outcome in USES.items():
        german, french = (np.asarray(outcome(one, name)) for name in ("de", "fr"))
        again = outcome(other, "fr")
        np.testing.assert_allclose(again, french, rtol=1e-5, atol=1e-6, err_msg=use)
        assert np.abs(german - french).max() > 1e-3, use


def test_a_finetuned_model_predicts_in_a_language(directory):
    names = ("sequence_classification", "sequence_classification_2")
    one, other = (bertjax.load(directory / name) for name in names)
    lines = [{"text": text} for text in TEXTS]
    german, french = (one.predict(lines, language=name) for name in ("de", "fr"))
    for line, again in zip(french, other.predict(lines, language="fr"), strict=True):
        assert line["probabilities"] == pytest.approx(again["probabilities"], rel=1e-5)
    assert german[0]["probabilities"] != pytest.approx(french[0]["probabilities"], rel=1e-2)
    where = (f"--checkpoint={directory / names[0]}", "--language=fr")
    answers = programs.succeed("bertjax.predict", *where, lines=tuple(map(json.dumps, lines)))
    assert answers.lines == french
    ended = programs.run("bertjax.predict", where[0], lines=('{"text": "w1"}',))
    assert "--language is not given" in ended.error and not ended.output


def test_translations_are_read_each_in_its_language(directory, tmp_path):
    for name, texts in (("a", TEXTS), ("b", TEXTS[::-1])):
        (tmp_path / name).write_text("\n".join(texts))
    paths, workdir = f"{tmp_path / 'a'},{tmp_path / 'b'}", directory / "masked_lm"
    found = evaluate.evaluate_parallel(workdir, paths, batch_size=8, language="fr,de")
    model = bertjax.load(workdir)
    sides = [
        model.encode(texts, pooling="mean", language=name)["features"]
        for texts, name in ((TEXTS, "fr"), (TEXTS[::-1], "de"))
    ]
    there, back = parallel.retrieval(*sides)["cosine"]
    assert found["by_layer"]["2 cosine, source to target"] == there
    assert found["by_layer"]["2 cosine, target to source"] == back
    for given, told in (("fr", "must be SOURCE,TARGET"), ("", "is not given"), ("fr,x", "'x'")):
        with pytest.raises(ValueError, match=f"--language .*{told}"):
            evaluate.evaluate_parallel(workdir, paths, batch_size=8, language=given)


def test_a_directory_of_vectors_is_of_one_language(directory, tmp_path):
    model = inference.load(directory / "masked_lm")
    lines, options = [*text_lines.numbered(iter(TEXTS))], encoding.options_for(model)

    def write(name):
        of_name = inference.in_language(model, name)
        vector_files.write(of_name, lines, tmp_path / "out", options, inputs={})

    write("fr")
    write("fr")
    with pytest.raises(ValueError, match="language 'fr' there, 'de' now"):
        write("de")


WRONG = [
    ("encode", "masked_lm", "--language=xx", "--language is 'xx', but .* one of de, eo, fr"),
    ("score", "plain", "--language=fr", "--language is 'fr', but the model has no embeddings"),
    ("fill_mask", "masked_lm", "w1 [MASK]", "--language is not given, but .* one of de, eo, fr"),
    ("evaluate", "masked_lm", "--pairs={pairs}", "--language is not given"),
]


@pytest.mark.parametrize(("program", "model", "argument", "told"), WRONG)
def test_a_wrong_language_is_an_error_of_one_line(
    directory, tmp_path, program, model, argument, told
):
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text('{"sentence_good": "w1", "sentence_bad": "w2"}\n')
    where = (f"--checkpoint={directory / model}", argument.format(pairs=pairs))
    ended = programs.run(f"bertjax.{program}", *where, lines=TEXTS)
    assert not ended.output
    assert re.search(told, ended.error), ended.error


def test_languages_without_names_have_their_numbers(tmp_path, directory):
    made = dataclasses.replace(weights.in_languages(), languages=())
    formats.write(made, tmp_path / "unnamed", format="bertjax")
    named, unnamed = bertjax.load(directory / "masked_lm"), bertjax.load(tmp_path / "unnamed")
    for number, name in enumerate(weights.LANGUAGES):
        found = unnamed.encode(TEXTS, language=str(number))["features"]
        np.testing.assert_array_equal(found, named.encode(TEXTS, language=name)["features"])
