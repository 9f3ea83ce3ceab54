"""Claims about reading GLUE: small files in the official format, each task's with its quirks."""

import logging as standard_logging

import pytest

from bertjax.finetuning import glue_files

PARSES = [f"sentence{number}_{kind}" for kind in ("binary_parse", "parse") for number in (1, 2)]
MNLI_HEADER = ["index", "promptID", "pairID", "genre", *PARSES]
MNLI_ROW = ["0", "31193", "31193n", "government", "( a )", "( b )", "(ROOT a)", "(ROOT b)"]
PAIR = ["sentence1", "sentence2"]
STSB = ["index", "genre", "filename", "year", "old_index", "source1", "source2", *PAIR]
STSB_ROW = ["0", "main-captions", "MSRvid", "2012test", "0001", "none", "none", 'A "plane', "B."]
QQP_HEADER = ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"]
QQP_ROW = ["133273", "213221", "213222", "How so?", "Why so?"]

# Task, file -> its lines as fields, and what is to be read: texts, labels.
FILES = {
    ("cola", "CoLA/train.tsv", "train"): (
        [["gj04", "1", "", 'He said "so.'], ["gj04", "0", "*", "They drank the pub."]],
        [('He said "so.',), ("They drank the pub.",)],
        [1, 0],
    ),
    ("cola", "CoLA/test.tsv", "test"): (
        [["index", "sentence"], ["0", "Bill whistled."]],
        [("Bill whistled.",)],
        [None],
    ),
    ("sst2", "SST-2/train.tsv", "train"): (
        [["sentence", "label"], ["hide secretions ", "0"], ["uneasily \u2028good ", "1"]],
        [("hide secretions ",), ("uneasily \u2028good ",)],
        [0, 1],
    ),
    ("mrpc", "MRPC/dev.tsv", "dev"): (
        [
            ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
            ["1", "702876", "702977", 'Amrozi accused "his', "Referring to him"],
        ],
        [('Amrozi accused "his', "Referring to him")],
        [1],
    ),
    ("stsb", "STS-B/dev.tsv", "dev"): (
        [[*STSB, "score"], [*STSB_ROW, "3.800"], [*STSB_ROW, "0"]],
        [('A "plane', "B.")] * 2,
        [3.8, 0.0],
    ),
    ("qqp", "QQP/train.tsv", "train"): (
        [QQP_HEADER, [*QQP_ROW, "1"]],
        [("How so?", "Why so?")],
        [1],
    ),
    ("mnli", "MNLI/train.tsv", "train"): (
        [
            [*MNLI_HEADER, *PAIR, "label1", "gold_label"],
            [*MNLI_ROW, "Product.", "Geography.", "neutral", "neutral"],
            [*MNLI_ROW, "Product.", "No product.", "neutral", "contradiction"],
        ],
        [("Product.", "Geography."), ("Product.", "No product.")],
        [2, 0],
    ),
    ("mnli", "MNLI/dev_matched.tsv", "dev_matched"): (
        [
            [*MNLI_HEADER, *PAIR, *(f"label{n}" for n in range(1, 6)), "gold_label"],
            [*MNLI_ROW, "Matched.", "Yes.", *["neutral"] * 5, "entailment"],
        ],
        [("Matched.", "Yes.")],
        [1],
    ),
    ("qnli", "QNLI/dev.tsv", "dev"): (
        [
            ["index", "question", "sentence", "label"],
            ["0", "What came?", "As of that day.", "entailment"],
            ["1", "What went?", "As of that day.", "not_entailment"],
        ],
        [("What came?", "As of that day."), ("What went?", "As of that day.")],
        [0, 1],
    ),
    ("rte", "RTE/train.tsv", "train"): (
        [["index", *PAIR, "label"], ["0", "No W.", "W.", "not_entailment"]],
        [("No W.", "W.")],
        [1],
    ),
    ("wnli", "WNLI/train.tsv", "train"): (
        [["index", *PAIR, "label"], ["0", "A pin.", "The carrot.", "1"]],
        [("A pin.", "The carrot.")],
        [1],
    ),
    ("ax", "diagnostic/diagnostic.tsv", "test"): (
        [["index", *PAIR], ["0", "The cat sat.", "The cat did not."]],
        [("The cat sat.", "The cat did not.")],
        [None],
    ),
}
RTE = ["index", *PAIR, "label"]


def write(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("\n".join("\t".join(line) for line in lines).encode())


def test_each_task_is_read_as_its_files_are(tmp_path):
    for (name, file, split), (lines, texts, labels) in FILES.items():
        path = tmp_path / file
        write(path, lines)
        first = 1 if len(lines) == len(texts) else 2
        sources = [f"{path}:{first + row}" for row in range(len(texts))]
        for directory in (tmp_path, path.parent):  # of all tasks, and the task's own
            found = glue_files.read_split(str(directory), name, split)
            assert [example.texts for example in found] == texts
            assert [example.label for example in found] == labels
            assert [example.source for example in found] == sources


def test_mrpc_as_microsoft_gave_it_out_is_split_by_the_list_of_dev_ids(tmp_path):
    header = ["\ufeffQuality", "#1 ID", "#2 ID", "#1 String", "#2 String"]
    rows = [["1", "10", "11", "a", "b"], ["0", "12", "13", "c", "d"], ["0", "11", "10", "e", "f"]]
    write(tmp_path / "MRPC/msr_paraphrase_train.txt", [header, *rows])
    write(tmp_path / "MRPC/msr_paraphrase_test.txt", [header, ["1", "20", "21", "g", "h"]])
    with pytest.raises(FileNotFoundError, match="dev_ids.tsv does not exist; it tells which rows"):
        glue_files.read_split(str(tmp_path), "mrpc", "train")
    write(tmp_path / "MRPC/dev_ids.tsv", [["12", "13"], ["77", "78"]])
    for split, wanted in {
        "train": [(("a", "b"), 1), (("e", "f"), 0)],
        "dev": [(("c", "d"), 0)],
        "test": [(("g", "h"), None)],
    }.items():
        examples = glue_files.read_split(str(tmp_path), "mrpc", split)
        assert [(example.texts, example.label) for example in examples] == wanted


def test_broken_rows_of_qqp_are_left_out_of_training_with_a_warning(tmp_path, caplog):
    broken = [['"', "Was he real?", "0"], [*QQP_ROW[:3], "", "Why so?", "0"]]
    for split in ("train", "dev"):
        write(tmp_path / f"QQP/{split}.tsv", [QQP_HEADER, [*QQP_ROW, "1"], *broken])
    with caplog.at_level(standard_logging.WARNING):
        found = glue_files.read_split(str(tmp_path), "qqp", "train")
    assert [example.texts for example in found] == [("How so?", "Why so?"), ("", "Why so?")]
    assert "train.tsv:3: the row has 3 columns" in caplog.text
    assert "train.tsv:4: a text is empty" in caplog.text
    with pytest.raises(ValueError, match="dev.tsv:3: the row has 3 columns"):
        glue_files.read_split(str(tmp_path), "qqp", "dev")


# Task, the lines of its training file, and what is wrong.
FAULTS = [
    ("rte", [["index", "sentence1", "label"]], "tsv:1: there is no column 'sentence2'; the"),
    ("rte", [[*RTE, "label"]], "train.tsv:1: there are several columns 'label'"),
    ("rte", [RTE], "train of task rte in .* holds no examples"),
    ("rte", [RTE, ["0", "a", "b"]], "train.tsv:2: the row has 3 columns; it must have the 4"),
    ("rte", [RTE, ["0", "a", "b", "perhaps"]], "train.tsv:2: label 'perhaps' is unknown; labels"),
    ("rte", [RTE, ["0", "a", " ", "entailment"]], r"^\S*train.tsv:2: a text is empty$"),
    ("rte", [RTE, *[["0", "a", "b", "no"]] * 12], "^12 faults, the first 10:\n.*train.tsv:2: lab"),
    *(
        ("stsb", [[*STSB, "score"], [*STSB_ROW, score]], f"2: score is '{score}'; .* from 0 to 5")
        for score in ("nan", "-0.1", "5.01")
    ),
]


def test_faults_of_a_file_name_file_and_line(tmp_path):
    for name, lines, message in FAULTS:
        write(tmp_path / "train.tsv", lines)
        with pytest.raises(ValueError, match=message):
            glue_files.read_split(str(tmp_path), name, "train")


def test_what_is_not_there_is_an_error_that_says_what_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="RTE/train.tsv and no .*/train.tsv; give"):
        glue_files.read_split(str(tmp_path), "rte", "train")
    with pytest.raises(ValueError, match="no task 'snli'; its tasks are cola, sst2"):
        glue_files.read_split(str(tmp_path), "snli", "train")
    with pytest.raises(ValueError, match="no split 'dev'; it has train, dev_matched, dev_mis"):
        glue_files.read_split(str(tmp_path), "mnli", "dev")


def test_all_nine_tasks_have_the_scores_of_the_leaderboard():
    scores = {
        **dict.fromkeys(("sst2", "mnli", "qnli", "rte", "wnli"), ("accuracy",)),
        **dict.fromkeys(("mrpc", "qqp"), ("accuracy", "f1")),
        "cola": ("matthews_correlation",),
        "stsb": ("pearson", "spearman"),
    }
    tasks = {
        name: task for name, task in glue_files.TASKS.items() if name != "ax" and not task.templates
    }
    assert {name: task.scores for name, task in tasks.items()} == scores
    for name, task in tasks.items():
        assert task.is_regression == (name == "stsb")
        sets = ("dev_matched", "dev_mismatched") if name == "mnli" else ("dev",)
        assert task.evaluation_splits == sets
    assert glue_files.TASKS["ax"].labels == glue_files.TASKS["mnli"].labels
