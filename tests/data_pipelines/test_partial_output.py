import os

import pytest

from bertjax.data import records
from bertjax.files import directories
from data_pipelines import partial_output

TOKENS, EXAMPLES = {"input": "text", "vocabulary": "a"}, {"input": "text", "seed": 1}
OTHER_TOKENS, OTHER_EXAMPLES = TOKENS | {"vocabulary": "b"}, EXAMPLES | {"seed": 2}


def begun(output, tokens=TOKENS, examples=EXAMPLES, **arguments):
    made = partial_output.PartialOutput(output, **arguments)
    made.begin(tokens, examples)
    return made


def fill(made, *, shards=True):
    """Leaves what a build leaves that was killed while it wrote shards."""
    (made.scratch / "tokens.bin").write_text("tokens")
    (made.scratch / "pairs-000000.npy").write_text("pairs")
    (made.scratch / "pairs-000000.json").write_text("counts")
    (made.scratch / "bert-train.tfrecord-00000-of-00004.json").write_text("notes")
    if shards:
        (made.records / "bert-train.tfrecord-00000-of-00004").write_text("shard")


def found(made):
    ours = {"tokens.json", "examples.json", directories.MARKER, directories.LOCK_FILE}
    names = {path.name for path in made.scratch.iterdir()} - ours
    kinds = {name.split("-")[0].split(".")[0] for name in names}
    return kinds | {path.name.split("-")[0] for path in made.records.iterdir()}


def test_the_same_build_finds_everything_as_it_was_and_publishes_the_records_alone(tmp_path):
    fill(begun(tmp_path / "out"))
    made = begun(tmp_path / "out")
    assert found(made) == {"tokens", "pairs", "bert"}
    assert not (tmp_path / "out").exists()
    made.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    shard = "bert-train.tfrecord-00000-of-00004"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {shard, directories.MARKER}
    with pytest.raises(ValueError, match="--scratch"):
        partial_output.PartialOutput("gs://no-such-bucket/out")


def test_other_examples_keep_the_tokens(tmp_path):
    fill(begun(tmp_path / "out"), shards=False)
    made = begun(tmp_path / "out", examples=OTHER_EXAMPLES)
    assert found(made) == {"tokens"}
    # And from now on it is theirs.
    fill(made)
    assert found(begun(tmp_path / "out", examples=OTHER_EXAMPLES)) == {"tokens", "pairs", "bert"}


def test_other_tokens_keep_nothing_whatever_the_examples(tmp_path):
    for examples in (EXAMPLES, OTHER_EXAMPLES):
        fill(begun(tmp_path / "out"), shards=False)
        assert found(begun(tmp_path / "out", OTHER_TOKENS, examples)) == set()


@pytest.mark.parametrize(
    ("tokens", "examples", "message"),
    [
        (TOKENS, OTHER_EXAMPLES, "seed 1, now 2"),
        (OTHER_TOKENS, EXAMPLES, "vocabulary 'a', now 'b'"),
    ],
)
def test_finished_shards_are_only_thrown_away_if_somebody_says_so(
    tmp_path, tokens, examples, message
):
    output = tmp_path / "out"
    fill(begun(output))
    with pytest.raises(FileExistsError, match=f"finished shards.*{message}.*--overwrite"):
        begun(output, tokens, examples)
    assert found(begun(output)) == {"tokens", "pairs", "bert"}
    made = begun(output, tokens, examples, overwrite=True)
    assert "bert" not in found(made) and not list(made.records.iterdir())


def test_an_output_is_replaced_if_asked_for_and_only_when_the_new_one_is_there(tmp_path):
    output = tmp_path / "out"
    for name in (".out.0123456789abcdef0123456789abcdef.bertjax_old", "out"):
        # The first was left behind by a build that was killed in its last moment.
        (tmp_path / name).mkdir()
        (tmp_path / name / records.MANIFEST_FILE).write_text("the old one")
        directories.mark(tmp_path / name, "records", [records.MANIFEST_FILE])
    with pytest.raises(FileExistsError, match="--overwrite"):
        begun(output)
    made = begun(output, overwrite=True)
    (made.records / records.MANIFEST_FILE).write_text("the new one")
    assert (output / records.MANIFEST_FILE).read_text() == "the old one"
    made.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (output / records.MANIFEST_FILE).read_text() == "the new one"


def test_a_scratch_directory_loses_nothing_but_the_work_itself(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "thesis.tex").write_text("years of work")
    for tokens in (TOKENS, OTHER_TOKENS):
        made = begun(tmp_path / "out", tokens, scratch=str(scratch))
        assert scratch in made.scratch.parents
        assert found(made) == set()
        fill(made, shards=False)
    made.publish()
    assert [path.name for path in scratch.iterdir()] == ["thesis.tex"]


def test_a_full_disk_at_the_start_does_not_lose_the_work(tmp_path, monkeypatch):
    fill(begun(tmp_path / "out"))

    def full(number):
        os.truncate(number, 5)
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        for examples in (EXAMPLES, OTHER_EXAMPLES):
            with pytest.raises(OSError, match="finished|No space"):
                begun(tmp_path / "out", examples=examples)
                raise OSError("finished without writing")
    assert found(begun(tmp_path / "out")) == {"tokens", "pairs", "bert"}


def test_drafts_of_killed_writers_are_never_published(tmp_path):
    made = begun(tmp_path / "out")
    drafts = [made.records / f"shard.{32 * 'a'}.draft", made.scratch / f"key.{32 * 'b'}.draft"]
    for draft in drafts:
        draft.write_text("half")
    made = begun(tmp_path / "out")
    assert not any(draft.exists() for draft in drafts)
    # Drafts of a worker of Beam whose work another one has finished.
    drafts[0].write_text("half")
    made.publish()
    assert [path.name for path in (tmp_path / "out").iterdir()] == [directories.MARKER]


def test_two_builds_of_one_output_exclude_each_other(tmp_path):
    with partial_output.PartialOutput(tmp_path / "out"):
        pass
    assert not list(tmp_path.iterdir())  # nothing was begun
    with partial_output.PartialOutput(tmp_path / "out") as first:
        first.begin({}, {})
        with (
            pytest.raises(FileExistsError, match="another build is writing"),
            partial_output.PartialOutput(tmp_path / "out"),
        ):
            pass
    with partial_output.PartialOutput(tmp_path / "out") as second:
        second.begin({}, {})
        second.publish()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_build_that_is_interrupted_as_it_cleans_up_excludes_no_other(tmp_path, monkeypatch):
    interrupted = partial_output.PartialOutput(tmp_path / "out", keeps_work=False)

    def stopped(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), interrupted:
        patch.setattr(directories, "remove", stopped)
    with partial_output.PartialOutput(tmp_path / "out"):
        pass


def test_outputs_with_the_same_last_part_share_no_scratch_and_one_output_has_one(tmp_path):
    scratch = str(tmp_path / "scratch")
    builds = []
    for parent in ("a", "b"):
        (tmp_path / parent).mkdir()
        builds.append(partial_output.PartialOutput(tmp_path / parent / "out", scratch=scratch))
    with builds[0] as first, builds[1] as second:
        for number, made in enumerate((first, second)):
            made.begin(TOKENS, EXAMPLES)
            (made.scratch / "tokens.bin").write_text(str(number))
        assert [(made.scratch / "tokens.bin").read_text() for made in builds] == ["0", "1"]
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for same in (tmp_path / "link" / "out", tmp_path / "b" / ".." / "a" / "out"):
        assert partial_output.PartialOutput(same, scratch=scratch).scratch == builds[0].scratch


@pytest.mark.parametrize("scratch", ["", "disk"])
def test_all_of_a_directory_with_the_mark_of_a_build_is_the_builds(tmp_path, scratch):
    scratch = scratch and str(tmp_path / scratch)
    made = begun(tmp_path / "out", scratch=scratch)
    fill(made)
    for name in ("tokens.txt", "blocks"):
        (made.scratch / name).write_text("of an older version")
    made = begun(tmp_path / "out", OTHER_TOKENS, scratch=scratch, overwrite=True)
    assert found(made) == set()
    (made.scratch / "anything").write_text("of this one")
    made.publish()
    assert {path.name for path in tmp_path.iterdir()} <= {"out", "disk"}
    assert not scratch or not list((tmp_path / "disk").iterdir())


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_next_to_the_work_in_it_or_in_the_old_output_stays(tmp_path, overwrite):
    made = begun(tmp_path / "out")
    (tmp_path / "out.partial.txt").write_text("mine")
    (made.records / records.MANIFEST_FILE).write_text("{}")
    made.publish()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(FileExistsError, match="thesis.tex" if overwrite else "--overwrite"):
        begun(tmp_path / "out", overwrite=overwrite)
    assert (tmp_path / "out" / "thesis.tex").read_text() == "years of work"
    assert (tmp_path / "out.partial.txt").read_text() == "mine"
    (tmp_path / "other.partial").mkdir()
    (tmp_path / "other.partial" / "thesis.tex").write_text("years of work")
    with pytest.raises(directories.NotOursError, match=r"other\.partial holds thesis\.tex"):
        partial_output.PartialOutput(tmp_path / "other", overwrite=overwrite)
    assert (tmp_path / "other.partial" / "thesis.tex").exists()


def test_a_damaged_key_of_unfinished_work_is_named_and_the_work_begun_anew(tmp_path, caplog):
    for name in ("tokens.json", "examples.json"):
        made = begun(tmp_path / "out")
        fill(made, shards=False)
        (made.scratch / name).write_text('{"input": ')
        caplog.clear()
        assert "pairs" not in found(begun(tmp_path / "out"))
        assert str(made.scratch / name) in caplog.text


def test_a_link_as_output_stands_for_what_it_points_to(tmp_path):
    (tmp_path / "disk").mkdir()
    for there in (False, True):
        if not there:
            (tmp_path / "out").symlink_to(tmp_path / "disk" / "records")
        made = begun(tmp_path / "out", overwrite=there)
        (made.records / records.MANIFEST_FILE).write_text(f"{there}")
        made.publish()
        assert (tmp_path / "out").is_symlink()
        assert (tmp_path / "disk" / "records" / records.MANIFEST_FILE).read_text() == f"{there}"
    assert {path.name for path in tmp_path.iterdir()} == {"disk", "out"}
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["records"]
