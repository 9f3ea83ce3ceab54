import json

import pytest
from etils import epath

from bertjax.data import records
from bertjax.files import directories
from data_pipelines import build, inspect_records, train_vocabulary
from data_pipelines.documents import languages, sources
from tests import small_records
from tests.data_pipelines import conftest, decoded

# Two languages of the same words in another order, and a third one that is small.
TEXTS = {
    "de": [f"w{n} w{n + 1} w{n + 2} . w{n + 3} w{n + 4} ." for n in range(40)],
    "fr": [f"w{n + 4} w{n + 3} . w{n + 2} w{n + 1} w{n} ." for n in range(20)],
    "zh-Hant": [f"w{n} w{n} w{n} . w{n} w{n} ." for n in range(6)],
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A folder of text for each language, the vocabulary, and the records of all in `whole`."""
    corpus = tmp_path_factory.mktemp("corpus")
    for name, documents in TEXTS.items():
        (corpus / "corpus" / name).mkdir(parents=True)
        (corpus / "corpus" / name / "part.txt").write_text("\n\n".join(documents) + "\n")
    small_records.vocabulary().save(epath.Path(corpus / "vocabulary"))
    build.build(options(corpus, corpus / "whole"))
    return corpus


def options(corpus, output, **changes):
    text = str(corpus / "corpus" / "{language}" / "*.txt")
    sizes = {"max_seq_length": 16, "dupe_factor": 2, "num_shards": 2}
    changes = {"input": text} | sizes | changes
    return conftest.options("", str(corpus / "vocabulary"), output, **changes)


def content(directory):
    return decoded.files(directory, "**/*.tfrecord*")


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("a.txt=de", ("a.txt", "de")),
        ("tfds:wiki40b/de=de", ("tfds:wiki40b/de", "de")),
        ("gs://bucket/a=b/c.txt=zh-Hant", ("gs://bucket/a=b/c.txt", "zh-Hant")),
        ("a.txt=eng_Latn", ("a.txt", "eng_Latn")),
        ("lang=de/a.parquet", ("lang=de/a.parquet", "")),
        ("lang=de/*.parquet=de", ("lang=de/*.parquet", "de")),
        ("there=de", ("there=de", "")),
        ("a.txt=d", ("a.txt=d", "")),
        ("a.txt=no code", ("a.txt=no code", "")),
        ("=de", ("=de", "")),
    ],
)
def test_the_last_sign_counts_before_a_language_alone(part, expected, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there=de").write_text("text")
    assert languages.of_part(part) == expected


@pytest.mark.parametrize(
    ("file", "path", "expected"),
    [
        ("corpus/de/a.txt", "corpus/{language}/*.txt", "de"),
        ("x/corpus/zh-Hant/b/a.txt", "**/corpus/{language}/**/a.txt", "zh-Hant"),
        ("lang=fr/a.parquet", "lang={language}/*.parquet", "fr"),
        ("de/de.txt", "{language}/{language}.txt", "de"),
        ("wiki.de.txt", "wiki.{language}.txt", "de"),
        ("a.txt", "*.txt", ""),
    ],
)
def test_a_language_stands_in_the_path_of_a_file(file, path, expected):
    assert languages.of_file(file, path) == expected


def test_each_language_has_the_records_of_its_own_text_alone(corpus, tmp_path):
    manifest = records.Manifest.load(corpus / "whole")
    assert list(manifest.languages) == sorted(TEXTS)
    for name, documents in TEXTS.items():
        assert manifest.languages[name]["documents"] == len(documents)
        alone = {"language": name, "input": str(corpus / "corpus" / name / "*.txt")}
        own = build.build(options(corpus, tmp_path / name, **alone))
        assert own.languages == {name: manifest.languages[name]}
        assert content(corpus / "whole" / name) == content(tmp_path / name)
    whole = records.open(corpus / "whole")
    assert whole.manifest == manifest and whole.contents is not None
    for name in TEXTS:
        one = whole.of_language(name)
        counts = [whole.manifest.shards[it].examples for it in manifest.shards_of(name)]
        assert counts == [shard.examples for shard in one.manifest.shards]
    tokens = sum(len(" ".join(documents).split()) for documents in TEXTS.values())
    assert manifest.statistics["tokens"] == tokens
    assert inspect_records.recounted(whole, small_records.vocabulary())[1] == []
    report = (corpus / "whole" / build.REPORT_FILE).read_text()
    assert "Languages" in report and "zh-Hant" in report


def test_a_language_without_text_is_left_out_with_a_warning(corpus, tmp_path, caplog):
    (tmp_path / "yo.txt").write_text("")
    changes = {"language": "", "input": f"{corpus}/corpus/{{language}}/*.txt,{tmp_path}/yo.txt=yo"}
    manifest = build.build(options(corpus, tmp_path / "out", **changes))
    assert list(manifest.languages) == sorted(TEXTS) and "yo.txt" in caplog.text
    assert content(tmp_path / "out") == content(corpus / "whole")
    alone = {"input": f"{tmp_path}/yo.txt=yo"}
    with pytest.raises(ValueError, match=r"yo\.txt.* holds no documents"):
        build.build(options(corpus, tmp_path / "none", **alone))


def test_all_ways_to_name_a_language_give_the_same_records(corpus, tmp_path):
    rows = [(name, document) for name in TEXTS for document in TEXTS[name]]
    lines = [json.dumps({"lang": name, "text": document}) for name, document in rows]
    (tmp_path / "all.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "all.csv").write_text("lang,text\n" + "".join(f"{n},{t}\n" for n, t in rows))
    parts = [f"{corpus}/corpus/{name}/part.txt" for name in TEXTS]
    ways = {
        "pairs": {"input": ",".join(f"{it}={n}" for it, n in zip(parts, TEXTS, strict=True))},
        "lines": {"input": f"{tmp_path}/all.jsonl", "language_field": "lang"},
        "table": {"input": f"{tmp_path}/all.csv", "language_field": "lang"},
        "rest": {"input": f"{parts[0]},{parts[1]}=fr,{parts[2]}=zh-Hant", "language": "de"},
    }
    for name, changes in ways.items():
        build.build(options(corpus, tmp_path / name, **changes))
        assert content(tmp_path / name) == content(corpus / "whole"), name


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"input": "{0}/de/part.txt=de,{0}/fr/part.txt"}, "none of .*/fr/part.txt"),
        ({"input": "{0}/de/part.txt=de,{0}/de/part.txt=fr"}, "twice, with the languages 'de' and"),
        ({"input": "{0}/de/part.txt=de,{0}/fr/part.txt=DE"}, "differ in case alone: DE, de"),
        ({"language": "German!"}, "language is 'German!'; it must be the name of a language"),
        ({"input": "{0}/{{language}}/part.tx*", "split": "heldout"}, "zh-Hant: input .* no docum"),
        ({"input": "{0}/de/part.txt", "language_field": "lang"}, "has no fields: only"),
        ({"input": "{0}/../no.jsonl", "language_field": "lang"}, "no.jsonl:2: the language is ''"),
        ({"input": "{0}/../no.jsonl", "language_field": "tongue"}, "language_field is 'tongue'"),
    ],
)
def test_a_text_of_unknown_language_is_named(corpus, tmp_path, changes, told):
    rows = [{"lang": "de", "text": "w1 w2 ."}, {"text": "w3 ."}]
    (corpus / "no.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    if "input" in changes:
        changes = changes | {"input": changes["input"].format(corpus / "corpus")}
    with pytest.raises(ValueError, match=told):
        build.build(options(corpus, tmp_path / "records", **changes))
    assert not (tmp_path / "records").exists()


def test_an_unfinished_build_keeps_its_languages_and_overwriting_the_files_of_others(
    corpus, tmp_path, monkeypatch
):
    made, tokenized = [], build._records

    def stopping(chosen, *arguments, **named):
        made.append(chosen.language)
        if chosen.language == "fr" and made.count("fr") == 1:
            raise KeyboardInterrupt
        return tokenized(chosen, *arguments, **named)

    monkeypatch.setattr(build, "_records", stopping)
    output = tmp_path / "records"
    with pytest.raises(KeyboardInterrupt):
        build.build(options(corpus, output))
    assert directories.format_of(tmp_path / "records.partial" / "records" / "de") == "records"
    build.build(options(corpus, output))
    assert made == ["de", "fr", "fr", "zh-Hant"]
    assert content(output) == content(corpus / "whole")
    assert not (tmp_path / "records.partial").exists()
    (output / "fr" / "notes.txt").write_text("mine")
    with pytest.raises(directories.NotOursError, match="fr/notes.txt"):
        build.build(options(corpus, output, overwrite=True))


def test_sentences_end_by_the_rules_of_their_language(corpus, tmp_path):
    pytest.importorskip("sentencex")
    build.build(options(corpus, tmp_path / "r", sentence_splitter="sentencex", dupe_factor=1))
    splitters = {
        name: records.Manifest.load(tmp_path / "r" / name).arguments["sentence_splitter"]
        for name in TEXTS
    }
    # It has none for Chinese.
    assert splitters == {"de": "sentencex:de", "fr": "sentencex:fr", "zh-Hant": "rules"}


def test_a_vocabulary_counts_languages_by_their_bytes_to_alpha(tmp_path):
    """Each language has its own letters, so that entries tell whose they are."""
    letters = {"de": "abcdefghij", "fr": "klmnopqrst"}
    for name, number in (("de", 3000), ("fr", 30)):
        words = [
            "".join(letters[name][int(digit)] for digit in f"{it % 97:02}{it % 89:02}")
            for it in range(number)
        ]
        lines = [" ".join(words[it : it + 10]) for it in range(0, number, 10)]
        (tmp_path / f"{name}.txt").write_text("\n\n".join(lines) + "\n")

    def entries(alpha):
        chosen = train_vocabulary.Options(
            input=str(tmp_path / "{language}.txt"),
            output=str(tmp_path / f"vocabulary_{alpha}"),
            **{"size": 200, "language_alpha": alpha, "heldout_fraction": 0.1},
        )
        _, measured, _ = train_vocabulary.train_vocabulary(chosen)
        entries = (tmp_path / f"vocabulary_{alpha}" / "vocab.txt").read_text().split()
        own = [entry for entry in entries if set(entry.removeprefix("##")) <= set(letters["fr"])]
        return len(own), measured

    (few, _), (more, measured) = entries(1.0), entries(0.3)
    assert few < more
    assert set(measured.languages) <= {"de", "fr"} and measured.languages["de"].words > 0
    with pytest.raises(ValueError, match="does not name several languages"):
        train_vocabulary.train_vocabulary(
            train_vocabulary.Options(
                input=str(tmp_path / "de.txt"), output=str(tmp_path / "x"), language_alpha=0.5
            )
        )


def test_english_without_a_language_says_nothing_of_languages(corpus, tmp_path):
    manifest = build.build(options(corpus, tmp_path / "r", input=f"{corpus}/corpus/de/*.txt"))
    assert not manifest.languages
    assert "languages" not in json.loads((tmp_path / "r" / "manifest.json").read_text())
    assert [unit.language for unit in sources.units(f"{corpus}/corpus/de/*.txt")] == [""]
