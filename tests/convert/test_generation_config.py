"""generation_config.json: our options in its fields, and the fields of released models."""

import json

import pytest

from bertjax.convert import formats, generation_config
from bertjax.models import generation
from tests.convert import weights

OPTIONS = {
    "max_target_length": 48,
    "min_new_tokens": 3,
    "beams": 4,
    "length_penalty": 0.6,
    "early_stopping": "never",
    "no_repeat_ngram": 2,
}


@pytest.mark.parametrize("changes", [{}, {"early_stopping": "true", "min_new_tokens": 0}])
def test_options_become_fields_and_come_back(changes):
    options = OPTIONS | changes
    fields = generation_config.of_options(options)
    # transformers counts the start token.
    assert fields["max_length"] == 49 and ("min_new_tokens" in fields) == (not changes)
    assert generation_config.options(fields) == {
        name: value for name, value in options.items() if name != "min_new_tokens" or value
    }


def test_fields_of_beams_are_neither_written_nor_read_without_beams():
    fields = generation_config.of_options(OPTIONS | {"beams": 1})
    assert not {"length_penalty", "early_stopping"} & fields.keys()
    read = generation_config.options({"num_beams": 1, "length_penalty": 2.0})
    assert read == {"beams": 1}


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"max_length": 20, "max_new_tokens": 7}, {"max_target_length": 7}),
        ({"min_length": 56}, {"min_new_tokens": 55}),
        ({"min_length": 56, "min_new_tokens": 9}, {"min_new_tokens": 9}),
        ({"min_length": 0}, {}),
    ],
)
def test_lengths_of_new_tokens_come_first(fields, options):
    assert generation_config.options(fields) == options


def test_a_search_that_is_not_ours_is_warned_of(caplog):
    generation_config.options({"repetition_penalty": 1.0, "num_beam_groups": 1})
    assert not caplog.messages
    generation_config.options({"forced_bos_token_id": 0, "do_sample": True})
    (message,) = caplog.messages
    assert "do_sample True, forced_bos_token_id 0" in message


def exported(tmp_path, **changes):
    """A released model with fields in config.json, as older ones have, or in a file of theirs."""
    made = weights.make("sequence_to_sequence", decoder=weights.CONFIG, shares="none")
    formats.write(made, tmp_path / "hf", format="huggingface", overwrite=True)
    path = tmp_path / "hf" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return tmp_path / "hf"


def test_an_export_without_a_search_has_the_length_of_ours(tmp_path):
    fields = json.loads((exported(tmp_path) / generation_config.FILE).read_text())
    longest = min(weights.CONFIG.max_position_embeddings, generation.Search.max_length)
    assert fields["max_length"] == longest + 1
    assert (fields["decoder_start_token_id"], fields["eos_token_id"], fields["pad_token_id"]) == (
        *(2, 3),
        0,
    )


def test_a_released_model_keeps_its_fields_through_a_workdir(tmp_path):
    path = exported(tmp_path)
    theirs = {
        "max_length": 21,
        "num_beams": 4,
        "forced_eos_token_id": 3,
        "decoder_start_token_id": 7,
    }
    (path / generation_config.FILE).write_text(json.dumps({**theirs, "_from_model_config": True}))
    formats.write(formats.read(path), tmp_path / "run", format="bertjax")
    formats.write(formats.read(tmp_path / "run"), tmp_path / "again", format="huggingface")
    fields = json.loads((tmp_path / "again" / generation_config.FILE).read_text())
    assert fields == theirs | {"eos_token_id": 3, "pad_token_id": 0}
    # Another model of the same weights does not search.
    bare = formats.read(path, head="none")
    assert bare.generation == {}


def test_older_fields_are_in_config_json_where_the_decoder_has_the_rest(tmp_path):
    path = exported(tmp_path)
    decoder = json.loads((path / "config.json").read_text())["decoder"]
    decoder |= {"max_length": 20, "num_beams": 1}
    path = exported(tmp_path, num_beams=3, min_length=None, decoder=decoder)
    (path / generation_config.FILE).unlink()
    assert formats.read(path).generation == {"max_length": 20, "num_beams": 3}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ('{"num_beams": "4", "early_stopping": "late"}', "num_beams is '4'.*early_stopping is"),
        ('{"max_length": 1', "is not JSON"),
        ("[]", "must be a JSON object"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, fields, said):
    path = exported(tmp_path)
    (path / generation_config.FILE).write_text(fields)
    with pytest.raises(ValueError, match=rf"(?s){generation_config.FILE}.*{said}"):
        formats.read(path)
