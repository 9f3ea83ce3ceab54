"""Claims about the commands from text to an exported model: what they are, and when one is done."""

import json
import os
import pathlib

import pytest

from bertjax import recipes
from bertjax.files import directories
from bertjax.start import __main__ as program
from bertjax.start import commands
from bertjax.workdirs import ownership
from tests import programs

OUT = pathlib.Path("out")


def options(**changes):
    return commands.Options(**{"input": "corpus/*.txt", "recipe": "own", **changes})


def test_a_recipe_that_takes_all_from_records_gets_records_whose_masks_are_drawn_later():
    made = commands.before_training(OUT, options(), recipes.load("own"))
    assert [it.module for it in made] == ["data_pipelines.train_vocabulary"] + 2 * [
        "data_pipelines.build"
    ]
    vocabulary, train, heldout = (set(it.arguments) for it in made)
    assert {"--kind=auto", "--size=0", "--normalization=nfc"} <= vocabulary
    assert {"--mask=none", "--pair_objective=none", "--max_seq_length=128"} <= train & heldout
    assert train - heldout == {"--split=train", f"--output={OUT / 'train'}"}
    # The vocabulary does not see the held-out documents either.
    assert "--heldout_fraction=0.05" in vocabulary & train & heldout


def test_the_programs_that_read_the_text_read_it_alike():
    given = {"encoding": "cp1253", "text_field": "Inhalt"}
    made = commands.before_training(OUT, options(**given), recipes.load("own"))
    assert all({"--encoding=cp1253", "--text_field=Inhalt"} <= {*it.arguments} for it in made)


def test_records_are_as_a_recipe_reads_them():
    for recipe, lengths, masks in (
        ("quickstart", ["32"], False),
        ("bert_mini", ["128", "512"], False),
        ("modern_mini", ["512"], True),
    ):
        config = recipes.load(recipe)
        _, *builds = commands.before_training(OUT, options(recipe=recipe), config)
        of_builds = [*lengths, lengths[-1]]
        for length, build in zip(of_builds, builds, strict=True):
            assert f"--max_seq_length={length}" in build.arguments
        assert all(("--mask=none" in build.arguments) == masks for build in builds)
        train = commands.training(OUT, options(recipe=recipe), config)
        name = "train_{max_seq_length}" if len(lengths) > 1 else "train"
        assert f"--config.data.train_dir={OUT / name}" in train.arguments
        (heldout,) = (it for it in train.arguments if "eval_dir" in it)
        assert heldout.partition("=")[2] == str(builds[-1].made)


def test_a_command_can_be_typed_as_it_is_shown():
    command = commands.Command("bertjax.fill_mask", ("--checkpoint=a b", "--", "日本の [MASK]"))
    assert command.shown == "python -m bertjax.fill_mask '--checkpoint=a b' -- '日本の [MASK]'"
    assert not command.is_done


def test_a_model_is_exported_again_once_the_run_has_gone_on(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    config = recipes.load("own")

    def export():
        return commands.after_training(tmp_path, config, ["a [MASK]"])[-1]

    assert not export().is_done and "--overwrite" not in export().arguments
    (tmp_path / "exported").mkdir()
    assert export().is_done
    later = (tmp_path / "exported").stat().st_mtime + 10
    os.utime(tmp_path / "run" / "checkpoints", (later, later))
    assert not export().is_done and "--overwrite" in export().arguments


def test_a_second_call_goes_on_with_the_same_options_alone(tmp_path):
    output = tmp_path / "out"
    commands.begin(output, options(hours=1.0))  # which made nothing, and can be corrected
    for _ in range(2):
        commands.begin(output, options(hours=2.0))
        commands.store(output, options(hours=2.0))
    stored = json.loads((output / commands.OPTIONS_FILE).read_text("utf-8"))
    assert stored["input"] == "corpus/*.txt" and stored["hours"] == 2.0
    commands.begin(output, options(hours=1.0))  # no run has this length
    (output / "run").mkdir()
    commands.begin(output, options(hours=1.0))  # the run decides again
    with pytest.raises(ValueError, match="hours was 2.0, is 0.0. A run .*remove .*run to"):
        commands.begin(output, options(hours=0.0))
    with pytest.raises(ValueError) as error:
        commands.begin(output, options(recipe="bert_mini", hours=0.0))
    for changed in ("--config was 'own', is 'bert_mini'", "--hours was 2.0, is 0.0"):
        assert changed in str(error.value)


def test_the_form_in_which_start_takes_what_reports_advise_is_said_once(
    tmp_path, monkeypatch, capsys
):
    report = "Records\nWarnings: 1\n  ! few examples: use\n    --dupe_factor=10\n"
    for printed, times in ((report, 1), ("Records\nWarnings: none\n", 0)):
        monkeypatch.setattr(program, "run", lambda command, printed=printed: printed)
        with pytest.raises(FileNotFoundError, match="heldout"):  # which nothing has made
            program.start(tmp_path / "out", options(), recipes.load("own"))
        assert capsys.readouterr().out.count("--build_options='--NAME=VALUE") == times


def test_stored_options_that_are_damaged_are_named_with_what_to_do(tmp_path):
    commands.begin(tmp_path, options())
    for content in ('{"input": ', "[]", "\0"):
        (tmp_path / commands.OPTIONS_FILE).write_text(content)
        with pytest.raises(ValueError, match=r"start\.json, the options .*: remove it to"):
            commands.begin(tmp_path, options())


def test_one_process_at_a_time_makes_an_output(tmp_path):
    with ownership.Ownership(tmp_path / "out"):
        done = programs.run("bertjax.start", "--input=a.txt", f"--output={tmp_path / 'out'}")
    assert f"is in use by process {os.getpid()} on" in done.error
    assert "give another --output" in done.error and not done.output


def test_files_of_somebody_else_are_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("mine")
    with pytest.raises(directories.NotOursError, match="run.*give another --output"):
        commands.begin(tmp_path, options())
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    with pytest.raises(directories.NotOursError, match="thesis.tex is a file"):
        commands.begin(tmp_path / "run" / "thesis.tex", options())


def test_a_pipe_that_would_be_read_several_times_is_refused_before_anything_is_made(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for text in ("-", f"a.txt,{tmp_path / 'pipe'}"):
        done = programs.run("bertjax.start", f"--input={text}", f"--output={tmp_path / 'out'}")
        assert "the text is read several times" in done.error
    assert not (tmp_path / "out").exists()
