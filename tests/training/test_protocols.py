"""Claims about protocols of finetuning: whose settings they are, and what they choose."""

import json
import math

import pytest

from bertjax import config as config_lib
from bertjax import glue, recipes
from bertjax.finetuning import glue_files
from bertjax.training import protocols, trials


def recipe(protocol, name="rte", **changes):
    config = recipes.load(f"glue:{name}")
    config.finetuning.protocol = protocol
    config.update_from_flattened_dict(changes)
    return config


# Protocol and task -> batch size, learning rate, epochs, schedule, warm-up, end of the schedule.
SETTINGS = {
    ("sane", "rte"): (16, 4e-5, 5.0, "cosine", 0.1, 0.0),
    ("sane", "mnli"): (16, 4e-5, 5.0, "cosine", 0.1, 0.0),
    ("babylm", "babylm_rte"): (32, 3e-5, 10.0, "cosine", 0.06, 0.1),
    ("babylm", "babylm_boolq"): (16, 3e-5, 10.0, "cosine", 0.06, 0.1),
    ("babylm", "babylm_wsc"): (32, 3e-5, 30.0, "cosine", 0.06, 0.1),
    ("", "rte"): (32, 2e-5, 3.0, "linear", 0.1, 0.0),
    ("tuned", "rte"): (32, None, None, "linear", None, 0.0),
}


@pytest.mark.parametrize(("protocol", "task"), SETTINGS)
def test_a_protocol_sets_what_it_is_known_for(protocol, task):
    found = protocols.applied(recipe(protocol, task))
    schedule = found.schedule
    assert (
        found.global_batch_size, schedule.peak_learning_rate, found.finetuning.num_epochs,
        schedule.name, schedule.warmup_share, schedule.end_share,
    ) == SETTINGS[protocol, task]  # fmt: skip
    assert protocols.applied(found) == found  # as a resumed run has it
    assert found.finetuning.max_seq_length == (512 if protocol == "babylm" else 128)


def test_an_option_that_is_given_counts_before_one_that_a_protocol_leaves_open():
    found = protocols.applied(recipe("tuned", **{"finetuning.num_epochs": 7.0}))
    assert (found.finetuning.num_epochs, found.schedule.peak_learning_rate) == (7.0, None)


def test_a_grid_is_trained_whole_and_a_setting_with_every_seed():
    found = trials.list_trials(protocols.applied(recipe("oracle")))
    assert trials.are_configured(recipe("oracle")) and len(found) == 35
    assert {one.setting.global_batch_size for one in found} == {32}
    assert len({one.setting.peak_learning_rate for one in found}) == 7
    sane = protocols.applied(recipe("sane", seeds=3))
    assert [one.setting for one in trials.list_trials(sane)] == [trials.Setting(16, 4e-5, 5.0)] * 3
    assert not trials.are_configured(recipe("sane"))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (recipe("sane", global_batch_size=8), r"batch_size is 8; the protocol 'sane' has 16: leav"),
        (recipe("sane", search=True), "config.search is True; the protocol 'sane' has False"),
        (recipe("babylm", "rte"), "name is 'rte'; it must be one of babylm_boolq, "),
        (recipe("sane", **{"finetuning.dataset": "table"}), "'sane', but it is for tasks of GLUE"),
        (recipe("sane", task="pretraining"), "'sane', but it is for tasks of GLUE"),
    ],
)
def test_what_does_not_go_with_a_protocol_is_refused(config, message):
    with pytest.raises(ValueError, match=message):
        protocols.applied(config)


def test_a_model_of_short_texts_reads_what_it_can():
    config = recipe("babylm", "babylm_rte", **{"finetuning.max_seq_length": 64})
    assert protocols.applied(config).finetuning.max_seq_length == 64


def test_the_best_epoch_counts_where_the_protocol_says_so():
    lines = [
        {"step": step, "eval/dev/f1": score, "eval/dev/accuracy": step / 10}
        for step, score in enumerate((math.nan, 0.5, 0.75, 0.75, 0.25))
    ]
    for protocol, step in (("sane", 4), ("babylm", 2)):
        config = recipe(protocol, "babylm_mrpc")
        found = trials.scores_of(config, [*lines, {"step": 9}], "eval/dev/f1")
        assert found["eval/dev/accuracy"] == step / 10


ROWS = {
    "multirc": (
        {"question": "Who?", "answer": "I", "paragraph": "It was I.", "label": 1},
        ("Question: Who? Answer: I", "It was I."),
    ),
    "wsc": (
        {"span1_text": "Ann", "span2_text": "she", "text": "Ann said she ran.", "label": True},
        ('Does "she" refer to "Ann" in this passage?', "Ann said she ran."),
    ),
    "mnli": ({"premise": "a", "hypothesis": "b", "label": 2, "idx": 0}, ("a", "b")),
}


@pytest.mark.parametrize("task", ROWS)
def test_the_challenges_rows_are_read_as_its_trainer_reads_them(task, tmp_path):
    row, texts = ROWS[task]
    (tmp_path / f"{task}.valid.jsonl").write_text(json.dumps(row))
    (example,) = glue_files.read_split(str(tmp_path), f"babylm_{task}", "dev")
    assert (example.texts, example.label) == (texts, int(row["label"]))
    with pytest.raises(FileNotFoundError, match=rf"{task}.train.jsonl; give .* BabyLM's files"):
        glue_files.read_split(str(tmp_path), f"babylm_{task}", "train")
    for changed, fault in (({"label": 3}, "label '3' is unknown"), ({"text": 1}, "no column")):
        (tmp_path / f"{task}.train.jsonl").write_text(json.dumps(row | changed).replace(
            "premise", "premiss").replace("answer", "reply").replace("span1_text", "span")
            if fault == "no column" else json.dumps(row | changed))  # fmt: skip
        with pytest.raises(ValueError, match=fault):
            glue_files.read_split(str(tmp_path), f"babylm_{task}", "train")


def test_the_table_of_the_challenge_has_its_seven_columns(tmp_path):
    scores = {"eval/dev/accuracy": 0.5, "eval/dev/f1": 0.75}
    one = glue.Finetuned((scores,), scores, tmp_path)
    shown = glue.write(dict.fromkeys(glue.BABYLM_TASKS, one), tmp_path, "best epoch by dev")
    lines = shown.splitlines()
    assert lines[0] == "|  | BoolQ | MNLI | MRPC | MultiRC | QQP | RTE | WSC | average |"
    mean = (5 * 50 + 2 * 75) / 7
    row = " | ".join(f"{score:.1f}" for score in (50, 50, 75, 50, 75, 50, 50, mean))
    assert lines[2:] == [f"| ours, dev, best epoch by dev | {row} |"]
    config = config_lib.default_config()
    config.task, config.finetuning.protocol = "finetuning", "babylm"
    with pytest.raises(ValueError, match="boolq.train.jsonl.* must hold the files of babylm_boolq"):
        config.finetuning.data_dir = str(tmp_path)
        glue.run(config, tmp_path / "run", glue.BABYLM_TASKS)
