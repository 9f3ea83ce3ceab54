"""A corpus, queries and relevances in BEIR's layout."""

import json

import pytest

from bertjax.finetuning import embedding_files

DOCUMENTS = [
    {"_id": "d1", "title": "A title", "text": "of a text"},
    {"_id": "d2", "text": "no title"},
    {"_id": "d3", "title": "", "text": ""},
]
QUERIES = [{"_id": "q1", "text": "first"}, {"_id": "q2", "text": "not judged"}]
HEADER = "query-id\tcorpus-id\tscore"


@pytest.fixture
def write(tmp_path):
    def written(relevances=("q1\td1\t2", "q1\td2\t0"), documents=DOCUMENTS, queries=QUERIES):
        for name, rows in ((embedding_files.CORPUS, documents), (embedding_files.QUERIES, queries)):
            (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "qrels").mkdir(exist_ok=True)
        (tmp_path / embedding_files.RELEVANCES).write_text("\n".join([HEADER, *relevances]) + "\n")
        return tmp_path

    return written


def test_titles_stand_before_texts_and_queries_without_relevances_are_left_out(write, caplog):
    with caplog.at_level("INFO", logger="absl"):
        found = embedding_files.read_collection(write())
    assert found.documents == {"d1": "A title of a text", "d2": "no title", "d3": ""}
    assert found.queries == {"q1": "first"}
    assert found.relevances == {"q1": {"d1": 2, "d2": 0}}
    assert "1 without are left out" in caplog.text


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("q1\tnowhere\t1", "there is no document 'nowhere' in corpus.jsonl"),
        ("nobody\td1\t1", "there is no query 'nobody' in queries.jsonl"),
        ("q1\td2\thigh", "'score' is 'high'; it must be a whole number"),
        ("q1\td1\t1", "query 'q1' and document 'd1' stood in a line before"),
    ],
)
def test_a_line_of_relevances_that_cannot_be_used_is_named(write, line, fault):
    with pytest.raises(ValueError, match=rf"qrels/test\.tsv:3: {fault}"):
        embedding_files.read_collection(write(["q1\td1\t1", line]))


def test_relevances_must_name_something_relevant(write):
    with pytest.raises(ValueError, match="no document is relevant to any query"):
        embedding_files.read_collection(write(["q1\td1\t0"]))


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"documents": [*DOCUMENTS, DOCUMENTS[0]]}, r"corpus\.jsonl:4: '_id' is 'd1', as in"),
        ({"queries": [{"_id": "q1", "text": " "}]}, r"queries\.jsonl:1: 'text' is empty"),
    ],
)
def test_texts_that_cannot_be_used_are_named(write, changed, fault):
    with pytest.raises(ValueError, match=fault):
        embedding_files.read_collection(write(**changed))
