import os
import pathlib
import subprocess
import sys

import pytest

from bertjax.data import tokenizer
from data_pipelines import train_vocabulary


def options(text_file, output, **changes):
    fields = {"input": text_file, "output": str(output), "size": 150, "heldout_fraction": 0.1}
    return train_vocabulary.Options(**(fields | changes))


def trained(texts, **changes):
    """The tokenizer of texts that are held in memory."""
    chosen = train_vocabulary.Options(input="", output="", **changes)
    kind = train_vocabulary.TRAINERS[chosen.kind]
    counts = train_vocabulary.Counts(kind.splitter(chosen.is_lowercase, chosen.strip_accents))
    for text in texts:
        counts.add(text)
    return kind.train(counts.units(), chosen)


def test_vocabulary_begins_with_specials_has_no_duplicates_and_fits(text_file, tmp_path):
    made, coverage = train_vocabulary.train_vocabulary(options(text_file, tmp_path))
    entries = (tmp_path / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert entries[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(set(entries)) == len(entries) == made.vocab_size == 150
    assert coverage.words > 50
    assert 1.0 <= coverage.fertility < 5.0
    assert coverage.unknown_rate == 0.0


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_sentencepiece_model_has_the_ids_of_a_vocabulary_and_fits(text_file, tmp_path, model_type):
    chosen = options(text_file, tmp_path, kind="sentencepiece", model_type=model_type)
    made, coverage = train_vocabulary.train_vocabulary(chosen)
    assert made.special_ids == (0, 1, 2, 3, 4)
    assert [made.token(token_id) for token_id in range(5)] == list(train_vocabulary.SPECIALS)
    assert 100 < made.vocab_size <= 150
    assert tokenizer.load(tmp_path).describe() == made.describe()
    assert coverage.words > 50
    assert 1.0 <= coverage.fertility < 5.0
    assert coverage.unknown_rate == 0.0


@pytest.mark.parametrize(
    ("chosen", "warnings"),
    [
        ({"kind": "wordpiece"}, 0),
        ({"kind": "sentencepiece"}, 0),
        ({"kind": "sentencepiece", "model_type": "bpe"}, 1),
    ],
    ids=str,
)
def test_a_kind_that_cannot_be_exported_is_told_before_it_is_trained(
    text_file, tmp_path, caplog, monkeypatch, chosen, warnings
):
    def stop(options):
        raise InterruptedError

    monkeypatch.setattr(train_vocabulary, "train_vocabulary", stop)
    with pytest.raises(InterruptedError):
        train_vocabulary.main(options(text_file, tmp_path, **chosen))
    told = [each for each in caplog.records if "only unigram models are written" in each.message]
    assert len(told) == warnings


def test_byte_bpe_begins_with_specials_and_bytes_and_knows_every_text(text_file, tmp_path):
    chosen = options(text_file, tmp_path, kind="byte_bpe", size=300)
    made, coverage = train_vocabulary.train_vocabulary(chosen)
    assert made.vocabulary[:6] == ("<s>", "<pad>", "</s>", "<unk>", "<mask>", "!")
    assert made.vocab_size == 300 and len(made.merges) == 300 - 5 - 256
    assert tokenizer.load(tmp_path).describe() == made.describe()
    assert not made.describe()["lowercase"]
    assert 1.0 <= coverage.fertility < 5.0 and coverage.unknown_rate == 0.0
    # Words of a text have their blanks: the most frequent syllables are merged with them.
    assert any(entry.startswith("Ġ") and len(entry) > 2 for entry in made.vocabulary)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 260}, "size is 260; it must be at least 261"),
        ({"lowercase": True}, "--lowercase is true, .* byte_bpe .*another --kind .wordpiece, sent"),
        ({"strip_accents": True}, "--strip_accents is true"),
    ],
)
def test_what_byte_bpe_cannot_do_is_refused(text_file, tmp_path, changes, message):
    chosen = options(text_file, tmp_path, **{"kind": "byte_bpe", "size": 300, **changes})
    with pytest.raises(ValueError, match=message):
        train_vocabulary.train_vocabulary(chosen)
    assert not list(tmp_path.iterdir())


def test_another_kind_in_the_same_place_leaves_nothing_of_the_one_before(text_file, tmp_path):
    train_vocabulary.train_vocabulary(options(text_file, tmp_path, kind="byte_bpe", size=300))
    with pytest.raises(FileExistsError, match=r"vocab\.json exists"):
        train_vocabulary.train_vocabulary(options(text_file, tmp_path))
    train_vocabulary.train_vocabulary(options(text_file, tmp_path, overwrite=True))
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"vocab.txt", "tokenizer_config.json"}


def test_byte_bpe_merges_the_most_frequent_pair_first():
    made = trained(["ab ab ab ab ab cd cd"], kind="byte_bpe", size=280)
    assert [made.decode([token_id]) for token_id in made.encode(" ab cd")] == [" ab", " cd"]


ALL_KINDS = """
import sys
from data_pipelines import train_vocabulary
kinds = (("wordpiece", "unigram"), ("sentencepiece", "unigram"), ("sentencepiece", "bpe"),
         ("byte_bpe", ""))
for kind, model_type in kinds:
    train_vocabulary.main(train_vocabulary.Options(
        input=sys.argv[1], output=f"{sys.argv[2]}/{kind}_{model_type}", kind=kind,
        model_type=model_type or "unigram", size=320 if kind == "byte_bpe" else 150))
"""


def test_equal_runs_in_other_processes_write_equal_bytes(text_file, tmp_path):
    # Hash orders differ between processes and threads, so one process alone would prove little.
    for name, threads, hash_seed in (("a", "1", "1"), ("b", "2", "2")):
        subprocess.run(
            [sys.executable, "-c", ALL_KINDS, text_file, str(tmp_path / name)],
            env=os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        )
    made = sorted(path for path in (tmp_path / "a").rglob("*") if path.is_file())
    assert len(made) == 10
    for path in made:
        other = tmp_path / "b" / path.relative_to(tmp_path / "a")
        assert path.read_bytes() == other.read_bytes()


def test_when_text_is_folded_into_counts_changes_no_vocabulary(text_file, monkeypatch):
    texts = pathlib.Path(text_file).read_text(encoding="utf-8").split("\n\n")
    at_once = trained(iter(texts), size=150)
    monkeypatch.setattr(train_vocabulary, "FOLD_CHARACTERS", 500)
    assert trained(iter(texts), size=150).vocabulary == at_once.vocabulary


def test_counts_forget_rare_units_rather_than_grow(monkeypatch):
    monkeypatch.setattr(train_vocabulary, "FOLD_CHARACTERS", 500)
    monkeypatch.setattr(train_vocabulary, "MAX_DISTINCT_CHARACTERS", 2000)
    counts = train_vocabulary.Counts(lambda chunk: [chunk])
    for number in range(3000):
        counts.add(f"frequent rare{number:06d} common")
    kept = counts.units()
    assert sum(map(len, kept)) <= 2000
    assert kept["frequent"] == kept["common"] == 3000
    assert len(kept) > 90
    # Early and late ones alike survive, since a hash chooses.
    numbers = [int(unit[4:]) for unit in kept if unit.startswith("rare")]
    assert min(numbers) < 1000 < 2000 < max(numbers)


def test_words_are_split_as_the_tokenizer_will(tmp_path):
    texts = ["wo\x0brd, 博推 wo\u00adrd \ue000\ue000 \u03a3\u03a3"] * 10
    made = trained(texts, size=60)
    assert {"word", "博", "推", "\ue000\ue000", "\u03c3\u03c2", ","} <= set(made.vocabulary)
    # Punctuation and CJK characters never continue a word.
    assert not {"##,", "##博", "##推"} & set(made.vocabulary)
    assert train_vocabulary.coverage(made, {"word,": 3, "x": 1}) == train_vocabulary.Coverage(
        words=4, fertility=7 / 4, unknown_rate=1 / 7
    )


def test_alphabet_grows_with_the_characters_that_the_text_needs():
    # 1,500 characters of equal frequency: none may be left out because of their number.
    many = "".join(chr(0x4E00 + number) for number in range(1500))
    assert trained([many], size=1600).vocab_size == 1505
    # A character beyond the first thousand that makes no difference is.
    entries = trained([many[:1000] * 100 + "\u9000"], size=1600).vocabulary
    assert len(entries) == 1005 and "\u9000" not in entries


def test_casing_and_accents_are_separate(tmp_path):
    texts = ["Élan élan Élan"] * 20
    kept = trained(texts, size=60, lowercase=True, strip_accents=False)
    assert "é" in kept.vocabulary and "É" not in kept.vocabulary
    cased = trained(texts, size=60, lowercase=False)
    assert "É" in cased.vocabulary
    assert "é" not in trained(texts, size=60).vocabulary


def test_heldout_documents_are_not_trained_on(tmp_path):
    # Every document has a character of its own: those held out are unknown.
    texts = [f"word{chr(0x400 + number)} " * 5 for number in range(80)]
    (tmp_path / "text.txt").write_text("\n\n".join(texts), encoding="utf-8")
    made, coverage = train_vocabulary.train_vocabulary(
        options(str(tmp_path / "text.txt"), tmp_path / "out", size=400, lowercase=False)
    )
    known = sum(chr(0x400 + number) in made.vocabulary for number in range(80))
    assert 40 < known < 80
    assert coverage.unknown_rate == 1.0


@pytest.mark.parametrize("kind", ["wordpiece", "sentencepiece"])
@pytest.mark.parametrize(
    ("text", "size", "message"),
    [
        ("some words", 12, "size is 12.*larger|size is 12.*required_chars"),
        ("\n\n", 100, "holds no text to train on"),
        ("\u200b\u200b", 100, "no visible characters"),
    ],
)
def test_text_that_gives_no_vocabulary_is_one_clear_error(tmp_path, text, size, message, kind):
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        train_vocabulary.train_vocabulary(
            options(str(path), tmp_path / "out", size=size, heldout_fraction=0.0, kind=kind)
        )
    assert not (tmp_path / "out").exists()


def test_an_existing_vocabulary_is_not_overwritten_unasked(text_file, tmp_path):
    train_vocabulary.train_vocabulary(options(text_file, tmp_path))
    before = pathlib.Path(tmp_path / "vocab.txt").read_bytes()
    with pytest.raises(FileExistsError, match="--overwrite"):
        train_vocabulary.train_vocabulary(options(text_file, tmp_path, size=120))
    assert (tmp_path / "vocab.txt").read_bytes() == before
    train_vocabulary.train_vocabulary(options(text_file, tmp_path, size=120, overwrite=True))
    assert (tmp_path / "vocab.txt").read_bytes() != before
    replaced = options(text_file, tmp_path, overwrite=True, kind="sentencepiece")
    train_vocabulary.train_vocabulary(replaced)
    assert tokenizer.load(tmp_path).kind == "sentencepiece"


def test_a_field_of_json_lines_is_trained_on(tmp_path):
    lines = [f'{{"body": "lorem {number}", "text": "other"}}\n' for number in range(50)]
    (tmp_path / "some.jsonl").write_text("".join(lines))
    made, _ = train_vocabulary.train_vocabulary(
        options(str(tmp_path / "some.jsonl"), tmp_path / "out", text_field="body")
    )
    assert "lorem" in made.vocabulary and "other" not in made.vocabulary
