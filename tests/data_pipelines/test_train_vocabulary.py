import os
import pathlib
import subprocess
import sys

import pytest

from data_pipelines import train_vocabulary


def options(text_file, output, **changes):
    fields = {"input": text_file, "output": str(output), "size": 150, "heldout_fraction": 0.1}
    return train_vocabulary.Options(**(fields | changes))


def test_vocabulary_begins_with_specials_has_no_duplicates_and_fits(text_file, tmp_path):
    made, coverage = train_vocabulary.train_vocabulary(options(text_file, tmp_path))
    entries = (tmp_path / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert entries[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(set(entries)) == len(entries) == made.vocab_size == 150
    assert coverage.words > 50
    assert 1.0 <= coverage.fertility < 5.0
    assert coverage.unknown_rate == 0.0


def test_equal_runs_in_other_processes_write_equal_bytes(text_file, tmp_path):
    # Hash orders differ between processes and threads, so one process alone would prove little.
    for name, threads, hash_seed in (("a", "1", "1"), ("b", "2", "2")):
        subprocess.run(
            [sys.executable, "-m", "data_pipelines.train_vocabulary"]
            + [f"--input={text_file}", f"--output={tmp_path / name}", "--size=150"],
            env=os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
        )
    for file in ("vocab.txt", "tokenizer_config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_casing_and_accents_are_separate(tmp_path):
    texts = ["Élan élan Élan"] * 20
    kept = train_vocabulary.train(texts, size=60, lowercase=True, strip_accents=False)
    assert "é" in kept.vocabulary and "É" not in kept.vocabulary
    cased = train_vocabulary.train(texts, size=60, lowercase=False)
    assert "É" in cased.vocabulary
    assert "é" not in train_vocabulary.train(texts, size=60).vocabulary


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


@pytest.mark.parametrize(
    ("text", "size", "message"),
    [
        ("some words", 12, "give a larger size"),
        ("\n\n", 100, "holds no text to train on"),
        ("\u200b\u200b", 100, "no visible characters"),
    ],
)
def test_text_that_gives_no_vocabulary_is_one_clear_error(tmp_path, text, size, message):
    path = tmp_path / "text.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        train_vocabulary.train_vocabulary(
            options(str(path), tmp_path / "out", size=size, heldout_fraction=0.0)
        )


def test_an_existing_vocabulary_is_not_overwritten_unasked(text_file, tmp_path):
    train_vocabulary.train_vocabulary(options(text_file, tmp_path))
    before = pathlib.Path(tmp_path / "vocab.txt").read_bytes()
    with pytest.raises(FileExistsError, match="--overwrite"):
        train_vocabulary.train_vocabulary(options(text_file, tmp_path, size=120))
    assert (tmp_path / "vocab.txt").read_bytes() == before
    train_vocabulary.train_vocabulary(options(text_file, tmp_path, size=120, overwrite=True))
    assert (tmp_path / "vocab.txt").read_bytes() != before
