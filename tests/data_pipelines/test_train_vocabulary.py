import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import unicodedata

import pytest

from bertjax.files import directories
from bertjax.tokenization import tokenizer
from data_pipelines import progress, train_vocabulary
from data_pipelines.reports import losses
from data_pipelines.vocabulary import coverage, unit_counts, vocabulary_entries
from tests.data_pipelines import decoded
from tests.tokenization import test_normalization


def options(text_file, output, **changes):
    fields = {"input": text_file, "output": str(output), "size": 150, "heldout_fraction": 0.1}
    return train_vocabulary.Options(**(fields | changes))


def trained(texts, **changes):
    """The tokenizer of texts that are held in memory."""
    chosen = train_vocabulary.Options(input="", output="", **changes)
    kind = train_vocabulary.TRAINERS[chosen.kind]
    rule = chosen.rules.get("normalization", "released")
    counts = unit_counts.Counts(kind.splitter(chosen), rule=rule)
    for text in texts:
        counts.add(text)
    return kind.train(counts.units(), chosen)


# Rows of options, with the special tokens that a vocabulary has: their ids, their names.
BERT = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FAIRSEQ = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
PIECES = {"kind": "sentencepiece"}
VOCABULARIES = (
    ({}, (0, 1, 2, 3, 4), BERT),
    (PIECES, (0, 1, 2, 3, 4), BERT),
    (PIECES | {"model_type": "bpe"}, (0, 1, 2, 3, 4), BERT),
    (PIECES | {"special_tokens": "xlm-roberta"}, (1, 3, 0, 2, -1), FAIRSEQ),
    (PIECES | {"special_tokens": "camembert"}, (1, 3, 5, 6, -1), FAIRSEQ),
    ({"kind": "byte_bpe", "size": 300}, (1, 3, 0, 2, 4), FAIRSEQ),
)


def train_all(text_file, output):
    return [
        train_vocabulary.train_vocabulary(options(text_file, f"{output}/{number}", **changes))
        for number, (changes, _, _) in enumerate(VOCABULARIES)
    ]


TRAINING = """
import sys
from tests.data_pipelines import test_train_vocabulary
test_train_vocabulary.train_all(sys.argv[1], sys.argv[2])
"""


def test_vocabularies_have_their_special_tokens_and_equal_bytes_from_another_process(
    text_file, tmp_path
):
    everything = train_all(text_file, tmp_path / "a")
    for number, (made, measured, _) in enumerate(everything):
        changes, ids, names = VOCABULARIES[number]
        size = changes.get("size", 150)
        assert made.special_ids == tuple(it % made.vocab_size for it in ids)
        assert tuple(made.token(it) for it in made.special_ids) == names
        assert len({made.token(it) for it in range(made.vocab_size)}) == made.vocab_size
        least = 100 if changes.get("kind") == "sentencepiece" else size
        assert least <= made.vocab_size <= size
        assert tokenizer.load(tmp_path / "a" / f"{number}").describe() == made.describe()
        assert measured.words > 50 and 1.0 <= measured.fertility < 5.0
        assert measured.unknown_rate == 0.0
    assert made.vocabulary[5] == "!" and len(made.merges) == 300 - 5 - 256
    assert not made.describe()["lowercase"]
    # Words of a text have their blanks: the most frequent syllables are merged with them.
    assert any(entry.startswith("Ġ") and len(entry) > 2 for entry in made.vocabulary)
    # Hash orders differ between processes and threads, so one process alone would prove little.
    subprocess.run(
        [sys.executable, "-c", TRAINING, text_file, str(tmp_path / "b")],
        env=os.environ | {"RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": "1"},
        check=True,
        capture_output=True,
    )
    one, other = (decoded.files(tmp_path / name, "**/*") for name in "ab")
    assert one == other and len(one) == 20


BYTES = {"kind": "byte_bpe", "size": 300}


@pytest.mark.parametrize(
    ("text", "changes", "message"),
    [
        (None, {"special_tokens": "camembert"}, "--special_tokens is .*--kind=sentencepiece"),
        (None, {"segmenter": "characters"}, "--segmenter is .characters.*kind is wordpiece"),
        (None, BYTES | {"size": 260}, "size is 260; it must be at least 261"),
        (None, BYTES | {"normalization": "bert_uncased"}, "--normalization .*none, nfc, nfkc"),
        (None, BYTES | {"language": "tr"}, "--normalization and --language .*'tr'"),
        *(
            (text, {"kind": kind, "size": size, "heldout_fraction": 0.0}, message)
            for kind in ("wordpiece", "sentencepiece")
            for text, size, message in (
                ("some words", 12, "size is 12.*larger|size is 12.*required_chars"),
                ("\n\n", 100, "holds no text to train on"),
                ("\u200b\u200b", 100, "no visible characters"),
            )
        ),
    ],
)
def test_what_gives_no_vocabulary_is_one_clear_error(text_file, tmp_path, text, changes, message):
    if text is not None:
        text_file = str(tmp_path / "text.txt")
        pathlib.Path(text_file).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        train_vocabulary.train_vocabulary(options(text_file, tmp_path / "out", **changes))
    assert not (tmp_path / "out").exists()


def test_a_kind_that_cannot_be_exported_is_reported_before_it_is_trained(
    text_file, tmp_path, caplog, monkeypatch
):
    def stop(options):
        raise InterruptedError

    monkeypatch.setattr(train_vocabulary, "train_vocabulary", stop)
    for kind, model_type, is_warned in (
        ("wordpiece", "unigram", False),
        ("sentencepiece", "unigram", False),
        ("sentencepiece", "bpe", True),
    ):
        caplog.clear()
        with pytest.raises(InterruptedError):
            train_vocabulary.main(options(text_file, tmp_path, kind=kind, model_type=model_type))
        assert ("only unigram models are written" in caplog.text) == is_warned


def test_an_existing_vocabulary_is_replaced_whole_and_only_if_asked_for(text_file, tmp_path):
    train_vocabulary.train_vocabulary(options(text_file, tmp_path, kind="byte_bpe", size=300))
    before = decoded.files(tmp_path)
    with pytest.raises(FileExistsError, match=r"vocab\.json exists.*--overwrite"):
        train_vocabulary.train_vocabulary(options(text_file, tmp_path))
    assert decoded.files(tmp_path) == before
    train_vocabulary.train_vocabulary(options(text_file, tmp_path, overwrite=True))
    names = {"vocab.txt", "tokenizer_config.json", directories.MARKER}
    assert {path.name for path in tmp_path.iterdir()} == names
    replaced = options(text_file, tmp_path, overwrite=True, kind="sentencepiece")
    train_vocabulary.train_vocabulary(replaced)
    assert tokenizer.load(tmp_path).kind == "sentencepiece"
    (tmp_path / directories.MARKER).unlink()  # now it might be a download
    with pytest.raises(
        FileExistsError, match=r"holds spiece\.model, tokenizer_config\.json, and no"
    ):
        train_vocabulary.train_vocabulary(options(text_file, tmp_path, overwrite=True))


def test_byte_bpe_merges_the_most_frequent_pair_first():
    made = trained(["ab ab ab ab ab cd cd"], kind="byte_bpe", size=280)
    assert [made.decode([token_id]) for token_id in made.encode(" ab cd")] == [" ab", " cd"]


def test_byte_bpe_trains_on_pieces_of_a_word_without_end():
    longest = vocabulary_entries.MAX_UNIT_CHARACTERS
    dna = "ACGTTGCA" * longest
    chosen = train_vocabulary.Options(input="", output="", kind="byte_bpe")
    units = [*train_vocabulary.TRAINERS["byte_bpe"].splitter(chosen)(f"{dna} of DNA")]
    assert {len(unit) for unit in units[:-3]} == {longest}
    assert "".join(units) == f" {dna} of DNA" and units[-2:] == [" of", " DNA"]
    made = trained([dna], kind="byte_bpe", size=280)
    assert made.decode(made.encode(dna)) == dna and len(made.encode(dna)) <= len(dna) / 8


def test_when_text_is_folded_into_counts_changes_no_vocabulary(text_file, monkeypatch):
    texts = pathlib.Path(text_file).read_text(encoding="utf-8").split("\n\n")
    at_once = trained(iter(texts), size=150)
    monkeypatch.setattr(unit_counts, "FOLD_CHARACTERS", 500)
    assert trained(iter(texts), size=150).vocabulary == at_once.vocabulary


def test_counts_forget_rare_units_rather_than_grow(monkeypatch):
    monkeypatch.setattr(unit_counts, "FOLD_CHARACTERS", 500)
    monkeypatch.setattr(unit_counts, "MAX_DISTINCT_CHARACTERS", 2000)
    counts = unit_counts.Counts(lambda chunk: [chunk])
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
    made = trained(texts, size=60, normalization="bert_uncased")
    assert {"word", "博", "推", "\ue000\ue000", "\u03c3\u03c2", ","} <= set(made.vocabulary)
    # Punctuation and CJK characters never continue a word.
    assert not {"##,", "##博", "##推"} & set(made.vocabulary)
    measured = coverage.measured(made, {"word,": 3, "x": 1})
    assert (measured.words, measured.fertility, measured.unknown_rate) == (4, 7 / 4, 1 / 7)


def test_coverage_of_a_script_without_spaces_is_in_characters():
    made = trained(["漢字 仮名"], size=60)
    measured = coverage.measured(made, {"漢字仮名": 3})
    assert (measured.characters_per_token, measured.granularity) == (
        1.0,
        "1.00 characters per token",
    )
    assert coverage.measured(made, {"abc": 1}).granularity == "1.000 tokens per word"


def test_alphabet_grows_with_the_characters_that_the_text_needs():
    # 1,500 characters of equal frequency: none may be left out because of their number.
    many = "".join(chr(0x4E00 + number) for number in range(1500))
    assert trained([many], size=1600).vocab_size == 1505
    # A character beyond the first thousand that makes no difference is.
    entries = trained([many[:1000] * 100 + "\u9000"], size=1600).vocabulary
    assert len(entries) == 1005 and "\u9000" not in entries


def test_heldout_documents_are_not_trained_on_and_a_field_of_json_lines_is(tmp_path):
    # Every document has a character of its own: those held out are unknown.
    texts = [f"word{chr(0x400 + number)} " * 5 for number in range(80)]
    lines = [json.dumps({"body": text, "text": "other"}) for text in texts]
    (tmp_path / "text.jsonl").write_text("\n".join(lines), encoding="utf-8")
    changes = {"size": 400, "text_field": "body"}
    made, measured, _ = train_vocabulary.train_vocabulary(
        options(str(tmp_path / "text.jsonl"), tmp_path / "out", **changes)
    )
    known = sum(chr(0x400 + number) in made.vocabulary for number in range(80))
    assert 40 < known < 80 and "other" not in made.vocabulary
    assert measured.unknown_rate == 1.0


# Words with marks, joiners or letters that the uncased rule of the released BERT loses, and what it
# makes of the first.
SCRIPTS = {
    "Japanese": ("グラフ を かき が パン できる", "グラフ -> クラフ"),
    "Hindi": ("हिन्दी में भाषा क्\u200dष", "हिन्दी -> हिनदी"),
    "Thai": ("ก่อน ที่ น้ำ", "ก่อน -> กอน"),
    "Vietnamese": ("Hà Nội là thủ đô của", "Hà -> ha"),
    "Korean": ("한국어 말뭉치", "한국어 -> 한국어"),
    "Turkish": ("ışık IŞIK İstanbul çok güzel", "ışık -> ısık"),
    "Persian": ("می\u200cخواهم کتاب‌ها", "می\u200cخواهم -> میخواهم"),
    "Russian": ("ёлка йод моё", "ёлка -> елка"),
}


def test_nothing_is_lost_by_default_in_any_script_and_by_any_kind():
    text = "\n".join(words for words, _ in SCRIPTS.values())
    for kind in {*train_vocabulary.TRAINERS} - {"letters"}:  # which are for sequences alone
        made = trained([text] * 20, kind=kind, size=600)
        for words, _ in SCRIPTS.values():
            assert made.decode(made.encode(words)).split() == words.split(), kind
            decomposed = unicodedata.normalize("NFD", words)
            assert made.encode(decomposed) == made.encode(words), kind
            # No entry spells what the other form of a word would have needed.
        forms = trained([text, unicodedata.normalize("NFD", text)] * 10, kind=kind, size=600)
        assert forms.vocabulary == made.vocabulary, kind


def test_byte_bpe_can_keep_the_marks_of_a_word_and_says_so(tmp_path, caplog, capsys):
    hindi = SCRIPTS["Hindi"][0]
    chosen = {"kind": "byte_bpe", "size": 400}
    whole, cut = trained([hindi] * 20, keep_marks=True, **chosen), trained([hindi] * 20, **chosen)
    assert len(whole.encode(f" {hindi}")) == len(hindi.split()) < len(cut.encode(f" {hindi}"))
    for text in (hindi, "it's 12 ❤\ufe0f\u200d🔥 ok\n\n fine", *test_normalization.drawn(50)):
        assert whole.decode(whole.encode(text)) == unicodedata.normalize("NFC", text)
    whole.save(tmp_path / "whole")
    assert tokenizer.load(tmp_path / "whole").describe() == whole.describe() != cut.describe()
    alone = tmp_path / "alone"
    alone.mkdir()
    (tmp_path / "whole" / "tokenizer.json").rename(alone / "tokenizer.json")
    assert tokenizer.load(alone).describe() == whole.describe()
    path = tmp_path / "hindi.txt"
    path.write_text(f"{hindi}\n\n" * 20, encoding="utf-8")
    for keeps in (False, True):
        caplog.clear()
        output = tmp_path / str(keeps)
        train_vocabulary.main(options(str(path), output, keep_marks=keeps, **chosen))
        assert ("--keep_marks keeps words whole" in caplog.text) != keeps
        assert re.search(
            r"\n  Devanagari +100.00% of the characters, \d.\d\d per token, 0.000% \[UNK\], \d+ e",
            capsys.readouterr().out,
        )
    path.write_text("ไม่มีช่องว่าง\n\n" * 20, encoding="utf-8")
    train_vocabulary.main(options(str(path), tmp_path / "thai"))
    assert "--kind=sentencepiece finds words" in caplog.text


def test_marks_that_a_released_rule_loses_are_counted_and_reported(tmp_path, caplog):
    for name, (words, change) in SCRIPTS.items():
        lost = losses.LostMarks.of(tokenizer.WordPieceTokenizer(BERT))
        lost.add(words, 40)
        if name == "Korean":  # decomposed, which loses nothing
            assert not lost.changed
        else:
            assert lost.changes[change] == 40 and 0 < lost.changed <= lost.words, name
    path, rule = tmp_path / "text.txt", {"normalization": "bert_uncased"}
    path.write_text(f"{SCRIPTS['Russian'][0]}\n\n" * 40, encoding="utf-8")
    train_vocabulary.main(options(str(path), tmp_path / "released", **rule))
    assert re.search(
        r"\d+% of the words lose marks, as .*ёлка -> елка.*--normalization=nfc", caplog.text
    )
    _, _, lost = train_vocabulary.train_vocabulary(options(str(path), tmp_path / "whole"))
    assert not lost.changed


def test_reading_and_training_show_that_they_go_on(text_file, tmp_path, monkeypatch, caplog):
    trained = threading.Event()
    real, at = train_vocabulary.TRAINERS["wordpiece"], progress.Progress.at

    def shown(self, count, **figures):
        at(self, count, **figures)
        if self._label.startswith("training"):
            trained.set()

    def train(counts, options):
        assert trained.wait(60)  # until the seconds are shown
        return real.train(counts, options)

    monkeypatch.setattr(train_vocabulary, "SECONDS_SHOWN", 0.01)
    monkeypatch.setattr(progress.Progress, "at", shown)
    changed = dataclasses.replace(real, train=train)
    monkeypatch.setitem(train_vocabulary.TRAINERS, "wordpiece", changed)
    with caplog.at_level("INFO", logger="absl"):
        train_vocabulary.train_vocabulary(options(text_file, tmp_path / "v"))
    assert "reading " in caplog.text
    assert "training a vocabulary of the kind wordpiece" in caplog.text


def test_text_of_a_pipe_in_another_encoding_is_read_whole(tmp_path):
    fifo, text = tmp_path / "pipe", "Все люди рождаются свободными и равными.\n\n" * 20
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(text.encode("cp1251"),))
    writer.start()
    chosen = options(str(fifo), tmp_path / "v", encoding="cp1251")
    trained, _, _ = train_vocabulary.train_vocabulary(chosen)
    writer.join()
    assert trained.decode(trained.encode("люди равными")) == "люди равными"


def test_the_letter_i_is_lower_cased_by_language():
    made = trained(["ışık IŞIK İZMİR izmir"] * 20, normalization="bert_uncased", language="tr")
    assert made.encode("IŞIK") == made.encode("ışık") != made.encode("isik")
    assert made.encode("İZMİR") == made.encode("I\u0307ZMI\u0307R") == made.encode("izmir")
    _, starts, ends = made.encode_with_offsets("IŞIK I\u0307ZMI\u0307R")
    assert (starts[0], ends[-1]) == (0, 12)
    other = trained(["ışık IŞIK"] * 20, normalization="bert_uncased")
    assert other.encode("IŞIK") == other.encode("isik")


def test_a_vocabulary_that_another_process_saved_meanwhile_is_kept(
    text_file, tmp_path, monkeypatch
):
    kind = train_vocabulary.TRAINERS["wordpiece"]
    (chosen, other), saved = (options(text_file, tmp_path / "v", size=n) for n in (150, 140)), []

    def train(counts, given):
        if given.size == chosen.size:
            train_vocabulary.train_vocabulary(other)
            saved.append(decoded.files(tmp_path / "v"))
        return kind.train(counts, given)

    changed = dataclasses.replace(kind, train=train)
    monkeypatch.setitem(train_vocabulary.TRAINERS, "wordpiece", changed)
    with pytest.raises(FileExistsError, match="exists; give another --output"):
        train_vocabulary.train_vocabulary(chosen)
    assert saved == [decoded.files(tmp_path / "v")]
