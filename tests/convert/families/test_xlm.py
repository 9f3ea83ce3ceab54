"""Claims about XLM's files that need no transformers."""

import json

import pytest

from bertjax.convert import families, formats
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
