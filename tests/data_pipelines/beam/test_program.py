import subprocess
import sys

import pytest

from bertjax.data import records
from data_pipelines import build as local
from data_pipelines.building import blocks, builders, fast, shards
from data_pipelines.building.options import Options
from tests.data_pipelines import decoded
from tests.data_pipelines.conftest import made_up_text

BLOCKED = (
    "import sys, runpy; sys.modules['apache_beam'] = None; "
    "runpy.run_module('data_pipelines.beam', run_name='__main__')"
)


@pytest.fixture
def program():
    """The module, which imports Beam."""
    from data_pipelines.beam import program

    return program


@pytest.fixture
def small_parts(monkeypatch, program):
    """Many blocks, groups, batches and shards of little text."""
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 1500)
    monkeypatch.setattr(blocks, "GROUP_BYTES", 4000)
    monkeypatch.setattr(shards, "ROWS_PER_BATCH", 16)
    monkeypatch.setattr(builders, "SAMPLE_BATCHES", 1)
    monkeypatch.setattr(builders, "DEFAULT_NUM_SHARDS", 8)
    monkeypatch.setattr(builders, "SHARD_BYTES", 7000)
    monkeypatch.setattr(program.work, "PIECE_TOKENS", 500)


@pytest.fixture
def files(tmp_path) -> str:
    for number, documents in enumerate([8, 2, 12, 6]):
        path = tmp_path / f"text{number}.txt"
        path.write_text(made_up_text(documents, seed=number), encoding="utf-8")
    # A block without a sentence, a file that is skipped, and a line with a problem.
    (tmp_path / "text4.txt").write_text("\u200b\n\n" * 1000, encoding="utf-8")
    (tmp_path / "text5.txt").write_bytes(b"")
    (tmp_path / "text6.txt").write_bytes(b"Some words \xff here.\nAnd there.\n\nThe end is near.")
    return str(tmp_path / "*.txt")


def judged_build(options, make):
    """Builds with `make` and returns what it gave to be judged."""
    found = []

    def noting(options, vocabulary, units, output, judge):
        return make(options, vocabulary, units, output, found.append)

    local.build(options, noting)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "chosen",
    [
        {"num_shards": 0, "balanced_nsp": True, "mask": "whole_word", "segmenter": "icu"},
        {"num_shards": 5, "pair_objective": "none", "packing": "full_sentences", "mask": "none"},
        {
            **{"num_shards": 3, "pair_objective": "sop", "packing": "best_fit"},
            **{"short_seq_prob": 0.9, "count_words": True},
        },
    ],
    ids=lambda chosen: chosen.get("pair_objective", "nsp") + str(chosen["num_shards"]),
)
@pytest.mark.usefixtures("small_parts")
def test_beam_writes_the_files_of_the_local_build(
    program, tmp_path, files, vocabulary_directory, chosen
):
    def run_here(name, add_steps):
        program._run("DirectRunner", [], name, add_steps)

    def options(kind, name):
        return kind(
            input=files,
            vocabulary=vocabulary_directory,
            output=str(tmp_path / name),
            max_seq_length=32,
            dupe_factor=2,
            num_workers=1,
            **chosen,
        )

    here = judged_build(options(Options, "local"), fast.build)
    there = judged_build(
        options(program.BeamOptions, "beam"),
        lambda *arguments: program.make(*arguments, run=run_here),
    )
    assert there == here
    assert decoded.files(tmp_path / "local") == decoded.files(tmp_path / "beam")
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["beam", "local"]
    manifest = records.Manifest.load(tmp_path / "beam")
    assert len(manifest.shards) == (chosen["num_shards"] or 16)
    assert manifest.statistics["empty_documents"] == 1000
    assert manifest.statistics["reading_problems"]["invalid_utf8_lines"]["count"] == 1


@pytest.mark.slow
def test_one_document_is_an_error_and_leaves_no_output(program, tmp_path, vocabulary_directory):
    (tmp_path / "text.txt").write_text("One. Two. Three.")
    options = program.BeamOptions(
        input=str(tmp_path / "text.txt"),
        vocabulary=vocabulary_directory,
        output=str(tmp_path / "records"),
    )
    with pytest.raises(ValueError, match="of it, has 1 documents") as caught:
        program.build(options)
    # Said by the program itself, not by a worker with the names of its step and trace.
    assert "while running" not in str(caught.value)
    assert not (tmp_path / "records").exists()


def test_options_that_cannot_work_are_named(program):
    for changes, complaint in (
        ({"runner": "Dataflow"}, "known are DirectRunner"),
        ({"algorithm": "exact"}, "data_pipelines.build"),
        ({"deduplicate": "lines"}, "deduplicate is .lines., .*data_pipelines.build"),
        ({"runner": "DaskRunner"}, "give --dask_client_address"),
        ({"runner": "DataflowRunner"}, "output is 'somewhere', on this machine"),
    ):
        options = program.BeamOptions(input="x", vocabulary="y", output="somewhere", **changes)
        with pytest.raises(ValueError, match=complaint):
            program.build(options)
    # A misspelled option is not passed on to Beam.
    program._check_unknown(["--max_num_workers=3", "--project", "max", "--flink_master=host:1"])
    with pytest.raises(ValueError, match="did you mean --max_seq_length"):
        program._check_unknown(["--max_seq_lenght=64"])


def test_without_beam_the_program_says_how_to_install_it():
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("bertjax: data_pipelines.beam needs")
    assert "pip install 'bertjax[beam]'" in done.stderr
