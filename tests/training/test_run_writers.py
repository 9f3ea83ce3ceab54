"""Claims about the table of writers: what each is told, by whom it is told once, what is wrong."""

import io
import json
import math
import pathlib
import re
import struct

import pytest

from bertjax import config as config_lib
from bertjax.training import config_faults, preemption, run_writers, writers
from bertjax.training.run_writers import services

pytestmark = pytest.mark.usefixtures("quick_runs")  # which draw no curves
ROOT = pathlib.Path(__file__).parents[2]
CONFIG = {"seed": 0, "model.hidden_size": 64, "optimizer.frozen": ("a", "b")}


class Memory:
    """Remembers what it is told; `forgets` is a matter of its row."""

    def __init__(self, run):
        self.run, self.sent, self.pictures, self.outcome = run, [], [], None

    def scalars(self, step, values):
        assert self.outcome is None
        self.sent.append((step, dict(values)))

    def picture(self, path):
        assert path.stat().st_size
        self.pictures.append(path.name)

    def close(self, outcome):
        self.outcome = outcome


@pytest.fixture
def opened(monkeypatch):
    """The writers that `memory` and `forgetful` opened, in their order."""
    found = []

    def remembering(run):
        found.append(Memory(run))
        return found[-1]

    for name, forgets in (("memory", False), ("forgetful", True)):
        kind = run_writers.WriterKind(remembering, forgets=forgets)
        monkeypatch.setitem(run_writers.WRITERS, name, kind)
    return found


def write(workdir, steps, *, kinds, start_step=0, evaluates_at=(), **arguments):
    with writers.RunWriter(
        workdir, total_steps=10, start_step=start_step, kinds=kinds, config=CONFIG, **arguments
    ) as writer:
        for step in steps:
            writer.scalars(step, {"train/loss": 10.0 - step, "train/nan": math.nan})
            if step in evaluates_at:
                writer.scalars(step, {"eval/heldout/loss": float(step)})
        writer.curves()


def steps_of(told, name="train/loss"):
    return [step for step, values in told if name in values]


def test_every_writer_is_told_the_same_and_how_the_run_ended(tmp_path, opened):
    write(tmp_path / "runs" / "mini", [1, 2], kinds=("memory", "forgetful"))
    one, other = opened
    assert repr(one.sent) == repr(other.sent) and steps_of(one.sent) == [1, 2]
    assert math.isnan(one.sent[0][1]["train/nan"])
    assert one.pictures == ["curves.png"] and one.outcome == other.outcome == "finished"
    assert one.run.name == "runs/mini" and one.run.config == CONFIG
    assert one.run.directory == tmp_path / "runs" / "mini"


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(preemption.Preempted(3), "stopped"), (KeyboardInterrupt(), "stopped"), (OSError(), "failed")],
)
def test_a_run_that_ends_early_is_told_as_what_it_is(tmp_path, opened, error, outcome):
    with pytest.raises(type(error)), writers.RunWriter(tmp_path, total_steps=10, kinds=("memory",)):
        raise error
    assert opened[0].outcome == outcome


def test_what_cannot_forget_is_told_every_scalar_once_however_often_the_run_is_killed(
    tmp_path, opened
):
    kinds = ("memory", "forgetful")
    write(tmp_path, range(1, 7), kinds=kinds, evaluates_at=[2])
    write(tmp_path, [3], kinds=kinds, start_step=2)  # killed before it has caught up
    write(tmp_path, range(3, 11), kinds=kinds, start_step=2, evaluates_at=[4, 10])
    told = [line for it in opened[0::2] for line in it.sent]
    assert steps_of(told) == [*range(1, 11)]
    assert steps_of(told, "eval/heldout/loss") == [2, 4, 10]
    assert [steps_of(it.sent) for it in opened[1::2]] == [[*range(1, 7)], [3], [*range(3, 11)]]
    assert len({it.run.identity for it in opened}) == 1


def test_a_writer_that_is_new_in_a_resumed_run_is_sent_all_scalars(tmp_path, opened):
    write(tmp_path, range(1, 7), kinds=("tensorboard",))
    write(tmp_path, range(3, 11), kinds=("memory",), start_step=2)
    assert steps_of(opened[0].sent) == [*range(3, 11)]


def test_a_repeated_evaluation_is_sent_and_another_workdir_is_another_run(tmp_path, opened):
    write(tmp_path, [1, 2], kinds=("memory",))
    write(tmp_path, [], kinds=("memory",), start_step=2, evaluates_again=True)
    with writers.RunWriter(tmp_path, total_steps=10, start_step=2, kinds=("memory",)) as writer:
        writer.scalars(2, {"eval/heldout/loss": 1.0})
    assert steps_of(opened[-1].sent, "eval/heldout/loss") == [2]
    write(tmp_path / "other", [1], kinds=("memory",))
    assert opened[-1].run.identity != opened[0].run.identity


def test_metrics_are_written_whatever_the_writers_are(tmp_path):
    for number, kinds in enumerate([(), ("json_lines",), ("tensorboard", "tensorboard")]):
        write(tmp_path / str(number), [1, 2], kinds=kinds)
        lines = (tmp_path / str(number) / "metrics.jsonl").read_text().splitlines()
        assert [json.loads(line)["step"] for line in lines] == [1, 2]
    assert not (tmp_path / "0" / "tensorboard").exists()
    assert len([*(tmp_path / "2" / "tensorboard").iterdir()]) == 1
    assert not [*tmp_path.glob("*/writers.json")]


def test_a_disk_that_takes_a_line_in_parts_loses_none_and_a_full_one_leaves_whole_lines(
    tmp_path, monkeypatch
):
    path, room = tmp_path / "metrics.jsonl", [10_000]

    class Short(io.FileIO):
        def write(self, content):
            if not room[0]:
                raise OSError(28, "No space left on device")
            written = super().write(content[: min(room[0], 7)])
            room[0] -= written
            return written

    monkeypatch.setattr(
        run_writers.files, "open", lambda name, mode, buffering: Short(name, "a"), raising=False
    )
    run = run_writers.base.Run("r", "", tmp_path, {}, 0, False)
    writer = run_writers.files.JsonLines(run)
    writer.scalars(1, {"train/loss": 1.5})
    room[0] = 20
    with pytest.raises(OSError, match=r"not recorded.*metrics\.jsonl"):
        writer.scalars(2, {"train/loss": 1.25})
    room[0] = 10_000
    writer.scalars(2, {"train/loss": 1.25})
    steps = [json.loads(line)["step"] for line in path.read_text().splitlines()]
    assert steps == [1, 2]


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://user:pa@ss:1@host:5000/x", "https://***@host:5000/x"),
        ("no server at postgresql+psycopg2://u:p@h/db, see", "no server at postgresql+psycopg2"),
        ("http://token@host, http://host/a@b", "http://***@host, http://host/a@b"),
        ("mlruns and me@example.org", "mlruns and me@example.org"),
    ],
)
def test_passwords_of_addresses_are_not_printed(address, shown):
    printed = services.without_password(address)
    assert shown in printed and not re.search("pa@ss|u:p|token@", printed)


def test_a_damaged_file_of_identities_is_named(tmp_path, opened):
    (tmp_path / "writers.json").write_text('{"identity": "1"')
    with pytest.raises(ValueError, match=r"writers\.json is damaged.*Remove it"):
        write(tmp_path, [1], kinds=("memory",))
    assert not opened


def test_writers_that_are_open_are_closed_where_the_next_cannot_be_opened(
    tmp_path, opened, monkeypatch
):
    def refuse(run):
        raise ValueError("no network")

    monkeypatch.setitem(run_writers.WRITERS, "refusing", run_writers.WriterKind(refuse))
    with pytest.raises(ValueError, match="no network"):
        write(tmp_path, [1], kinds=("memory", "refusing"))
    assert opened[0].outcome == "failed"


def usable_config(**options):
    config = config_lib.default_config()
    config.data.train_dir = "records"
    config.update(options)
    return config


def test_writers_that_are_unknown_or_lack_their_package_are_faults(monkeypatch):
    kind = run_writers.WriterKind(Memory, package="no_such_package", extra="none")
    monkeypatch.setitem(run_writers.WRITERS, "lacking", kind)
    with pytest.raises(ValueError, match="the config cannot be used") as caught:
        config_faults.validate(usable_config(writers=("tensorboard", "wandv", "lacking")))
    unknown, lacking = str(caught.value).splitlines()[1:]
    assert "config.writers is 'wandv'; known are json_lines, tensorboard, wandb, mlflow" in unknown
    assert "pip install 'bertjax[none]'" in lacking
    config_faults.validate(usable_config(writers=("tensorboard", "json_lines")))


def test_a_resumed_run_may_have_other_writers_and_another_profile():
    other = usable_config(writers=("mlflow",), profile_steps=(10, 15))
    saved = usable_config().to_dict()
    allowed, refused = config_lib.differences(saved, other, config_lib.CHANGEABLE)
    assert not refused and len(allowed) == 2


def test_the_writer_of_ones_own_in_the_docs_works(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "python.md").read_text()
    (code,) = (it for it in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "WRITERS" in it)
    monkeypatch.setattr(run_writers, "WRITERS", dict(run_writers.WRITERS))
    recipe = {}
    exec(code, recipe)
    config = recipe["get_config"]()
    config.data.train_dir = "train_{max_seq_length}"
    config_faults.validate(config)
    write(tmp_path, [1, 2], kinds=config.writers)
    assert (tmp_path / "last_loss.txt").read_text() == "step 2: 8.000\n"


def wandb_records(path):
    """Yields the records of an offline file: LevelDB's log, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := -at % 2**15) < 7:  # Blocks have 32 KiB; what is left holds no header.
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        if at + 7 + size > len(data):
            return  # It is being written.
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


@pytest.mark.slow
def test_weights_and_biases_offline_has_one_run_whose_scalars_are_sent_once(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    write(tmp_path / "run", range(1, 5), kinds=("wandb",), evaluates_at=[2])
    write(tmp_path / "run", range(3, 8), kinds=("wandb",), start_step=2, evaluates_at=[4])
    wandb.teardown()  # waits for the process that writes
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    records = [it for path in files for it in wandb_records(path)]
    runs = [it.run for it in records if it.WhichOneof("record_type") == "run"]
    assert len({run.run_id for run in runs}) == 1
    names = {(run.project, run.display_name) for run in runs}
    assert names == {("bertjax", f"{tmp_path.name}/run")}
    config = {it.key: it.value_json for it in runs[0].config.update}
    assert config["model.hidden_size"] == "64"
    rows = [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in it.history.item}
        for it in records
        if it.WhichOneof("record_type") == "history"
    ]
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == [(step, 10.0 - step) for step in range(1, 8)]
    assert [row["step"] for row in rows if "eval/heldout/loss" in row] == [2, 4]
    assert any("curves" in row for row in rows)
    exits = [it.exit.exit_code for it in records if it.WhichOneof("record_type") == "exit"]
    assert exits == [0, 0]


@pytest.fixture
def mlflow_store(tmp_path, monkeypatch):
    """A client of MLflow whose store is a file here."""
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "small")
    monkeypatch.chdir(tmp_path)  # where what is not a number is stored
    return mlflow.MlflowClient()


def only_run(client):
    experiment = client.get_experiment_by_name("small")
    (found,) = client.search_runs([experiment.experiment_id])
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of SQLAlchemy and Alembic, as MLflow uses them
def test_mlflow_has_one_run_whose_scalars_are_told_once(tmp_path, mlflow_store):
    write(tmp_path / "run", range(1, 5), kinds=("mlflow",), evaluates_at=[2])
    first = only_run(mlflow_store)
    assert first.info.status == "FINISHED" and first.info.run_name == f"{tmp_path.name}/run"
    assert first.data.params == {name: str(value) for name, value in CONFIG.items()}
    write(tmp_path / "run", range(3, 8), kinds=("mlflow",), start_step=2, evaluates_at=[4])
    run_id = only_run(mlflow_store).info.run_id
    assert run_id == first.info.run_id
    history = mlflow_store.get_metric_history(run_id, "train/loss")
    assert [(it.step, it.value) for it in history] == [(step, 10.0 - step) for step in range(1, 8)]
    scores = mlflow_store.get_metric_history(run_id, "eval/heldout/loss")
    assert [it.step for it in scores] == [2, 4]
    assert [it.path for it in mlflow_store.list_artifacts(run_id)] == ["curves.png"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_stopped_while_mlflow_does_not_answer_tells_it_later(
    tmp_path, mlflow_store, monkeypatch
):
    import mlflow

    log_batch, is_down = mlflow.MlflowClient.log_batch, [False]

    def sometimes(self, run_id, **what):
        if is_down[0]:
            raise mlflow.exceptions.MlflowException("503\nof the proxy")
        return log_batch(self, run_id, **what)

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", sometimes)
    with (
        pytest.raises(preemption.Preempted),
        writers.RunWriter(tmp_path / "run", total_steps=9, kinds=("mlflow",)) as writer,
    ):
        for step in range(1, 5):
            is_down[0] = step in (2, 3)
            writer.scalars(step, {"train/loss": float(step)})
        raise preemption.Preempted(4)
    found = only_run(mlflow_store)
    history = mlflow_store.get_metric_history(found.info.run_id, "train/loss")
    assert [it.step for it in history] == [1, 2, 3, 4] and found.info.status == "KILLED"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_names_are_made_fit_and_a_refused_number_holds_back_no_other(
    tmp_path, mlflow_store, monkeypatch, caplog
):
    import mlflow

    log_batch = mlflow.MlflowClient.log_batch

    def refusing(self, run_id, **batch):
        if any("refused" in metric.key for metric in batch.get("metrics", ())):
            raise mlflow.exceptions.MlflowException("no", INVALID)
        return log_batch(self, run_id, **batch)

    INVALID = mlflow.protos.databricks_pb2.INVALID_PARAMETER_VALUE
    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", refusing)
    names = ("eval/pru\u0308fung/f1(ORG)", "eval/prüfung/f1[ORG]", "a//b", "refused", "loss")
    with writers.RunWriter(tmp_path / "run", total_steps=2, kinds=("mlflow",)) as writer:
        for step in (1, 2):
            writer.scalars(step, {name: step + place for place, name in enumerate(names)})
    metrics = only_run(mlflow_store).data.metrics
    fit = ("eval/prüfung/f1_ORG_", "eval/prüfung/f1_ORG__2", "a/b", "loss")
    assert {name: metrics[name] for name in fit} == dict(zip(fit, (2, 3, 4, 6), strict=True))
    assert caplog.text.count("under the name 'a/b'") == 1
    assert caplog.text.count("MLflow refuses refused") == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_store_that_cannot_be_had_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://store")
    with pytest.raises(ValueError, match="MLflow cannot be written to at gopher://store"):
        write(tmp_path, [1], kinds=("mlflow",))
