"""Small files for embeddings in the words of `small_records`: texts are alike that share a word."""

import json

import numpy as np

from tests import small_datasets

TOPICS = 6


def text(rng, topic):
    """Returns a text about a topic: its word among others."""
    words = [f"w{number}" for number in rng.integers(20, 80, 2)]
    return " ".join([f"w{topic}", *words])


def write_lines(path, rows):
    """Writes JSON lines and returns the path."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def pairs(count, seed):
    rng = np.random.default_rng(seed)
    topics = [number % TOPICS for number in range(count)]
    return [{"anchor": text(rng, it), "positive": text(rng, it)} for it in topics]


def triplets(count, seed):
    rng = np.random.default_rng(seed)
    of_others = [{"negative": text(rng, (number + 1) % TOPICS)} for number in range(count)]
    return [row | other for row, other in zip(pairs(count, seed), of_others, strict=True)]


def scored(count, seed):
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        topic, is_alike = number % TOPICS, number % 2
        other = topic if is_alike else (topic + 3) % TOPICS
        texts = {"sentence1": text(rng, topic), "sentence2": text(rng, other)}
        rows.append({**texts, "score": 5.0 * is_alike})
    return rows


def classes(count, seed):
    rng = np.random.default_rng(seed)
    return [
        {"text": text(rng, number % 3), "label": f"topic {number % 3}"} for number in range(count)
    ]


def write_collection(directory, seed):
    """Writes a corpus, queries and relevances in BEIR's layout, and returns the directory."""
    rng = np.random.default_rng(seed)
    (directory / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{n}", "text": text(rng, n % TOPICS)} for n in range(3 * TOPICS)]
    queries = [{"_id": f"q{n}", "text": text(rng, n)} for n in range(TOPICS)]
    write_lines(directory / "corpus.jsonl", documents)
    write_lines(directory / "queries.jsonl", queries)
    judged = [f"q{n}\td{n + place * TOPICS}\t1" for n in range(TOPICS) for place in range(3)]
    lines = ["query-id\tcorpus-id\tscore", *judged]
    (directory / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return directory


def make_config(directory, source, *, loss="ranking", rows=None, **changes):
    """Writes the files of a loss and of every kind of evaluation, and returns a config."""
    directory.mkdir(parents=True, exist_ok=True)
    made = {
        "ranking": pairs(32, 0),
        "cosine": scored(32, 0),
        "softmax": [
            {"sentence1": it["sentence1"], "sentence2": it["sentence2"], "label": label}
            for it in scored(32, 0)
            for label in [("other", "same")[it["score"] > 0]]
        ],
        "simcse": [{"text": it["anchor"]} for it in pairs(32, 0)],
        "distillation": [{"text": it["anchor"]} for it in pairs(32, 0)],
    }
    train = write_lines(directory / "train.jsonl", rows or made[loss])
    sets = [
        write_lines(directory / "sts.jsonl", scored(24, 1)),
        write_lines(directory / "triplets.jsonl", triplets(12, 2)),
        write_lines(directory / "pairs.jsonl", pairs(12, 3)),
        write_lines(directory / "topics.jsonl", classes(30, 4)),
        write_collection(directory / "beir", 5),
    ]
    config = small_datasets.base_config(source)
    config.finetuning.update(
        dataset="embeddings",
        loss=loss,
        pooling="mean",
        train_file=str(train),
        eval_file=",".join(map(str, sets)),
        test_file="",
        max_seq_length=16,
        num_epochs=2.0,
    )
    config.update_from_flattened_dict(changes)
    return config
