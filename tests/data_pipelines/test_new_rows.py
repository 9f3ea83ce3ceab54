"""A row of a table is all that another input format, pair objective or mask takes."""

import pathlib

import numpy as np
import pytest
from absl import flags

from bertjax.cli import command_line
from bertjax.data import masking, records
from bertjax.tokenization import tokenizer
from data_pipelines import build
from data_pipelines.building.options import Options
from data_pipelines.documents import sources
from data_pipelines.formats import base as format_base
from data_pipelines.objectives import base, examples, pairing
from data_pipelines.reports import report
from tests.data_pipelines import conftest, decoded


def run(*arguments):
    """Runs the program with the arguments of a command line; returns its help."""
    values = flags.FlagValues()
    command_line.define_flags(Options, values)
    values(["build", "--max_seq_length=32", "--num_workers=1", *arguments])
    build.main(command_line.parsed(Options, values))
    return " ".join(values.get_help().split())


def read_backwards(path, reading, log):
    """Yields documents, a line each, whose letters stand in reversed order."""
    for number, line in enumerate(pathlib.Path(path).read_text().splitlines()):
        yield f"{path}:{number}", line[::-1].replace("|", "\n")


def check_backwards(path, reading):
    if not pathlib.Path(path).read_text():
        raise ValueError(f"{path} has nothing to be read backwards")


@pytest.fixture
def backwards(monkeypatch):
    row = format_base.Format(
        help="letters in reversed order .sdrawkcab",
        suffixes=(".sdrawkcab",),
        check=check_backwards,
        read=read_backwards,
    )
    monkeypatch.setitem(sources.FORMATS, "backwards", row)


@pytest.mark.usefixtures("backwards")
def test_an_input_format_is_a_row(tmp_path, vocabulary_directory, capsys):
    text = conftest.made_up_text(30)
    (tmp_path / "a.txt").write_text(text)
    lines = (one.replace("\n", "|")[::-1] for one in text.split("\n\n"))
    (tmp_path / "a.sdrawkcab").write_text("\n".join(lines) + "\n")
    common = [f"--vocabulary={vocabulary_directory}", "--num_shards=2"]
    for kind in ("txt", "sdrawkcab"):
        told = run(f"--input={tmp_path}/a.{kind}", f"--output={tmp_path}/{kind}", *common)
    one, other = (decoded.files(tmp_path / kind, "*tfrecord*") for kind in ("txt", "sdrawkcab"))
    assert one == other != {}
    assert "letters in reversed order .sdrawkcab" in told
    assert "documents               30" in capsys.readouterr().out
    with pytest.raises(FileNotFoundError, match="letters in reversed order"):
        run(f"--input={tmp_path}/none.sdrawkcab", f"--output={tmp_path}/none", *common)
    (tmp_path / "empty.sdrawkcab").write_text("")
    with pytest.raises(ValueError, match="nothing to be read backwards"):
        run(f"--input={tmp_path}/*.sdrawkcab", f"--output={tmp_path}/none", *common)


def draft_echoes(block, options):
    """Pairs every sentence with its next one or, in every third pair, with itself."""
    starts = block.text.sentence_starts
    lengths = np.diff(starts)
    first = np.arange(block.text.num_sentences - 1)
    is_echo = first % 3 == 0
    spans = np.zeros(len(first), examples.SPAN)
    spans["begin_a"], spans["length_a"] = starts[first], lengths[first]
    second = np.where(is_echo, first, first + 1)
    spans["begin_b"], spans["length_b"] = starts[second], lengths[second]
    spans["label"] = is_echo
    return base.Drafts(spans, base.Requests.none())


def test_a_pair_objective_is_a_row(tmp_path, text_file, vocabulary_directory, capsys, monkeypatch):
    row = pairing.PairObjective(
        help="a sentence and its next one, or itself", labels=("new", "echo"), draft=draft_echoes
    )
    common = [f"--input={text_file}", f"--vocabulary={vocabulary_directory}", "--dupe_factor=1"]
    common += ["--pair_objective=echo", f"--output={tmp_path}/out"]
    with pytest.raises(flags.Error, match="should be one of"):
        run(*common)
    monkeypatch.setitem(pairing.PAIR_OBJECTIVES, "echo", row)
    assert "echo: a sentence and its next one, or itself" in run(*common)
    said = capsys.readouterr().out
    assert "echo (new or echo)" in said and "echo pairs " in said
    manifest = records.Manifest.load(tmp_path / "out")
    batch = decoded.read(tmp_path / "out")
    ids, labels = decoded.restored(batch), batch["next_sentence_labels"]
    assert manifest.pair_objective == "echo"
    assert manifest.statistics["echo_pair_share"] == labels.mean() == pytest.approx(1 / 3, abs=0.02)
    for row_ids, segments, label in zip(ids, batch["segment_ids"], labels, strict=True):
        second = row_ids[segments == 1][:-1]
        if label and len(second) < 14:  # longer ones were cut
            np.testing.assert_array_equal(row_ids[1 : 1 + len(second)], second)

    vocabulary = tokenizer.load(tmp_path / "out")
    shown = list(report.decoded(tmp_path / "out", manifest, vocabulary, 20))
    assert {example.label for example in shown} == {"new", "echo"}


def choose_first(maskable, continues, wanted, rng):
    """Chooses the first tokens of a row."""
    return maskable & (np.cumsum(maskable, axis=1) <= wanted[:, None])


def test_a_mask_is_a_row(tmp_path, text_file, vocabulary_directory, monkeypatch):
    monkeypatch.setitem(masking.MASKERS, "first", masking.Masker(choose_first, needs_words=False))
    arguments = [f"--input={text_file}", f"--vocabulary={vocabulary_directory}", "--dupe_factor=1"]
    told = run(*arguments, f"--output={tmp_path}/out", "--mask=first")
    assert "<token|whole_word|ngram|span|first|none>" in told
    batch = decoded.read(tmp_path / "out")
    assert records.Manifest.load(tmp_path / "out").arguments["mask"] == "first"
    specials = tokenizer.load(tmp_path / "out").special_ids
    ids, used = decoded.restored(batch), batch["masked_lm_weights"] > 0
    for row, positions, real in zip(ids, batch["masked_lm_positions"], used, strict=True):
        words = np.flatnonzero(~np.isin(row, specials))
        assert real.any()
        np.testing.assert_array_equal(positions[real], words[: real.sum()])
