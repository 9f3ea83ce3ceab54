"""Claims about what a push leaves on the Hub: everything in one commit, or nothing."""

import pytest

from bertjax.convert import __main__ as program
from bertjax.convert import formats, hub
from tests import finetuned_workdir, programs
from tests.convert import hub_stub, test_main, weights

constants = pytest.importorskip("huggingface_hub.constants")
NAME = "clinic/notes"

# The client calls its own HTTP library in a deprecated way.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A stub of the Hub that the client of this process talks to, with a token it knows."""
    with hub_stub.serving() as found:
        monkeypatch.setattr(constants, "ENDPOINT", found.url)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no_token"))
        monkeypatch.setenv("HF_TOKEN", hub_stub.TOKEN)
        monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
        yield found


@pytest.fixture
def source(tmp_path):
    formats.write(weights.make(), tmp_path / "source", format="huggingface")
    return tmp_path / "source"


@pytest.fixture
def run(tmp_path):
    finetuned_workdir.write(tmp_path / "run", "table")
    return tmp_path / "run"


def files_of(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }


def commits(server, branch="main"):
    return [it["title"] for it in server.repositories[NAME]["branches"][branch]]


def test_a_directory_goes_to_a_new_repository_as_one_commit(server, source, tmp_path, caplog):
    target = tmp_path / "out"
    with caplog.at_level("INFO", logger="absl"):
        program.convert(source, target, push=hub.Destination(NAME))
    assert f"Pushed to {NAME}, revision main: {server.url}/{NAME}/commit/" in caplog.text
    assert commits(server) == ["initial commit", "Weights"]
    pushed = server.files(NAME, "main")
    assert pushed.pop(".gitattributes") == b""
    assert pushed == files_of(target) and "model.safetensors" in pushed
    assert not server.repositories[NAME]["private"]
    weights.assert_equal(formats.read(target), weights.make())


def test_checkpoints_kept_by_words_are_revisions_named_by_their_words(server, tmp_path):
    test_main.write_marked(tmp_path / "run", [[10**6, 3], [2 * 10**6, 5]])
    push = hub.Destination(NAME, "chck_{words}")
    program.convert_all(tmp_path / "run", tmp_path / "out", push=push)
    for name in ("chck_1M", "chck_2M"):
        assert server.files(NAME, name).keys() == {
            ".gitattributes",
            *files_of(tmp_path / "out/chck_1M"),
        }
    assert commits(server, "chck_2M") == ["initial commit", "Weights of step 5"]
    program.convert(tmp_path / "run", tmp_path / "one", step=3, push=push)
    assert len(commits(server, "chck_1M")) == 3
    with pytest.raises(ValueError, match="was not: give --all_words or the --step of one"):
        program.convert(tmp_path / "run", tmp_path / "zero", step=0, push=push)
    with pytest.raises(ValueError, match=r"give --revision='chck_\{words\}'"):
        program.convert_all(tmp_path / "run", tmp_path / "more", push=hub.Destination(NAME))


def refused(server, source, target, destination=None):
    """Returns what is said of a push that fails; the directory must be there all the same."""
    with pytest.raises(ValueError) as caught:
        program.convert(source, target, push=destination or hub.Destination(NAME))
    assert (target / "model.safetensors").exists()
    said = str(caught.value)
    assert said.startswith(f"{target} is written, but not pushed to {NAME}: ")
    assert f"`hf upload {NAME} {target} --revision=" in said and "\n" not in said
    assert hub_stub.TOKEN not in said
    return said


@pytest.mark.parametrize(
    ("where", "fault"),
    [
        *((where, 403) for where in ("create", "preupload", "objects/batch", "commit/")),
        *((where, "gone") for where in ("preupload", "PUT /upload/", "commit/")),
    ],
)
def test_a_push_that_fails_leaves_no_commit_and_no_branch(server, source, tmp_path, where, fault):
    server.faults[where] = fault
    # A token that may not write: to main; else to a branch, which goes again.
    destination = hub.Destination(*([NAME] if fault == 403 else [NAME, "step-7"]))
    said = refused(server, source, tmp_path / "out", destination)
    assert "Nothing of it is there." in said
    assert ("the token may not write there" in said) == (fault == 403)
    if where != "create":
        assert {*server.repositories[NAME]["branches"]} == {"main"}
        assert commits(server) == ["initial commit"]


def test_a_branch_that_cannot_be_taken_away_again_is_told(server, source, tmp_path):
    server.faults |= {"commit/": 500, "DELETE": "gone"}
    said = refused(server, source, tmp_path / "out", hub.Destination(NAME, "step-7"))
    assert "The branch step-7 was made for it, and holds what main holds." in said
    assert commits(server, "step-7") == ["initial commit"]


def test_a_branch_that_was_there_stays_as_it_was(server, run, tmp_path):
    destination = hub.Destination(NAME, "step-{step}", private=True)
    program.convert(run, tmp_path / "1", push=destination)
    assert server.repositories[NAME]["private"] and commits(server) == ["initial commit"]
    server.faults["commit/"] = 500
    said = refused(server, run, tmp_path / "2", destination)
    assert "Nothing of it is there." in said
    assert commits(server, "step-0") == ["initial commit", "Weights of step 0"]


def test_what_cannot_be_pushed_is_told_before_anything_is_sent(
    server, source, tmp_path, monkeypatch
):
    steps = hub.Destination(NAME, "step-{step}")
    for path, destination, options, reason in (
        ("nowhere", hub.Destination("notes"), {}, "--push_to is 'notes'; it must be ORG/NAME"),
        ("nowhere", hub.Destination(NAME, "step 7"), {}, "is 'step 7'; it must be a branch, such"),
        ("nowhere", steps, {"format": "bertjax"}, "--push_to takes --format=huggingface; it is be"),
        (source, steps, {}, "--from is not a workdir: write the name out"),
    ):
        with pytest.raises(ValueError, match=reason):
            program.convert(tmp_path / path, tmp_path / "out", push=destination, **options)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ValueError, match="needs a token: `hf auth login`, or set HF_TOKEN"):
        program.convert(source, tmp_path / "out", push=hub.Destination(NAME))
    assert not server.asked and not (tmp_path / "out").exists()
    monkeypatch.setenv("HF_TOKEN", "hf_of_another")
    assert "the token is not valid: `hf auth login`" in refused(server, source, tmp_path / "out")
    assert not server.repositories


def test_the_flags_push(server, source, tmp_path):
    target = f"--to={tmp_path / 'out'}"
    programs.succeed(
        *("bertjax.convert", f"--from={source}", target, f"--push_to={NAME}"),
        *("--revision=v1", "--private"),
    )
    assert server.repositories[NAME]["private"] and "Weights" in commits(server, "v1")
    for flag in ("--revision=v1", "--private"):
        done = programs.run("bertjax.convert", f"--from={source}", target, "--overwrite", flag)
        assert "goes with --push_to, which is not given" in done.error
