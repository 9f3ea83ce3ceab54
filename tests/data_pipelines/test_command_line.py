import dataclasses
import subprocess
import sys

import pytest
from absl import flags

from data_pipelines import command_line, inspect_records, options, train_vocabulary
from tests import programs

REQUIRED = ["--input=a", "--output=b"]


def parse(options_class, arguments, positional=""):
    values = flags.FlagValues()
    command_line.define_flags(options_class, values, positional)
    rest = values(["program", *arguments])
    return command_line.parsed(options_class, values, positional, rest[1:])


def test_flags_have_the_defaults_and_types_of_the_options():
    assert parse(options.Options, [*REQUIRED, "--vocabulary=v"]) == options.Options(
        input="a", vocabulary="v", output="b"
    )
    found = parse(
        options.Options,
        [*REQUIRED, "--vocabulary=v", "--max_seq_length=64", "--masked_lm_prob=0.2"]
        + ["--nodo_lower_case", "--mask=none", "--overwrite"],
    )
    expected = {"max_seq_length": 64, "masked_lm_prob": 0.2, "do_lower_case": False}
    expected |= {"mask": "none", "overwrite": True}
    fields = dataclasses.asdict(found)
    assert {name: fields[name] for name in expected} == expected


@pytest.mark.parametrize(
    "arguments", [["--output=b"], [*REQUIRED, "--size=big"], [*REQUIRED, "--sizes=3"]]
)
def test_missing_misspelt_and_mistyped_options_are_refused(arguments):
    with pytest.raises(flags.Error):
        parse(train_vocabulary.Options, arguments)


def test_whole_numbers_may_be_written_with_an_exponent():
    assert parse(train_vocabulary.Options, [*REQUIRED, "--size=3.05e4"]).size == 30_500
    found = parse(options.Options, [*REQUIRED, "--vocabulary=v", "--num_shards=1e3"])
    assert found.num_shards == 1000 and isinstance(found.num_shards, int)


def test_positional_argument_is_taken_and_required():
    assert parse(inspect_records.Options, ["DIR", "--adopt"], "directory").directory == "DIR"
    with pytest.raises(ValueError, match="one argument, the directory"):
        parse(inspect_records.Options, [], "directory")


def test_a_program_ends_with_one_line_for_bad_input(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "data_pipelines.build"]
        + [f"--input={tmp_path}/none.txt", f"--vocabulary={tmp_path}", f"--output={tmp_path}/out"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("bertjax: ") and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--inputt=a"], "--inputt is not a flag. Did you mean --input? --help lists the flags"),
        (["--input=a"], "--vocabulary and --output must be given; --help lists the flags"),
        ([*REQUIRED, "--vocabulary=v", "--max_seq_length=long"],
         "flag --max_seq_length=long: 'long' is not a whole number"),
        ([*REQUIRED, "--vocabulary=v", "--dupe_factor=1.5"],
         "flag --dupe_factor=1.5: '1.5' is not a whole number"),
        ([*REQUIRED, "--vocabulary=v", "--num_shards=1e-3"],
         "flag --num_shards=1e-3: '1e-3' is not a whole number"),
    ],
)  # fmt: skip
def test_flags_that_cannot_be_used_are_told_in_a_line(arguments, said):
    reason = f"bertjax: the command line cannot be used: {said}"
    assert programs.run("data_pipelines.build", *arguments).error == reason


@pytest.mark.parametrize("program", ["build", "train_vocabulary", "inspect_records"])
def test_help_lists_the_flags_and_ends_well(program):
    shown = programs.succeed(f"data_pipelines.{program}", "--help").output.decode()
    assert "--vocabulary" in shown or "--size" in shown
