"""The whole way from text to an exported model by one command, as a user types it."""

import json
import re
import subprocess
import sys

import pytest

from bertjax.start import sentences
from bertjax.tokenization import sentence_piece, tokenizer
from tests import small_records

JAPANESE = (
    "東京は日本の首都です。私は毎日電車で学校へ行きます。",
    "グラフは画面に表示されます。ファイルの名前を変更することができます。",
    "新しい値を設定する場合は入力してください。パスワードは必要ありません。",
)


def test_a_word_of_each_held_out_sentence_is_masked(tmp_path):
    words = [f"{first}{second}" for first in "abcdefghi" for second in "klmnopqrst"]
    directory = small_records.write(tmp_path / "records", words=words)
    vocabulary = tokenizer.load(directory)
    made = sentences.masked(directory, 3)
    assert len(made) == 3
    for text in made:
        words = text.split()
        assert words.count("[MASK]") == 1 and len(words) <= sentences.MOST_TOKENS
        ids = vocabulary.encode_with_masks(text)
        assert ids.count(vocabulary.mask_id) == 1 and vocabulary.unk_id not in ids


def test_a_sentence_with_a_mask_begins_with_a_whole_word(tmp_path):
    words = ["one", "two", "three", *(f"##{letter}" for letter in "abcdefg")]
    directory = small_records.write(tmp_path / "records", words=words)
    made = sentences.masked(directory, 5)
    assert len(made) == 5 and not [text for text in made if text.startswith("#")]


def started(*arguments):
    """The programs that `bertjax start` runs."""
    command = [sys.executable, "-m", "bertjax.start", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout
    return re.findall(r"^\$ python -m (\S+)", done.stdout, re.M)


@pytest.mark.slow
def test_japanese_text_becomes_a_model_and_a_second_call_repeats_nothing(tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(60):
        lines = [f"{number}番。{JAPANESE[(number + shift) % 3]}" for shift in range(8)]
        (corpus / f"{number}.txt").write_text("\n".join(lines), encoding="utf-8")
    output = tmp_path / "my bert"
    arguments = (
        f"--input={corpus}/*.txt",
        f"--output={output}",
        "--vocabulary_size=400",
        "--config.phases.phase1.num_steps=2",
    )
    assert started(*arguments) == [
        "data_pipelines.train_vocabulary", "data_pipelines.build", "data_pipelines.build",
        "bertjax.train", "bertjax.evaluate", "bertjax.fill_mask", "bertjax.convert",
    ]  # fmt: skip
    assert (
        output / "vocabulary" / sentence_piece.MODEL_FILE
    ).exists()  # of a script without spaces
    assert json.loads((output / "exported" / "config.json").read_text())["model_type"] == "bert"
    page = (output / "index.html").read_text("utf-8")
    assert "mlm_loss" in page and "mask 1:" in page and "train/report.html" in page
    assert "<b>unigram plateau</b>" in page  # of two steps
    assert (output / "run" / "curves.png").exists()
    assert started(*arguments) == ["bertjax.train", "bertjax.evaluate", "bertjax.fill_mask"]
