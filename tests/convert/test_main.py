"""Claims about the program `python -m bertjax.convert`."""

import json
import logging

import numpy as np
import pytest

from bertjax.convert import __main__ as program
from bertjax.convert import formats, pretrained, workdir
from bertjax.workdirs import checkpoint, reader
from tests import finetuned_workdir, programs
from tests.convert import weights


def test_a_checkpoint_of_a_workdir_is_chosen(tmp_path):
    config = finetuned_workdir.write(tmp_path / "run", "table")
    later = finetuned_workdir.random_params(config, seed=1)
    meta = reader.read(tmp_path / "run").meta
    with checkpoint.Checkpointer(tmp_path / "run", checkpoint.RetentionOptions()) as checkpointer:
        checkpointer._save(3, {"params": later}, {**meta})
    for step in ("0", "3", "newest"):
        program.convert(tmp_path / "run", tmp_path / step, step=step)
    kernel = "classifier.kernel"
    first, third, newest = (
        formats.read(tmp_path / step).params[kernel] for step in ("0", "3", "newest")
    )
    np.testing.assert_array_equal(first, workdir.read(tmp_path / "run", step=0).params[kernel])
    np.testing.assert_array_equal(third, later["classifier"]["kernel"])
    np.testing.assert_array_equal(newest, third)
    assert not np.array_equal(first, third)
    with pytest.raises(FileNotFoundError, match="no checkpoint of step 2; it has 0, 3"):
        program.convert(tmp_path / "run", tmp_path / "out", step="2")
    with pytest.raises(ValueError, match="--step=3 chooses a checkpoint of a workdir"):
        program.convert(tmp_path / "3", tmp_path / "out", step="3")


def write_marked(directory, marks):
    """A workdir with a checkpoint of step 0, and one of each step that reached a mark."""
    config = finetuned_workdir.write(directory, "table")
    meta = {**reader.read(directory).meta, "words": 10**7, "epochs": 2.5, "word_marks": marks}
    with checkpoint.Checkpointer(directory, checkpoint.RetentionOptions(keep_last=9)) as saving:
        for step in sorted({step for _, step in marks}):
            params = finetuned_workdir.random_params(config, seed=step)
            saving._save(step, {"params": params}, meta)


def test_every_checkpoint_kept_by_words_has_a_directory_named_by_its_mark(tmp_path):
    write_marked(tmp_path / "run", [[1500, 3], [2000, 3], [10**6, 5]])
    program.convert_all(tmp_path / "run", tmp_path / "out")
    names = {"chck_1500": 3, "chck_2K": 3, "chck_1M": 5}
    assert {path.name for path in (tmp_path / "out").iterdir()} == {*names}
    for name, step in names.items():
        found = formats.read(tmp_path / "out" / name)
        saved = workdir.read(tmp_path / "run", step=step)
        np.testing.assert_array_equal(*(it.params["classifier.kernel"] for it in (found, saved)))
        card = (tmp_path / "out" / name / "README.md").read_text()
        assert "Seen: 2.5 epochs, 10,000,000 words." in card
    with pytest.raises(ValueError, match="--all_words and --step each choose"):
        program.convert_all(tmp_path / "run", tmp_path / "other", step="5")
    paths = f"--from={tmp_path / 'out' / 'chck_1M'}", f"--to={tmp_path / 'other'}"
    failed = programs.run("bertjax.convert", *paths, "--all_words")
    assert failed.error.endswith("chck_1M holds none: leave it out")


def test_the_program_converts_and_ends_in_one_line_of_error(tmp_path):
    formats.write(weights.make(), tmp_path / "hf", format="huggingface")
    target = f"--to={tmp_path / 'run'}"
    programs.succeed("bertjax.convert", f"--from={tmp_path / 'hf'}", target, "--format=bertjax")
    weights.assert_equal(formats.read(tmp_path / "run"), weights.make())
    paths = f"--from={tmp_path / 'nothing'}", f"--to={tmp_path / 'other'}"
    failed = programs.run("bertjax.convert", *paths)
    assert failed.error == f"bertjax: {tmp_path / 'nothing'} does not exist"


def test_the_source_is_never_replaced_and_a_license_has_a_file_to_go_into(tmp_path):
    formats.write(weights.make(), tmp_path / "hf", format="huggingface")
    (tmp_path / "link").symlink_to(tmp_path / "hf")
    for target in ("hf", ".", "link"):
        with pytest.raises(ValueError, match="the source"):
            program.convert(tmp_path / "hf", tmp_path / target, overwrite=True)
    with pytest.raises(ValueError, match="--license"):
        program.convert(tmp_path, tmp_path / "out", format="bertjax", license="mit")


def test_a_head_can_be_chosen_and_what_it_leaves_behind_is_named(tmp_path, caplog):
    """Every format: test_formats.py."""
    made = weights.make()
    formats.write(made, tmp_path / "all", format="huggingface")
    with caplog.at_level(logging.WARNING):
        program.convert(tmp_path / "all", tmp_path / "out", head="masked_lm")
    assert "left behind: 4 (" in caplog.text and "pooler" in caplog.text
    weights.assert_equal(formats.read(tmp_path / "out"), pretrained.select(made, "masked_lm"))


def test_a_choice_that_no_config_tells_is_chosen(tmp_path):
    made = weights.make("multiple_choice")
    formats.write(made, tmp_path / "hf", format="huggingface")
    config = tmp_path / "hf" / "config.json"
    fields = json.loads(config.read_text())
    del fields["architectures"]
    config.write_text(json.dumps(fields))
    assert formats.read(tmp_path / "hf").head == "sequence_classification"
    program.convert(tmp_path / "hf", tmp_path / "out", head="multiple_choice")
    weights.assert_equal(formats.read(tmp_path / "out"), made)
