"""Claims about XLM's files that need no transformers."""

import dataclasses
import json

import pytest

from bertjax.convert import families, formats, huggingface_config
from tests.convert import weights
from tests.interop import exports


@pytest.mark.parametrize("class_name", ["", "XLMTokenizer"])
def test_weights_come_without_a_tokenizer_whose_rules_are_not_known(tmp_path, caplog, class_name):
    made = exports.make(families.named("xlm"), "masked_lm")
    formats.write(made, tmp_path / "hf", format="huggingface")
    weights.assert_equal(formats.read(tmp_path / "hf"), made)
    for name in ("vocab.txt", "tokenizer.json", "special_tokens_map.json"):
        (tmp_path / "hf" / name).unlink()
    (tmp_path / "hf" / "vocab.json").write_text('{"<s>": 0, "</s>": 1, "the</w>": 14}')
    (tmp_path / "hf" / "merges.txt").write_text("t h 10\nth e</w> 9\n")
    settings = {"tokenizer_class": class_name} if class_name else {}
    (tmp_path / "hf" / "tokenizer_config.json").write_text(json.dumps(settings))
    caplog.clear()
    read = formats.read(tmp_path / "hf")
    assert read.vocabulary is None and "the files of XLMTokenizer, vocab.json" in caplog.text
    formats.write(read, tmp_path / "run", format="bertjax")
    again = formats.read(tmp_path / "run")
    assert again.vocabulary is None and again.config == made.config
    formats.write(again, tmp_path / "back", format="huggingface")
    assert not (tmp_path / "back" / "tokenizer.json").exists()


def test_the_names_of_its_languages_go_there_and_back(tmp_path):
    names = ("fr", "zh", "de")
    made = exports.make(families.named("xlm"), "masked_lm")
    made = dataclasses.replace(made, languages=names)
    formats.write(made, tmp_path / "hf", format="huggingface")
    fields = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert fields["lang2id"] == {"fr": 0, "zh": 1, "de": 2} and fields["n_langs"] == 3
    assert fields["id2lang"] == {"0": "fr", "1": "zh", "2": "de"}
    formats.write(formats.read(tmp_path / "hf"), tmp_path / "run", format="bertjax")
    for path in (tmp_path / "hf", tmp_path / "run"):
        assert formats.read(path).languages == formats.describe(path).languages == names


XLM = {"model_type": "xlm", "n_langs": 3}


@pytest.mark.parametrize(
    ("tables", "names"),
    [
        ({}, ()),
        ({"id2lang": {"1": "de", "0": "fr"}}, ("fr", "de")),
        ({"lang2id": {"de": 1, "fr": 0}, "use_lang_emb": False}, ()),
        *(
            (tables, None)
            for tables in (
                {"lang2id": {"de": 0, "fr": 2}},
                {"lang2id": {"de": 0, "fr": 0}},
                {"lang2id": {"de": 0, "fr": 1}, "id2lang": {"0": "fr", "1": "de"}},
                {"lang2id": {name: number for number, name in enumerate("abcd")}},
                {"lang2id": ["de", "fr"]},
                {"id2lang": {"zero": "de"}},
                {"id2lang": {"0": 5}},
            )
        ),
    ],
)
def test_tables_of_languages_give_names_or_are_refused(tables, names):
    def read():
        return huggingface_config.parse_config(XLM | tables, source="config.json").languages

    if names is None:
        with pytest.raises(ValueError, match="each of at most 3 languages one number, from 0 on"):
            read()
    else:
        assert read() == names
