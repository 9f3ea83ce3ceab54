import json

import pytest

from bertjax.data import parallel_texts

TEXTS = (["ein Haus", 'zwei, "drei"'], ["a house", "two, three"])
PAIRS = tuple(zip(*TEXTS, strict=True))


@pytest.mark.parametrize(
    "files",
    [
        {"de.txt": 'ein Haus\nzwei, "drei"\n', "en.txt": "a house\r\ntwo, three\r\n"},
        {"corpus.de,2": 'ein Haus\nzwei, "drei"', "corpus.en": "a house\ntwo, three"},
        {"both.tsv": 'ein Haus\ta house\nzwei, "drei"\ttwo, three\n'},
        {"both.csv": 'de;en\nein Haus;a house\n"zwei, ""drei""";two, three\n'},
        {"both.jsonl": "\n".join(json.dumps(dict(zip("ab", it, strict=True))) for it in PAIRS)},
    ],
    ids=lambda files: ",".join(files),
)
def test_texts_come_from_two_files_of_lines_or_one_table(tmp_path, files):
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    assert parallel_texts.read(",".join(str(tmp_path / name) for name in files)) == TEXTS


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a": "x\ny\n", "b": "x\n"},
            r"a has more lines than .*b, which has 1; line n of one must be",
        ),
        ({"a": "x\n\n", "b": "x\ny\n"}, r"a:2: the text is empty; leave the pair out"),
        ({"a.tsv": "x\ty\nz\n"}, r"a\.tsv:2: "),
        (
            {"a.jsonl": '{"a": "x", "b": 1}'},
            r"a\.jsonl:1: .*; a row must be two texts",
        ),
        ({"a": "x", "b": "x", "c": "x"}, r"names 3 files; give SOURCE,TARGET or one table"),
        ({"a": "", "b": ""}, r"holds no texts"),
    ],
)
def test_what_is_not_parallel_is_an_error_with_its_place(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        parallel_texts.read(",".join(str(tmp_path / name) for name in files))


def test_a_first_row_of_the_columns_names_is_not_a_pair(tmp_path):
    path = tmp_path / "both.tsv"
    path.write_text("de\ten\nHaus\thouse\nde\ten\n", encoding="utf-8")
    found = [pair[1:3] for pair in parallel_texts.pairs([str(path)], ["de", "en"])]
    assert found == [("Haus", "house"), ("de", "en")]
    assert len([*parallel_texts.pairs([str(path)])]) == 3
