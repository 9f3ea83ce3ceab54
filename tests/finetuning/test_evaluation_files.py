"""Names of evaluation sets: pairs of a name and a path, and all that is wrong with them."""

import pytest

from bertjax.finetuning import evaluation_files


@pytest.mark.parametrize(
    ("value", "paths"),
    [
        ("", {}),
        ("zh=a.tsv", {"zh": "a.tsv"}),
        ("zh-Hant= lang=zh/a b.tsv ,en=b.tsv,", {"zh-Hant": "lang=zh/a b.tsv", "en": "b.tsv"}),
        ("中文=gs://a/b.tsv", {"中文": "gs://a/b.tsv"}),
    ],
)
def test_the_first_equals_sign_ends_the_name_and_the_order_is_kept(value, paths):
    read = evaluation_files.named(value)
    assert read == paths and list(read) == list(paths)
    assert evaluation_files.are_named(value) == bool(paths)


def test_all_faults_of_names_and_paths_are_reported_at_once():
    with pytest.raises(ValueError) as caught:
        evaluation_files.named("a.tsv,=b.tsv,e/n=c.tsv,mean=d.tsv,zh=e.tsv,zh=f.tsv,ru=c.tsv,x=")
    expected = (
        "eval_files is 'a.tsv,",
        "'a.tsv' must be NAME=PATH",
        "the name of b.tsv is ''; it must be letters",
        "the name of c.tsv is 'e/n'; it must be letters",
        "the name of d.tsv is 'mean', which means another set",
        "'x' must be NAME=PATH",
        "the name 'zh' stands 2 times",
        "the path 'c.tsv' stands 2 times",
    )
    assert [part for part in expected if part not in str(caught.value)] == []


def test_a_file_with_an_equals_sign_in_its_path_is_one_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert evaluation_files.are_named("lang=zh.tsv")
    (tmp_path / "lang=zh.tsv").touch()
    for path in ("lang=zh.tsv", "data/lang=zh.tsv", "lang=zh/a.tsv,lang/b.tsv"):
        assert not evaluation_files.are_named(path)
