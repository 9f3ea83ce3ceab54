"""Tokenizers of our exports in transformers: the ids of every kind of vocabulary are ours."""

import dataclasses
import itertools

import pytest

from bertjax.convert import families, formats, huggingface_tokenizer
from bertjax.convert.families import bert
from bertjax.tokenization import sentence_piece
from tests import lazily, small_byte_bpe
from tests.convert import test_huggingface_tokenizer, weights
from tests.data_pipelines import test_train_vocabulary
from tests.interop import exports
from tests.tokenization import test_added_tokens as added
from tests.tokenization import test_normalization, test_sentence_piece

transformers = lazily.imported("transformers")

BYTES = [
    *("", " ", "The runner, ran\n\n to  the 博 tree!", "the <mask> ran<mask>."),
    "don't \ufffd",
]
PIECES = [*test_sentence_piece.LINES[:3], "  Élan  ﬁ ① [MASK]!", "the\nrunner ran 博推", ""]


# Texts of many scripts, and all that sentencepiece and transformers might cut or fold differently.
SCRIPTS = [
    *("the runner ran home", "L'été, c'était bien.", "你好，世界 こんにちは", "مرحبا بالعالم"),
    *("नमस्ते दुनिया", "สวัสดีชาวโลก", "한국어 각", "Йод ещё", "🙂 👍🏽 ﬁ ① Ａ"),
]
HARD = [
    *(*SCRIPTS, "", " ", "  the   runner ", "\tthe\nrunner\r\n", "the\u00a0runner\u3000ran"),
    *("the\u200brunner\u200e x\u200d", "\u2028the\u2029x", "\ufeffthe so\u00adft", "a\x00b\ufffd"),
    *("\u2581the \u2581 runner", " \u2581", "e\u0301t\xe9", "½ ² ℃ ﷺ ﾊﾟ", "ำ ㅎㅏㄴ", "İ ı ß"),
    *("👨\u200d👩\u200d👧🙂🙂", "\u2603\u2603 zzz \u2603", "the_runner... ran?!"),
    *("the <mask> ran<mask>.", "<mask>"),
]


def of_family(name, **options):
    """A vocabulary trained here with the special tokens of a family."""
    return test_train_vocabulary.trained(
        SCRIPTS * 20, kind="sentencepiece", special_tokens=name, size=160, **options
    )


NAMES = {"unk_id": 0, "pad_id": 1, **test_sentence_piece.ROBERTA}


def pieces(names=test_sentence_piece.BERT, **casing):
    model = test_sentence_piece.model(**names)
    return sentence_piece.SentencePieceTokenizer(model, **casing)


# Family, a vocabulary of its kind with options, texts, the separators between two texts.
CASES = [
    *(
        ("bert", test_huggingface_tokenizer.vocabulary, casing, test_huggingface_tokenizer.NASTY, 1)
        for casing in (
            *({}, {"lowercase": False}, {"strip_accents": False}, {"normalization": "nfc"}),
            {"lowercase": True, "language": "tr"},
        )
    ),
    *(
        (
            family,
            lambda number=number: test_normalization.tokenizers_of("nfc")[number],
            {},
            texts,
            n,
        )
        for family, number, texts, n in (("albert", 1, PIECES, 1), ("roberta", 2, BYTES, 2))
    ),
    *(("albert", pieces, casing, PIECES, 1) for casing in ({"lowercase": True}, {})),
    *(
        ("roberta", small_byte_bpe.vocabulary, {"add_prefix_space": prefix}, BYTES, 2)
        for prefix in (False, True)
    ),
    ("roberta", small_byte_bpe.vocabulary, {"keeps_marks": True}, [*BYTES, "हिन्दी क्\u200dष"], 2),
    *(
        (name, lambda name=name, **options: of_family(name, **options), options, HARD, 2)
        for name, options in (
            *(("xlm-roberta", {}), ("xlm-roberta", {"normalization": "bert_cased"})),
            ("camembert", {}),
        )
    ),
    ("roberta", lambda: pieces(NAMES), {}, HARD, 2),
    (
        *("deberta-v2", lambda: pieces(test_sentence_piece.DEBERTA), {}),
        *([*HARD, "<0x41>a <0x0A> [MASK]x, [MASK]\u200by [MASK]\n"], 1),
    ),
]


@pytest.mark.parametrize(("name", "vocabulary", "options", "texts", "separators"), CASES)
def test_auto_tokenizer_gives_our_ids(
    tmp_path, heard, name, vocabulary, options, texts, separators
):
    ours = vocabulary(**options)
    config, _ = exports.small(families.named(name), max_position_embeddings=16)
    made = weights.make("masked_lm", config=config, vocabulary=ours)
    formats.write(made, tmp_path / "hf", format="huggingface")
    files = {"albert": "spiece.model", "deberta-v2": "spm.model"}
    assert name not in files or (tmp_path / "hf" / files[name]).exists()
    heard.clear()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert heard.messages == []
    for text in texts:
        # transformers has the mark of a word's start behind a mask even without a space.
        parts = [*map(ours.encode, ours.split_at_masks(text))]
        ids = itertools.chain(parts[0], *([ours.mask_id, *part] for part in parts[1:]))
        assert theirs(text)["input_ids"] == [ours.cls_id, *ids, ours.sep_id], ascii(text)
    pair = theirs("the runner", "ran home")
    a, b = ours.encode("the runner"), ours.encode("ran home")
    assert pair["input_ids"] == [ours.cls_id, *a, *[ours.sep_id] * separators, *b, ours.sep_id]
    assert sum(pair.get("token_type_ids", [])) == (len(b) + 1 if separators == 1 else 0)
    roles = (theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id)
    assert (*roles, theirs.mask_token_id) == ours.special_ids
    assert theirs.model_max_length == 16
    if name != "bert":  # its vocabulary has letters only
        assert theirs.decode(a).strip() == "the runner"
    if name == "deberta-v2":
        assert theirs.decode(ours.encode("\u1ea6 ran")).strip() == "\u1ea6 ran"  # of bytes
    read = formats.read(tmp_path / "hf")
    assert read.vocabulary.describe() == ours.describe()
    assert read.family.model_type == name


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta"])
def test_the_second_text_has_its_segment_where_a_roberta_has_two(tmp_path, heard, name):
    config, ours = exports.small(families.named(name), max_position_embeddings=16)
    config = dataclasses.replace(config, type_vocab_size=2)
    made = weights.make("masked_lm", config=config, vocabulary=ours)
    formats.write(made, tmp_path, format="huggingface")
    heard.clear()
    pair = transformers.AutoTokenizer.from_pretrained(tmp_path)("w1 w2", "w3")
    assert heard.messages == []
    a, b = ours.encode("w1 w2"), ours.encode("w3")
    assert pair["input_ids"] == [ours.cls_id, *a, ours.sep_id, ours.sep_id, *b, ours.sep_id]
    assert pair["token_type_ids"] == [0] * (len(a) + 3) + [1] * (len(b) + 1)
    read = formats.read(tmp_path)
    assert read.config.type_vocab_size == 2 and read.vocabulary.encode("w1 w2") == a


def test_added_tokens_are_found_as_by_us_and_read_where_transformers_saves_them(tmp_path):
    ours = added.ours()
    formats.write(weights.make(vocabulary=ours), tmp_path / "hf", format="huggingface")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    theirs.save_pretrained(tmp_path / "theirs")
    # Version 5 saves tokenizer.json alone, without vocab.txt.
    assert not (tmp_path / "theirs" / "vocab.txt").exists()
    again = huggingface_tokenizer.read_tokenizer(tmp_path / "theirs", bert.TOKENIZER)
    for text in [*added.TEXTS, *added.drawn(100)]:
        found = theirs(text, add_special_tokens=False)["input_ids"]
        assert found == ours.encode(text) == again.encode(text), ascii(text)
