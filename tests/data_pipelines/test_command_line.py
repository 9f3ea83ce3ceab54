import dataclasses
import os
import sys

import pytest
from absl import flags

from bertjax.cli import command_line
from data_pipelines import (
    build,
    inspect_records,
    inspect_vocabulary,
    train_vocabulary,
)
from data_pipelines.building import options
from tests import programs

REQUIRED = ["--input=a", "--output=b"]


def parse(options_class, arguments):
    values = flags.FlagValues()
    command_line.define_flags(options_class, values)
    rest = values(["program", *arguments])
    return command_line.parsed(options_class, values, rest[1:])


def test_flags_have_the_defaults_and_types_of_the_options():
    assert parse(options.Options, [*REQUIRED, "--vocabulary=v"]) == options.Options(
        input="a", vocabulary="v", output="b"
    )
    found = parse(
        options.Options,
        [*REQUIRED, "--vocabulary=v", "--max_seq_length=64", "--masked_lm_prob=0.2"]
        + ["--nodo_lower_case", "--mask=none", "--overwrite", "--num_shards=1e3"],
    )
    expected = {"max_seq_length": 64, "masked_lm_prob": 0.2, "do_lower_case": False}
    expected |= {"mask": "none", "overwrite": True, "num_shards": 1000}
    fields = dataclasses.asdict(found)
    assert {name: fields[name] for name in expected} == expected


def test_options_that_are_missing_misspelt_or_of_another_type_are_refused():
    for arguments in (["--output=b"], [*REQUIRED, "--size=big"], [*REQUIRED, "--sizes=3"]):
        with pytest.raises(flags.Error):
            parse(train_vocabulary.Options, arguments)
    assert parse(inspect_records.Options, ["DIR", "--adopt"]).directory == "DIR"
    with pytest.raises(ValueError, match="one argument, the directory"):
        parse(inspect_records.Options, [])
    both = parse(inspect_vocabulary.Options, ["v", "a text"])
    assert (both.vocabulary, both.text) == ("v", "a text")
    with pytest.raises(ValueError, match="2 arguments: vocabulary, text"):
        parse(inspect_vocabulary.Options, ["v"])


def test_a_program_ends_with_one_line_where_flags_or_files_cannot_be_used(tmp_path):
    given = [*REQUIRED, "--vocabulary=v"]
    for arguments, reason in (
        (["--inputt=a"], "--inputt is not a flag. Did you mean --input? --help lists the flags"),
        (["--input=a"], "--vocabulary and --output must be given; --help lists the flags"),
        ([*given, "--max_seq_length=long"],
         "flag --max_seq_length=long: 'long' is not a whole number"),
        ([*given, "--dupe_factor=1.5"], "flag --dupe_factor=1.5: '1.5' is not a whole number"),
        ([*given, "--num_shards=1e-3"], "flag --num_shards=1e-3: '1e-3' is not a whole number"),
    ):  # fmt: skip
        line = f"bertjax: the command line cannot be used: {reason}"
        assert programs.run("data_pipelines.build", *arguments).error == line
    missing = [f"--{name}={tmp_path}/{name}" for name in ("input", "vocabulary", "output")]
    assert programs.run("data_pipelines.build", *missing).error.startswith("bertjax: ")


def test_a_reader_that_has_gone_makes_no_finished_job_fail(
    tmp_path, text_file, vocabulary_directory, monkeypatch
):
    made = tmp_path / "records"
    given = {"input": text_file, "vocabulary": vocabulary_directory, "output": str(made)}
    build_options = options.Options(**given, max_seq_length=32, num_workers=1)
    vocabulary_options = inspect_vocabulary.Options(vocabulary_directory, "a text")
    for main, given in (
        (build.main, build_options),
        (inspect_records.main, inspect_records.Options(str(made))),
        (inspect_vocabulary.main, vocabulary_options),
    ):
        reading_end, writing_end = os.pipe()
        os.close(reading_end)
        with open(writing_end, "w") as closed, monkeypatch.context() as patched:
            patched.setattr(sys, "stdout", closed)
            main(given)
            print("what comes later")
    assert (made / "manifest.json").exists()


def test_help_lists_the_flags_and_ends_well():
    for program in ("build", "train_vocabulary", "inspect_records"):
        shown = programs.succeed(f"data_pipelines.{program}", "--help").output.decode()
        assert "--vocabulary" in shown or "--size" in shown
