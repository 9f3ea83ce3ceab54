"""Texts with their translations, from their files to records."""

import json
import os

import numpy as np
import pytest
from etils import epath

from data_pipelines import build
from data_pipelines.documents import sources
from tests import small_records
from tests.data_pipelines import conftest, decoded

PAIRS = [(f"w{n} w{n + 1} w{n + 2}", f"w{n + 20} w{n + 21}") for n in range(30)]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one, other = (list(side) for side in zip(*PAIRS, strict=True))
    files = {
        "a.en": "\n".join(one) + "\n",
        "a.fr": "\r\n".join(other),
        "both.tsv": "".join(f"{source}\t{target}\n" for source, target in PAIRS),
        "both.csv": "fr,id,en\n" + "".join(f"{it[1]},7,{it[0]}\n" for it in PAIRS),
        "both.jsonl": "".join(json.dumps({"id": 1, "fr": b, "en": a}) + "\n" for a, b in PAIRS),
        "en+fr.tsv": "".join(f"{source}\t{target}\n" for source, target in PAIRS),
        "de.txt": "\n\n".join(f"w{n} w{n + 1} . w{n} ." for n in range(20)),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, newline="")
    small_records.vocabulary().save(epath.Path(tmp_path / "vocabulary"))
    return tmp_path


def built(text, output="records", **changes):
    chosen = {"pair_objective": "none", "mask": "none", "max_seq_length": 16, "dupe_factor": 2}
    changes = chosen | {"num_shards": 1} | changes
    return build.build(conftest.options(text, "vocabulary", output, **changes))


def texts(batch, row):
    """Returns the words of segment 0 and of segment 1 of a row."""
    known, ids = small_records.vocabulary(), batch["input_ids"][row]
    real = (batch["input_mask"][row] == 1) & ~np.isin(ids, known.special_ids)
    return tuple(
        " ".join(known.token(int(it)) for it in ids[real & (batch["segment_ids"][row] == segment)])
        for segment in (0, 1)
    )


@pytest.mark.parametrize(
    "text",
    [
        "a.en+a.fr=en+fr",
        "both.tsv=en+fr",
        "both.csv=en+fr",
        "both.jsonl=en+fr",
        "{language}.tsv",
        "*+fr.tsv=en+fr",
    ],
)
def test_a_row_is_a_text_and_its_translation_from_any_kind_of_file(corpus, text):
    if text == "{language}.tsv":
        (corpus / "both.tsv").unlink()
    manifest = built(text)
    assert list(manifest.languages) == ["en+fr"] and manifest.languages["en+fr"]["documents"] == 30
    batch = decoded.read(corpus / "records")
    found = [texts(batch, row) for row in range(len(batch["input_ids"]))]
    assert len(found) == 60  # each in both passes
    assert set(found) == set(PAIRS)


def test_names_with_the_mark_are_files_where_they_are_there(corpus):
    (corpus / "a.en").rename("a+b.en")
    (unit,) = sources.units("a+b.en+a.fr=en+fr")
    assert sources.FORMATS[unit.format].files(unit.location) == ["a+b.en", "a.fr"]
    manifest = built("a+b.en+a.fr=en+fr")
    assert manifest.num_examples == 60
    (one,) = sources.units("en+fr.tsv=en+fr")
    assert sources.FORMATS[one.format].files(one.location) == ["en+fr.tsv"]


def test_translations_are_one_more_part_of_a_mixture(corpus):
    manifest = built("de.txt=de,both.tsv=en+fr", packing="best_fit", max_seq_length=32)
    assert list(manifest.languages) == ["de", "en+fr"] and manifest.pair_objective == "none"
    batch = decoded.read(corpus / "records" / "en+fr")
    assert batch["sequence_ids"].max() > 1
    assert not decoded.read(corpus / "records" / "de")["segment_ids"].any()
    for row in range(3):
        first = batch["sequence_ids"][row] == 1
        one = {name: values[row : row + 1, first] for name, values in batch.items()}
        assert texts(one, 0) in PAIRS


def test_pairs_that_lack_a_text_are_counted_and_left_out(corpus):
    (corpus / "a.fr").write_text("\n".join(["", *(target for _, target in PAIRS[1:])]))
    manifest = built("a.en+a.fr=en+fr")
    assert manifest.languages["en+fr"]["documents"] == 29
    problems = manifest.statistics["reading_problems"]
    assert problems["pairs_without_text"] == {"count": 1, "first": ["a.fr:1"]}


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        ("a.en+short=en+fr", {}, "a.en has more lines than short, which has 2; line n of one"),
        ("both.tsv=en+fr", {"pair_objective": "nsp"}, "pair_objective is 'nsp', but both.tsv hol"),
        ("three.csv=en+fr", {}, r"three.csv has 3 columns \(a, b, c\); give .* or en and fr among"),
        ("a.en+b.fr=en+fr", {}, r"a\.en\+b\.fr"),
        ("a.*+b.*=en+fr", {}, r"input 'a\.\*\+b\.\*' matches no file"),
        ("pipe=en+fr", {}, "pipe is a pipe, and the files of translations are read twice"),
        ("a.en+pipe=en+fr", {}, "pipe is a pipe, and the files of translations are read twice"),
        ("both.tsv", {"language": "en+fr"}, "language is 'en.fr'; it must be the name of a lang"),
    ],
)
def test_what_is_no_translation_is_an_error(corpus, text, changes, message):
    (corpus / "short").write_text("w1\nw2\n")
    (corpus / "three.csv").write_text("a,b,c\nw1,w2,w3\n")
    os.mkfifo(corpus / "pipe")
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        built(text, **changes)
    assert not (corpus / "records").exists()


def test_a_file_that_changes_is_noticed_in_both_sides(corpus):
    units = sources.units("a.en+a.fr=en+fr")
    before = sources.stamps(units)
    sources.check_unchanged(units, before)
    (corpus / "a.fr").write_text("w1\n")
    with pytest.raises(ValueError, match="the input changed"):
        sources.check_unchanged(units, before)


def test_the_records_can_be_built_again_over_themselves(corpus):
    first = built("de.txt=de,both.tsv=en+fr")
    again = built("de.txt=de,both.tsv=en+fr", overwrite=True)
    assert again.digest == first.digest
