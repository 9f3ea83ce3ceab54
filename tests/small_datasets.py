"""Small data sets of every kind for finetuning, in the words of `small_records`, easily learnt.

Sixteen examples each. Rows of training and evaluation are the same: what is learnt by heart scores
perfectly.
"""

import dataclasses
import json
import pathlib

import ml_collections
import numpy as np

from bertjax import config as config_lib
from bertjax.convert import workdir
from tests.convert import weights

EXAMPLES = 16
KINDS = ("glue", "regression", "table", "multi_label", "squad_v1", "squad_v2", "conll", "swag")


def write_source(
    directory: pathlib.Path, head: str = "pretraining", *, seed: int = 0, **sizes: int
) -> pathlib.Path:
    """Writes a workdir with weights of two layers to start from; the vocabulary has 95 entries.

    They are as large as those of a model that learns: LayerNorm's scales are about 1.
    """
    made = weights.make(head, config=dataclasses.replace(weights.CONFIG, **sizes), seed=seed)
    params = {
        path: value + 1 if path.endswith(".scale") else value / 2
        for path, value in made.params.items()
    }
    workdir.write(dataclasses.replace(made, params=params), directory)
    return directory


def make_config(
    directory: pathlib.Path, kind: str, source: pathlib.Path, **changes
) -> ml_collections.ConfigDict:
    """Writes the files of a kind into a directory, and returns a config that learns them."""
    directory.mkdir(parents=True, exist_ok=True)
    config = base_config(source)
    config.finetuning.update(WRITERS[kind](directory))
    config.update_from_flattened_dict(changes)
    return config


def base_config(source: pathlib.Path) -> ml_collections.ConfigDict:
    """Returns what all these trainings share, without files."""
    config = config_lib.default_config()
    config.task = "finetuning"
    config.init_from = str(source)
    config.model.dtype = "float32"
    config.model.hidden_dropout_prob = 0.0
    config.model.attention_probs_dropout_prob = 0.0
    config.mesh.data = 1
    config.finetuning.max_seq_length = 32
    config.finetuning.num_epochs = 20.0
    config.global_batch_size = 8
    config.evaluation.global_batch_size = 8
    config.schedule.peak_learning_rate = 2e-3
    config.schedule.warmup_share = 0.1
    config.checkpoint.keep_last = 1
    config.checkpoint.keep_best = 0
    config.log_every_steps = 10
    return config


def true_answers(reader, name):
    """The predictions of a model that knows every label."""
    features = reader.features(name)
    if "start_positions" in features.columns:
        positions = np.arange(reader.options.max_seq_length)
        ends = {"start_logits": "start_positions", "end_logits": "end_positions"}
        return {
            logits: np.where(positions == features.columns[column][:, None], 9.0, 0.0)
            for logits, column in ends.items()
        }
    if "labels" in features.columns:
        return {"predictions": features.columns["labels"]}
    predictions = np.full((len(features), reader.options.max_seq_length), -1)
    for row, labels in zip(predictions, features.tokens["labels"], strict=True):
        row[: len(labels)] = labels
    return {"predictions": predictions}


def sentences(seed: int, count: int = EXAMPLES) -> list[list[str]]:
    """Returns sentences of 4 to 9 words, none of w0 to w9."""
    rng = np.random.default_rng(seed)
    return [
        [f"w{number}" for number in rng.integers(10, 90, rng.integers(4, 10))] for _ in range(count)
    ]


def _glue(directory: pathlib.Path) -> dict:
    _write_pairs(directory / "RTE", "label", lambda n: ("entailment", "not_entailment")[n % 2])
    return {"dataset": "glue", "name": "rte", "data_dir": str(directory)}


def _regression(directory: pathlib.Path) -> dict:
    _write_pairs(directory / "STS-B", "score", lambda n: f"{n % 6}.0")
    return {"dataset": "glue", "name": "stsb", "data_dir": str(directory)}


def _write_pairs(directory: pathlib.Path, column: str, label) -> None:
    directory.mkdir()
    pairs = list(zip(sentences(0), sentences(1), strict=True))
    rows = [
        f"{n}\tw{n % 6} {' '.join(a)}\t{' '.join(b)}\t{label(n)}" for n, (a, b) in enumerate(pairs)
    ]
    lines = [f"index\tsentence1\tsentence2\t{column}", *rows]
    for name in ("train", "dev"):
        (directory / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    unlabelled = [line.rpartition("\t")[0] for line in lines]
    (directory / "test.tsv").write_text("\n".join(unlabelled) + "\n")


def _table(directory: pathlib.Path) -> dict:
    rows = [f"w{n % 3} {' '.join(words)},class {n % 3}" for n, words in enumerate(sentences(2))]
    path = directory / "train.csv"
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    test = directory / "test.csv"
    test.write_text("\n".join(["text", *(row.partition(",")[0] for row in rows)]) + "\n")
    return {"dataset": "table"} | _files(path, test)


def _multi_label(directory: pathlib.Path) -> dict:
    """Labels by the words w0 to w2, of which a text has none to three."""
    rows = []
    for number, words in enumerate(sentences(6)):
        chosen = [bit for bit in range(3) if number % 8 >> bit & 1]
        text = " ".join([*(f"w{bit}" for bit in chosen), *words])
        rows.append(f"{text},{'|'.join(f'has {bit}' for bit in chosen)}")
    path, test = directory / "train.csv", directory / "test.csv"
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    test.write_text("\n".join(["text", *(row.partition(",")[0] for row in rows)]) + "\n")
    return {"dataset": "table", "is_multi_label": True} | _files(path, test)


def _squad(version: str, directory: pathlib.Path) -> dict:
    paragraphs = []
    for number, words in enumerate(sentences(3)):
        place = 1 + number % 3
        context = " ".join([*words[:place], "w0", "w1", *words[place:]])
        is_impossible = version == "v2" and number % 4 == 0
        answer = {"text": "w0 w1", "answer_start": context.index("w0 w1")}
        question = {
            "id": f"q{number}",
            "question": "w9 w8" if is_impossible else "w7 w6",
            "answers": [] if is_impossible else [answer],
            "is_impossible": is_impossible,
        }
        paragraphs.append({"context": context, "qas": [question]})
    path = directory / "train.json"
    path.write_text(json.dumps({"data": [{"title": "all", "paragraphs": paragraphs}]}))
    options = {"dataset": "squad", "name": version, "doc_stride": 8, "max_query_length": 4}
    return options | _files(path, path)


def _conll(directory: pathlib.Path) -> dict:
    lines = []
    for number, words in enumerate(sentences(4)):
        tagged = [(word, "O") for word in words]
        tagged[1:1] = [("w0", "B-PER"), ("w1", "I-PER")] if number % 2 else [("w2", "B-LOC")]
        lines += [*(f"{word} {tag}" for word, tag in tagged), ""]
    path = directory / "train.conll"
    path.write_text("\n".join(lines) + "\n")
    return {"dataset": "conll"} | _files(path, path)


def _swag(directory: pathlib.Path) -> dict:
    rows = []
    for number, words in enumerate(sentences(5)):
        right = number % 4
        endings = ["w0 w1" if choice == right else f"w{choice + 2} w7" for choice in range(4)]
        rows.append(",".join([" ".join(words), "w9", *endings, str(right)]))
    path = directory / "train.csv"
    header = "sent1,sent2,ending0,ending1,ending2,ending3,label"
    path.write_text("\n".join([header, *rows]) + "\n")
    return {"dataset": "swag"} | _files(path, path)


def _sequences(directory: pathlib.Path) -> dict:
    """The target is the second word, and the first behind it."""
    rows = [f"{' '.join(words)},{words[1]} {words[0]}" for words in sentences(7)]
    path, test = directory / "train.csv", directory / "test.csv"
    path.write_text("\n".join(["text,target", *rows]) + "\n")
    test.write_text("\n".join(["text", *(row.partition(",")[0] for row in rows)]) + "\n")
    return {"dataset": "sequences", "max_target_length": 6} | _files(path, test)


def _files(train: pathlib.Path, test: pathlib.Path) -> dict:
    return {"train_file": str(train), "eval_file": str(train), "test_file": str(test)}


WRITERS = {
    "glue": _glue,
    "regression": _regression,
    "table": _table,
    "multi_label": _multi_label,
    "squad_v1": lambda directory: _squad("v1", directory),
    "squad_v2": lambda directory: _squad("v2", directory),
    "conll": _conll,
    "swag": _swag,
    "sequences": _sequences,
}
