"""Token ids from .npy files and from lists in tables, to records that hold them."""

import json

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from data_pipelines import build
from data_pipelines.documents import sources
from data_pipelines.formats import input_files
from tests.data_pipelines import conftest, decoded

DOCUMENTS = [[5, 6, 7], [8], [9, 10, 5, 6]]


def texts(path, **reading):
    log = input_files.Log()
    found = list(sources.documents(str(path), sources.Reading(**reading), log))
    return [document.text for document in found], log


def padded(dtype):
    rows = np.full((3, 5), -1, dtype)
    for row, ids in zip(rows, DOCUMENTS, strict=True):
        row[: len(ids)] = ids
    return rows


WANTED = ["5 6 7", "8", "9 10 5 6"]


def test_rows_and_what_negative_numbers_part_are_documents(tmp_path):
    flat = np.concatenate([np.append(ids, -1) for ids in DOCUMENTS])
    for name, array in (("rows", padded(np.int32)), ("flat", flat), ("open", flat[:-1])):
        np.save(tmp_path / f"{name}.npy", array)
        found, log = texts(tmp_path / f"{name}.npy")
        assert found == WANTED
        assert log.bytes_read == (tmp_path / f"{name}.npy").stat().st_size
    np.save(tmp_path / "one.npy", np.arange(4, dtype=np.uint16))
    assert texts(tmp_path / "one.npy")[0] == ["0 1 2 3"]


def test_lists_in_the_fields_of_tables_are_documents(tmp_path):
    for kind in (pyarrow.list_(pyarrow.int16()), pyarrow.large_list(pyarrow.int64())):
        column = pyarrow.array([*DOCUMENTS, None], kind)
        parquet.write_table(pyarrow.table({"ids": column}), tmp_path / "a.parquet")
        found, log = texts(tmp_path / "a.parquet", text_field="ids")
        assert found == WANTED and log.counts == {"records_without_text": 1}
    lines = [json.dumps({"deep": {"ids": ids}}) for ids in DOCUMENTS]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert texts(tmp_path / "a.jsonl", text_field="deep.ids")[0] == WANTED


def test_what_is_no_array_of_integers_is_refused(tmp_path):
    for array, message in (
        (np.ones(3), "1 dimensions of float64"),
        (np.ones((2, 2, 2), int), "3 dimensions of int64"),
        (np.array([[1], [2, 3]], object), "one of objects would run code: write rows"),
    ):
        np.save(tmp_path / "a.npy", array, allow_pickle=True)
        with pytest.raises(ValueError, match=message):
            sources.documents(str(tmp_path / "a.npy"))


def integers(tmp_path):
    fields = {"vocab_size": 30, "pad_id": 0, "cls_id": 26, "sep_id": 27, "mask_id": 29}
    (tmp_path / "integers.json").write_text(json.dumps(fields))
    return str(tmp_path / "integers.json")


def test_records_hold_the_ids_of_the_arrays(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.integers(1, 26, (40, 9))
    np.save(tmp_path / "rows.npy", rows)
    changes = {"max_seq_length": 16, "pair_objective": "none", "short_seq_prob": 0.0}
    places = (tmp_path / "rows.npy", integers(tmp_path), tmp_path / "out")
    manifest = build.build(conftest.options(*places, **changes))
    assert manifest.tokenizer["kind"] == "integers" and manifest.tokenizer["vocab_size"] == 30
    batch = decoded.read(tmp_path / "out")
    ids = decoded.restored(batch)
    assert (ids[:, 0] == 26).all() and (ids[:, 10] == 27).all() and not ids[:, 11:].any()
    assert sorted(ids[:, 1:10].tolist()) == sorted(rows.tolist())
    assert manifest.statistics["unknown_rate"] == 0 == manifest.statistics["example_unknown_rate"]


def test_integers_are_not_read_as_text(tmp_path, vocabulary_directory, text_file):
    np.save(tmp_path / "rows.npy", padded(np.int32))
    output, objective = tmp_path / "out", {"pair_objective": "none"}
    rows = tmp_path / "rows.npy"
    given = conftest.options(rows, vocabulary_directory, output, **objective)
    with pytest.raises(ValueError, match="rows.npy holds integers, but the vocabulary .*wordpiece"):
        build.build(given)
    given = conftest.options(text_file, integers(tmp_path), output, **objective)
    with pytest.raises(ValueError, match="is not an id: the vocabulary is of integers"):
        build.build(given)
