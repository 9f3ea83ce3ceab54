import json
import pickle

import pytest
import tokenizers

from bertjax.convert import huggingface_tokenizer
from bertjax.convert.families import bert
from bertjax.tokenization import tokenizer
from tests import small_tokenizers
from tests.tokenization import test_sentence_piece

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdehlloABCDEHLLOäéÄ博!"


def characters(**options):
    entries = dict.fromkeys(LETTERS)
    return tokenizer.WordPieceTokenizer(
        [*SPECIALS, *entries, *(f"##{entry}" for entry in entries)], **options
    )


def test_given_casing_wins_over_the_directory_and_a_bare_file_is_lowercase(tmp_path):
    characters(lowercase=False).save(tmp_path)
    assert tokenizer.load(tmp_path).describe()["lowercase"] is False
    assert tokenizer.load(tmp_path, lowercase=True).describe() == characters().describe()
    assert tokenizer.load(tmp_path / "vocab.txt").describe() == characters().describe()


def test_only_newlines_end_an_entry(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_bytes("\r\n".join([*SPECIALS, "\u2028", "a", ""]).encode())
    known = tokenizer.load(path)
    assert known.vocab_size == len(SPECIALS) + 2
    assert known.token(known.encode("a")[0]) == "a"


def test_a_file_that_is_no_vocabulary_is_named_with_its_fault(tmp_path):
    path = tmp_path / "broken.txt"
    for content, message in (
        (b"\n", "empty"),
        (b"[PAD]\n[UNK]\n[CLS]\na\n", r"lacks \[SEP\], \[MASK\]"),
        (b"\xff\xfe[PAD]", "utf-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"broken.txt.*{message}"):
            tokenizer.load(path)
    for content in (b"", b"no model", b"\xff" * 100):
        (tmp_path / "broken.model").write_bytes(content)
        with pytest.raises(ValueError, match="broken.model.*not a sentencepiece model"):
            tokenizer.load(tmp_path / "broken.model")
    with pytest.raises(FileNotFoundError, match=r"vocab\.txt"):
        tokenizer.load(tmp_path)
    characters().save(tmp_path)
    (tmp_path / "spiece.model").write_bytes(b"")
    with pytest.raises(ValueError, match=r"both vocab.txt and spiece.model"):
        tokenizer.load(tmp_path)


def test_of_equal_entries_the_last_counts_and_an_empty_line_has_an_id(tmp_path, caplog):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIALS, "", "a", "b", "a", "", "c"]))
    known = tokenizer.load(path)
    assert known.vocab_size == 11 and known.encode("a b c") == [8, 7, 10]
    assert "2 empty lines and 1 entries more than once, such as 'a'" in caplog.text
    known.save(tmp_path / "saved")
    assert tokenizer.load(tmp_path / "saved").describe() == known.describe()
    huggingface_tokenizer.write_tokenizer(known, tmp_path, bert.TOKENIZER, max_length=8)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode("a b c", add_special_tokens=False).ids == [8, 7, 10]
    assert tokenizer.load(tmp_path).describe() == known.describe()


def test_every_entry_needs_a_row_of_the_embedding_table():
    vocabulary = tokenizer.WordPieceTokenizer([*SPECIALS, "a", "b"])
    for rows in (7, 9):
        tokenizer.check_table(vocabulary, rows, "DIR")
    tokenizer.check_table(None, 1, "DIR")
    with pytest.raises(ValueError, match="of DIR has 7 entries, .* has 5 rows: 'a' and what"):
        tokenizer.check_table(vocabulary, 5, "DIR")


def test_positions_behind_padding_need_its_id():
    vocabulary = tokenizer.WordPieceTokenizer([*SPECIALS, "a", "b"])
    for offset in (0, 1):
        tokenizer.check_padding(vocabulary, offset, "DIR")
    tokenizer.check_padding(None, 2, "DIR")
    with pytest.raises(ValueError, match="position_offset is 2, .* must be 1; .* of DIR it is 0"):
        tokenizer.check_padding(vocabulary, 2, "DIR")


def test_a_saved_or_pickled_tokenizer_is_the_same(tmp_path):
    model = test_sentence_piece.model(**test_sentence_piece.BERT)
    casings = [{}, {"lowercase": False}, {"lowercase": True}]
    casings += [{"strip_accents": False}, {"strip_accents": True}]
    for number, casing in enumerate(casings):
        for known in (characters(**casing), tokenizer.SentencePieceTokenizer(model, **casing)):
            directory = tmp_path / f"{number}" / known.kind
            known.save(directory)
            for copy in (tokenizer.load(directory), pickle.loads(pickle.dumps(known))):
                assert copy.describe() == known.describe()
                assert copy.encode("Hällo Élan The 博!") == known.encode("Hällo Élan The 博!")
            config = json.loads((directory / "tokenizer_config.json").read_text())
            assert config["do_lower_case"] == known.describe()["lowercase"]


@pytest.mark.parametrize("is_named", [True, False])
def test_the_model_of_the_pretraining_counts_beside_a_tokenizer_json(tmp_path, caplog, is_named):
    small_tokenizers.write(tmp_path, "DeBERTa")
    assert tokenizer.load(tmp_path).kind == "tokenizers"
    if not is_named:  # as the files of the released models
        (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    content = test_sentence_piece.model(**test_sentence_piece.DEBERTA)
    (tmp_path / "spm.model").write_bytes(content)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram", "vocab": []}}')
    caplog.clear()
    known = tokenizer.load(tmp_path)
    assert known.describe() == tokenizer.load(tmp_path / "spm.model").describe()
    assert "spm.model counts" in caplog.text and "tokenizer.json" in caplog.text


@pytest.mark.parametrize("file", ["vocab.txt", "tokenizer.json"])
def test_an_mpnet_has_berts_unknown_token_and_two_separators(tmp_path, file):
    made = small_tokenizers.SHAPES["MPNet"]()[0]
    ids = made.get_vocab()
    (tmp_path / "config.json").write_text('{"model_type": "mpnet"}')
    content = "\n".join(sorted(ids, key=ids.__getitem__)) if file == "vocab.txt" else made.to_str()
    (tmp_path / file).write_text(content)
    known = tokenizer.load(tmp_path)
    names = [known.token(token_id) for token_id in known.special_ids]
    assert names == ["<pad>", "[UNK]", "<s>", "</s>", "<mask>"] and known.pad_id == 1
    assert known.pair_separators == 2 and known.lowercase and known.strip_accents
    assert known.encode("\U0001f916") == [known.unk_id] and known.encode("RÚN") == known.encode(
        "run"
    )
    (tmp_path / "tokenizer_config.json").write_text(
        '{"do_lower_case": false, "unk_token": "<unk>"}'
    )
    cased = tokenizer.load(tmp_path)
    assert not cased.lowercase and cased.token(cased.unk_id) == "<unk>"
