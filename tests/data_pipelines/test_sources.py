import pytest

from data_pipelines import sources


def write(folder, **texts):
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return str(folder / "*.txt")


def test_blank_lines_separate_documents_however_many_there_are(tmp_path):
    source = write(tmp_path, a="\n\none\ntwo\n\n \n\nthree\n", b="four")
    texts = [document.text for document in sources.documents(source)]
    assert texts == ["one\ntwo", "three", "four"]


def test_a_file_can_be_one_document(tmp_path):
    source = write(tmp_path, a="one\n\ntwo\n", b="three")
    found = sources.documents(source, one_document_per_file=True)
    assert [document.text for document in found] == ["one\ntwo", "three"]


def test_train_and_heldout_documents_are_disjoint_and_together_all(tmp_path):
    source = write(tmp_path, a="\n\n".join(f"text {i}" for i in range(600)))
    ids = {
        split: {d.id for d in sources.documents(source, split=split, heldout_fraction=0.1)}
        for split in sources.SPLITS
    }
    assert not ids["train"] & ids["heldout"]
    assert ids["train"] | ids["heldout"] == ids["all"]
    assert 30 <= len(ids["heldout"]) <= 95


def test_the_split_of_a_document_depends_on_its_id_alone():
    # Fixed values: a change would move documents between training and evaluation.
    fates = [sources.is_heldout(f"document {number}", 0.5) for number in range(8)]
    assert fates == [True, True, True, False, False, False, True, True]
    assert not sources.is_heldout("anything", 0.0)


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        ("{}/none*.txt", {}, FileNotFoundError, "none*.txt"),
        ("{}/a.txt,", {}, FileNotFoundError, "''"),
        ("{}/a.txt", {"split": "test"}, ValueError, "all, train, heldout"),
        ("{}/a.txt", {"heldout_fraction": 1.0}, ValueError, "heldout_fraction is 1.0"),
    ],
)
def test_bad_input_is_named_before_anything_is_read(tmp_path, source, options, error, message):
    write(tmp_path, a="text")
    with pytest.raises(error) as caught:
        sources.documents(source.format(tmp_path), **options)
    assert message in str(caught.value)


def test_text_that_is_not_utf8_names_its_file(tmp_path):
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(ValueError, match="latin.txt is not UTF-8"):
        list(sources.documents(str(tmp_path / "latin.txt")))
