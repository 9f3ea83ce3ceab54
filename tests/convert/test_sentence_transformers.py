"""Claims about the files of sentence-transformers: what is read of them, and what is refused."""

import json
import shutil

import pytest

from bertjax import inference
from bertjax.convert import __main__ as convert
from bertjax.convert import formats
from bertjax.models import sentence_vectors
from tests import programs, small_sentences
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


def test_what_is_read_is_what_was_written(exported):
    assert formats.read(exported).sentence == small_sentences.VECTORS


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


@pytest.mark.parametrize(
    ("ours", "theirs"), [*zip(("cls", "mean", "max", "weighted", "last"), MODES, strict=True)]
)
def test_each_pooling_is_read_by_its_older_key(directory, ours, theirs):
    keys = {f"pooling_mode_{mode}": mode == theirs for mode in MODES}
    change(directory, "1_Pooling/config.json", **keys)
    assert sentence(directory).pooling == ours


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("cls", "cls"), ("weighted", "weightedmean"), ("last", "lasttoken"), ("max", ["max"])],
)
def test_each_pooling_is_read_by_its_newer_name(directory, ours, theirs):
    (directory / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": theirs}))
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


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("Transformer", "Pooling", "Dense", "Normalize"), "modules Transformer, Pooling, Dense"),
        (("Transformer", "Normalize", "Pooling"), "modules Transformer, Normalize, Pooling"),
        (("Transformer",), "supported is a Transformer with a Pooling"),
        (("CLIPModel",), "has the modules CLIPModel"),
        (("Transformer", "Pooling", "Pooling"), "modules Transformer, Pooling, Pooling"),
    ],
)
def test_other_modules_are_refused(directory, kinds, message):
    modules(directory, *kinds)
    with pytest.raises(ValueError, match=rf"modules.json .*{message}"):
        formats.read(directory)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("1_Pooling/config.json", {"pooling_mode_cls_token": True}, "cls with mean; supported is"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": False, "pooling_mode_mean_sqrt_len_tokens": True},
            "has the pooling pooling_mode_mean_sqrt_len_tokens; supported is one of cls, mean",
        ),
        ("1_Pooling/config.json", {"pooling_mode": "attention"}, "has the pooling attention"),
        ("1_Pooling/config.json", {"include_prompt": False}, "include_prompt false"),
        ("2_Normalize/config.json", {"module_input_name": "token_embeddings"}, "token_embeddings"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "manhattan"}, "manhattan"),
        ("config_sentence_transformers.json", {"prompts": {"query": 3}}, "'query' is not a string"),
        ("config_sentence_transformers.json", {"default_prompt_name": "sts"}, "'sts'; known are"),
        ("sentence_bert_config.json", {"module_output_name": "x"}, "module_output_name 'x'"),
    ],
)
def test_choices_that_would_give_other_vectors_are_refused(directory, name, fields, message):
    change(directory, name, **fields)
    with pytest.raises(ValueError, match=rf"{name}.*{message}"):
        formats.read(directory)


def test_a_list_of_modules_that_is_none_is_refused(directory):
    for content in ("{", "[1]", '[{"idx": 0, "type": "a.Transformer"}]'):
        (directory / "modules.json").write_text(content)
        with pytest.raises(ValueError, match="modules.json is not a list of modules"):
            formats.read(directory)


def test_a_missing_pooling_is_named(directory):
    (directory / "1_Pooling" / "config.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"1_Pooling/config.json"):
        formats.read(directory)


def test_a_workdir_made_of_it_keeps_its_choices(exported, tmp_path):
    convert.convert(exported, tmp_path / "workdir", format="bertjax")
    assert inference.load(tmp_path / "workdir").sentence == small_sentences.VECTORS
    assert formats.read(tmp_path / "workdir").sentence == small_sentences.VECTORS


def test_the_card_tells_how_vectors_are_made(exported):
    card = (exported / "README.md").read_text()
    assert "SentenceTransformer(" in card and "| pooling | mean |" in card
    assert "| prompt `query` | `w9 ` |" in card


def test_a_step_of_weights_that_have_none_is_refused(exported):
    with pytest.raises(ValueError, match="--step=3 chooses a checkpoint of a workdir"):
        inference.load(exported, step=3)


def test_other_programs_take_weights_where_they_lie(tmp_path):
    directories = {}
    for head in ("masked_lm", "sequence_classification"):
        directories[head] = tmp_path / head
        formats.write(weights.make(head), directories[head], format="huggingface")
        formats.write(weights.make(head), tmp_path / f"{head}_workdir", format="bertjax")
    asked = {
        "masked_lm": (("bertjax.fill_mask", "--json", "w1 [MASK]"), ("bertjax.score",)),
        "sequence_classification": (("bertjax.predict",),),
    }
    line = {"bertjax.score": "w1 w2", "bertjax.predict": '{"text": "w1 w2"}'}
    for head, programs_asked in asked.items():
        for name, *arguments in programs_asked:
            found = [
                programs.succeed(
                    name, f"--checkpoint={place}", *arguments, lines=(line.get(name, ""),)
                ).output
                for place in (directories[head], tmp_path / f"{head}_workdir")
            ]
            assert found[0] == found[1] != b""
