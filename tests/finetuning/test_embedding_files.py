"""Files of pairs, scored and labelled pairs, corpora: what is read, and what is refused where."""

import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from bertjax.finetuning import embedding_files
from bertjax.scores import retrieval

SCORED = {"sentence1": "a", "sentence2": "b", "score": 2.5}


def write(path, rows):
    """Writes rows as the suffix wants them: JSON lines, CSV, TSV or Parquet."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        separator = "," if path.suffix == ".csv" else "\t"
        lines = [list(rows[0]), *([str(it) for it in row.values()] for row in rows)]
        path.write_text("\n".join(separator.join(line) for line in lines) + "\n")
    return path


def texts_of(examples):
    return [example.texts for example in examples]


def test_every_kind_of_file_has_the_same_pairs_and_scores(tmp_path):
    pairs = [{"anchor": "a b", "positive": "c"}, {"anchor": "d", "positive": "e f"}]
    scored = [SCORED, {**SCORED, "score": 5}, {**SCORED, "score": 0}]
    for suffix in (".csv", ".tsv", ".jsonl", ".parquet"):
        found = embedding_files.read(write(tmp_path / f"pairs{suffix}", pairs), "pairs")
        assert texts_of(found) == [("a b", "c"), ("d", "e f")]
        assert found[0].roles == ("query", "document")
        found = embedding_files.read(write(tmp_path / f"scored{suffix}", scored), "scored")
        assert [example.value for example in found] == [0.5, 1.0, 0.0]
        assert found[0].roles == ("query", "query")
    # Scores of another range become numbers from 0 to 1, too.
    path = write(tmp_path / "a.jsonl", [{**SCORED, "score": value} for value in (-1, 0, 1)])
    found = embedding_files.read(path, "scored", score_range=(-1.0, 1.0))
    assert [example.value for example in found] == [0.0, 0.5, 1.0]


def test_files_of_other_countries_have_semicolons_decimal_commas_and_letters_in_parts(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("sentence1;sentence2;score\na, b;c;4,5\na;c;5\n")
    assert [example.value for example in embedding_files.read(path, "scored")] == [0.9, 1.0]
    assert embedding_files.holds(path) == "scored"
    path.write_text("text;label\na;şık\nb;s\u0327\u0131k\n")
    assert [example.value for example in embedding_files.read(path, "classes")] == ["şık", "şık"]
    path.write_text('sentence1,sentence2,score\na,c,"4,5"\n')
    with pytest.raises(ValueError, match=r"a.csv:2: 'score' is '4,5'; .*with a decimal point"):
        embedding_files.read(path, "scored")


def test_negatives_are_columns_in_their_order_or_a_list(tmp_path):
    columns = ["anchor", "positive", "negative_2", "negative_10", "negative"]
    path = tmp_path / "a.csv"
    path.write_text(",".join(columns) + "\na,p,n2,n10,n\n")
    assert texts_of(embedding_files.read(path, "pairs")) == [("a", "p", "n", "n2", "n10")]
    rows = [{"anchor": "a", "positive": "p", "negatives": ["x", "y"]}]
    for name in ("a.jsonl", "a.parquet"):
        found = embedding_files.read(write(tmp_path / name, rows), "pairs")
        assert texts_of(found) == [("a", "p", "x", "y")]
    rows = [{"anchor": "a", "positive": "p", "negatives": ["x"] * count} for count in (2, 2, 3)]
    path = write(tmp_path / "a.jsonl", rows)
    with pytest.raises(ValueError, match=r"a\.jsonl:3: it has 5 texts .*a\.jsonl:1, has 4"):
        embedding_files.read(path, "pairs")


NLI = [
    {"gold_label": "entailment", "sentence1": "p", "sentence2": "e1"},
    {"gold_label": "-", "sentence1": "p", "sentence2": "x"},
    {"gold_label": "contradiction", "sentence1": "p", "sentence2": "c1"},
    {"gold_label": "entailment", "sentence1": "q", "sentence2": "e9"},
    {"gold_label": "neutral", "sentence1": "p", "sentence2": "n1"},
    {"gold_label": "entailment", "sentence1": "p", "sentence2": "e2"},
]


def test_nli_is_labelled_pairs_on_which_the_judges_agreed_or_triplets(tmp_path, caplog):
    path = write(tmp_path / "snli.jsonl", [{**row, "pairID": "7"} for row in NLI])
    with caplog.at_level("INFO", logger="absl"):
        found = embedding_files.read(path, "labelled")
    assert len(found) == 5 and found[1].value == "contradiction"
    assert "1 rows without a class ('-') are left out" in caplog.text
    # A triplet of each entailment that has a contradiction.
    found = embedding_files.read(path, "pairs")
    assert texts_of(found) == [("p", "e1", "c1"), ("p", "e2", "c1")]
    with pytest.raises(ValueError, match="no sentence1 has both an entailment and"):
        embedding_files.read(write(tmp_path / "few.jsonl", NLI[3:5]), "pairs")


def test_plain_text_is_a_text_a_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one text\n\nanother, with comma\n")
    found = embedding_files.read(path, "texts")
    assert texts_of(found) == [("one text",), ("another, with comma",)]
    assert found[1].source.endswith("a.txt:3")
    with pytest.raises(ValueError, match=r"a\.txt is plain text.*needed is .*anchor, positive"):
        embedding_files.read(path, "pairs")


FAULTS = [
    ("pairs", {"anchor": " ", "positive": "p"}, "'anchor' is empty"),
    ("pairs", {"anchor": "a", "positive": None}, "'positive' is None; it must be a text"),
    ("scored", {**SCORED, "score": 5.1}, "'score' is 5.1; it must be a number from 0 to 5"),
    ("scored", {**SCORED, "score": "NaN"}, "'score' is 'NaN'; it must be a number"),
    ("scored", {**SCORED, "score": True}, "'score' is True; it must be a number"),
    ("labelled", {"sentence1": "a", "sentence2": "b", "label": ""}, "'label' is empty; it must"),
    ("texts", {"text": 7}, "'text' is 7; it must be a text"),
]
# A row, and what its columns say that a file holds.
LAYOUTS = [
    ({"anchor": "a", "positive": "p"}, "pairs"),
    (SCORED, "scored"),
    ({"sentence1": "a", "sentence2": "b", "label": "x"}, "labelled"),
    ({"text": "a", "label": "x"}, "classes"),
    ({"sentence1": "a", "sentence2": "b"}, "two_texts"),
    ({"text": "a"}, "texts"),
]


def test_columns_say_what_a_file_holds_and_a_row_that_cannot_be_used_is_named(tmp_path):
    good = {rows: row for row, rows in LAYOUTS}
    for rows, row in good.items():
        assert embedding_files.holds(write(tmp_path / "a.jsonl", [row])) == rows
    for rows, row, fault in FAULTS:
        path = write(tmp_path / "a.jsonl", [good[rows], row])
        with pytest.raises(ValueError, match=f"a.jsonl:2: {fault}"):
            embedding_files.read(path, rows)
    path = tmp_path / "a.csv"
    path.write_text("question,answer\na,p\n")
    with pytest.raises(ValueError, match=r"a\.csv:1: .*'question', 'answer'; needed are anchor"):
        embedding_files.read(path, "pairs")
    with pytest.raises(ValueError, match="known are anchor, positive; .*score"):
        embedding_files.holds(path)


def test_files_may_have_weights_and_must_have_as_many_texts(tmp_path):
    found = embedding_files.files("a=1.csv, b.csv=0.5,c.csv=2")
    wanted = [("a=1.csv", 1.0), ("b.csv", 0.5), ("c.csv", 2.0)]
    assert [(file.path, file.weight) for file in found] == wanted
    with pytest.raises(ValueError, match=r"'b=0' has the weight 0; it must be above 0"):
        embedding_files.files("a,b=0")
    with pytest.raises(ValueError, match="a is named 2 times.*a=2"):
        embedding_files.files("a,a")
    rows = [{"anchor": "a", "positive": "p"}, {"anchor": "a", "positive": "p", "negative": "n"}]
    two, three = (
        embedding_files.read(write(tmp_path / f"{name}.jsonl", [row]), "pairs")
        for name, row in zip("ab", rows, strict=True)
    )
    embedding_files.check_alike([two, two])
    with pytest.raises(ValueError, match=r"b\.jsonl:1 has 3 texts .*a\.jsonl:1 has 2"):
        embedding_files.check_alike([two, three])


DOCUMENTS = [
    {"_id": "d1", "title": "A title", "text": "of a text"},
    {"_id": "d2", "text": "no title"},
    {"_id": "d3", "title": "", "text": ""},
]
QUERIES = [{"_id": "q1", "text": "first"}, {"_id": "q2", "text": "not judged"}]


def write_collection(directory, relevances=(), documents=DOCUMENTS, queries=QUERIES):
    write(directory / embedding_files.CORPUS, documents)
    write(directory / embedding_files.QUERIES, queries)
    (directory / "qrels").mkdir(exist_ok=True)
    lines = ["query-id\tcorpus-id\tscore", *relevances]
    (directory / embedding_files.RELEVANCES).write_text("\n".join(lines) + "\n")
    return directory


def test_titles_stand_before_texts_and_queries_without_relevances_are_left_out(tmp_path, caplog):
    with caplog.at_level("INFO", logger="absl"):
        directory = write_collection(tmp_path, ["q1\td1\t2", "q1\td2\t0"])
        found = embedding_files.read_collection(directory)
    assert found.documents == {"d1": "A title of a text", "d2": "no title", "d3": ""}
    assert found.queries == {"q1": "first"}
    assert found.relevances == {"q1": {"d1": 2, "d2": 0}}
    assert "1 without are left out" in caplog.text


def test_a_query_that_is_a_document_does_not_find_itself(tmp_path, caplog, monkeypatch):
    """As BEIR scores ArguAna."""
    texts = [{"_id": name, "text": f"text {name}"} for name in ("d1", "d2", "d3", "d4")]
    directory = write_collection(
        tmp_path, ["d1\td2\t1", "d3\td4\t1"], documents=texts, queries=[texts[0], texts[2]]
    )
    with caplog.at_level("INFO", logger="absl"):
        found = embedding_files.read_set(directory, (0.0, 5.0))
    assert "2 of 2 queries have the name of a document" in caplog.text
    angles = np.radians([0, 50, 0, 5, 50, 55])  # of the queries, then of the documents
    scores = found.scores(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    assert scores["ndcg_at_10"] == scores["mrr_at_10"] == scores["recall_at_1"] == 1
    monkeypatch.setattr(retrieval, "DEEPEST", 1)  # what a query itself must not take up
    assert found.scores(np.stack([np.cos(angles), np.sin(angles)], axis=1))["recall_at_1"] == 1


COLLECTION_FAULTS = [
    *(
        ({"relevances": ["q1\td1\t1", line]}, rf"qrels/test\.tsv:3: {fault}")
        for line, fault in (
            ("q1\tnowhere\t1", "there is no document 'nowhere' in corpus.jsonl"),
            ("nobody\td1\t1", "there is no query 'nobody' in queries.jsonl"),
            ("q1\td2\thigh", "'score' is 'high'; it must be a whole number"),
            ("q1\td1\t1", "query 'q1' and document 'd1' stood in a line before"),
        )
    ),
    ({"relevances": ["q1\td1\t0"]}, "no document is relevant to any query"),
    ({"documents": [*DOCUMENTS, DOCUMENTS[0]]}, r"corpus\.jsonl:4: '_id' is 'd1', as in"),
    ({"queries": [{"_id": "q1", "text": " "}]}, r"queries\.jsonl:1: 'text' is empty"),
]


def test_a_collection_that_cannot_be_used_is_named_with_its_line(tmp_path):
    for changes, fault in COLLECTION_FAULTS:
        with pytest.raises(ValueError, match=fault):
            embedding_files.read_collection(write_collection(tmp_path, **changes))
