"""A run is read from its workdir, while it trains too; its page and its text name its faults."""

import dataclasses
import json
import os

import pytest

from bertjax.checks import references, runs
from bertjax.compare import page
from bertjax.data import records
from bertjax.workdirs import checkpoint, reader
from tests import programs, small_records, small_runs


def trained_on(monkeypatch, config, directory):
    """Lets every workdir have a checkpoint of a run over the records of `directory`."""
    manifest = records.Manifest.load(directory)
    identity = {
        "manifests": {"phase1": manifest.digest},
        "tokenizer_sha256": manifest.tokenizer_sha256,
    }
    meta = {"config": config.to_dict(), "identity": identity}
    monkeypatch.setattr(checkpoint, "read_meta", lambda workdir: (meta, 100))


def test_tokens_hours_and_resumes_of_a_run(tmp_path):
    small_runs.write(tmp_path / "run", small_runs.config_of(tmp_path), resumed=(30, 70))
    run = runs.read(tmp_path / "run")
    assert run.series("tokens")[1].tolist() == [step * 4 * 16 for step in small_runs.STEPS]
    assert run.series("hours")[1].tolist() == pytest.approx(
        [step / 100 for step in small_runs.STEPS]
    )
    assert (run.resumed, run.phase_ends, run.is_finished) == ((30, 70), (100,), True)


def test_the_facts_of_its_records_are_read_where_they_are(tmp_path, monkeypatch):
    train = small_records.write(tmp_path / "train", documents=range(100, 200))
    small_records.write(tmp_path / "heldout", documents=range(190, 210), seed=1)
    config = small_runs.config_of(tmp_path)
    trained_on(monkeypatch, config, train)
    small_runs.write(tmp_path / "run", config)
    assert runs.read(tmp_path / "run").data.passes == pytest.approx(400 / 168)
    manifest = records.Manifest.load(train)
    dataclasses.replace(manifest, arguments={"dupe_factor": 3}).save(train)
    assert runs.read(tmp_path / "run").data.passes == pytest.approx(3 * 400 / 168)
    (tmp_path / "run" / reader.TRAINING_DATA_DIRECTORY).mkdir()
    records.open(train).contents.save(tmp_path / "run" / reader.TRAINING_DATA_DIRECTORY)
    assert runs.read(tmp_path / "run").data.overlap == 0.5
    train.rename(tmp_path / "gone")
    (tmp_path / "heldout").rename(tmp_path / "gone_too")
    assert runs.read(tmp_path / "run").data == runs.DataFacts()


def test_records_are_found_from_any_folder(tmp_path, monkeypatch):
    train = small_records.write(tmp_path / "project" / "train", documents=range(100, 200))
    small_records.write(tmp_path / "project" / "heldout", documents=range(190, 210), seed=1)
    config = small_runs.config_of(tmp_path)
    config.data.update(train_dir="train", eval_dir="heldout")
    trained_on(monkeypatch, config, train)
    small_runs.write(workdir := tmp_path / "project" / "runs" / "one", config)
    (workdir / reader.TRAINING_DATA_DIRECTORY).mkdir()
    records.open(train).contents.save(workdir / reader.TRAINING_DATA_DIRECTORY)
    (tmp_path / "elsewhere").mkdir()
    for folder in ("project", "elsewhere"):
        monkeypatch.chdir(tmp_path / folder)
        facts = runs.read(workdir).data
        assert (facts.passes, facts.overlap) == (pytest.approx(400 / 168), 0.5)


def test_a_reference_of_the_same_data_is_kept_and_drawn_and_another_is_not(tmp_path, monkeypatch):
    train = small_records.write(tmp_path / "train")
    config = small_runs.config_of(tmp_path)
    trained_on(monkeypatch, config, train)
    small_runs.write(tmp_path / "run", config, losses=lambda step: 6 - step / 50)
    small_runs.write(tmp_path / "low", config)
    run = runs.read(tmp_path / "run")
    seeds = {0: run.lines, 1: run.lines}
    for name, key in (("own", run.key), ("others", "0" * 64)):
        references.save(references.make(name, key, seeds, run.options), tmp_path / "curves")
    run, low = runs.read_all([tmp_path / "run", tmp_path / "low"],
                             references.load_all(tmp_path / "curves"))  # fmt: skip
    assert [one.name for one in run.references] == ["own"]
    assert "1.00 nats below the reference curve own" in page.text([low])
    labels = [text.get_text() for text in page.draw([run, low]).legends[0].get_texts()]
    assert sorted(labels) == ["low", "own: mean ± 2 standard deviations", "run"]


def test_the_program_prints_what_is_off_and_writes_one_page(tmp_path):
    for name, warmup in (("one", 10), ("other", 0)):
        config = small_runs.config_of(tmp_path, **{"schedule.warmup_steps": warmup})
        small_runs.write(tmp_path / name, config)
    done = programs.succeed("bertjax.compare", str(tmp_path / "one"), str(tmp_path / "other"),
                            f"--output={tmp_path / 'page.html'}")  # fmt: skip
    printed = done.output.decode()
    assert page.NOTHING in printed and "other: step 100 of 100, tokens 6,400" in printed
    assert printed.count("no warm-up: There is no warm-up") == 1
    html = (tmp_path / "page.html").read_text()
    assert html.count("<img") == 1 and "There is no warm-up" in html
    assert "<th>schedule.warmup_steps</th><td>10</td><td>0</td>" in html
    (notes := tmp_path / "notes.html").write_text("<html>mine</html>")
    assert page.is_of_others(notes) and not page.is_of_others(tmp_path / "page.html")
    refused = programs.run("bertjax.compare", str(tmp_path / "one"), f"--output={notes}")
    assert "is not of bertjax" in refused.error and notes.read_text() == "<html>mine</html>"


@pytest.mark.parametrize(
    ("workdir", "reason"),
    [
        ("nowhere", "has no lines; give the workdir"),
        (None, "give at least one argument, the workdirs"),
    ],
)
def test_without_a_run_it_says_so(tmp_path, workdir, reason):
    arguments = [str(tmp_path / workdir)] if workdir else []
    assert reason in programs.run("bertjax.compare", *arguments).error


def test_names_are_drawn_as_they_are(tmp_path):
    name = "run $x^$ y"
    small_runs.write(tmp_path / name, small_runs.config_of(tmp_path))
    content = page.page([runs.read(tmp_path / name)])
    assert content.count("<img") == 1 and name in content


def test_damaged_files_of_others_are_named(tmp_path, caplog):
    small_runs.write(tmp_path / "run", small_runs.config_of(tmp_path))
    metrics = tmp_path / "run" / "metrics.jsonl"
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text('{"step": 1, "train/learning_rate": "x"}\n' + "".join(lines))
    assert len(runs.read(tmp_path / "run").lines) == len(lines)
    assert "metrics.jsonl, line 1 is" in caplog.text
    saved = json.loads((tmp_path / "run" / "config.json").read_text())
    for group, name, value in (("pretraining", "objective", "none"), ("schedule", "name", 5)):
        damaged = {**saved, group: {**saved[group], name: value}}
        (tmp_path / "run" / "config.json").write_text(json.dumps(damaged))
        with pytest.raises(ValueError, match=f"config.json.*\n?.*{value}"):
            runs.read(tmp_path / "run")


def test_a_pipe_is_no_page_of_ours(tmp_path):
    os.mkfifo(tmp_path / "page.html")
    assert page.is_of_others(tmp_path / "page.html")
