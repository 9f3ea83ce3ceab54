"""Claims about a tokenizer's files: what is read of them, and that those written give our ids."""

import collections
import json
import random

import pytest
import sentencepiece
import tokenizers

from bertjax.convert import huggingface_tokenizer
from bertjax.convert.families import albert, bert
from bertjax.tokenization import normalization, sentence_piece, spelled_rules, tokenizer
from data_pipelines.vocabulary import vocabulary_entries
from tests import small_byte_bpe
from tests.tokenization import test_normalization, test_sentence_piece

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "C"]
LETTERS = [chr(code) for code in range(33, 0x500) if chr(code).split()]
NASTY = [
    "",
    " \t\n",
    "\u0391\u03a3 \u0391\u03a3. '\u0391\u03a3' \u0391.\u03a3.\u0391 \u03a3",  # final sigmas
    "\u0130stanbul \u1e9e \u0390 A\u030a\u0327",
    "a\u00ad\u200b\u2028b\u0085c\x1cd\x00e\ufffdf",
    "\u6f22\u5b57a\uf900\u0301b \U00020000",
    "x" * 200 + " " + "x" * 201 + " " + "xy\u0301" * 150,
    "$5+[a](b)^c`|~ \u00a7\u00bf\u2026\u3001",
    "ab[MASK]cd [MASK]",
]


def vocabulary(**casing):
    pieces = [f"##{letter}" for letter in LETTERS]
    entries = dict.fromkeys(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *pieces])
    return tokenizer.WordPieceTokenizer(list(entries), **casing)


def tokenizer_json(**normalizer):
    ids = {token: number for number, token in enumerate(VOCABULARY)}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(**normalizer)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(VOCABULARY[:5])
    return json.loads(made.to_str())


def test_vocabulary_and_casing_come_from_vocab_txt_or_tokenizer_json(tmp_path):
    for lowercase in (True, False):
        directory = tmp_path / str(lowercase)
        directory.mkdir()
        wanted = tokenizer.WordPieceTokenizer(VOCABULARY, lowercase=lowercase).describe()
        (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json(lowercase=lowercase)))
        read = huggingface_tokenizer.read_tokenizer(directory, bert.TOKENIZER)
        assert read is not None and read.kind == "tokenizers" and read.lowercase is lowercase
        assert read.encode("A aB C") == ([5, 5, 6, 1] if lowercase else [1, 1, 7])
        (directory / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
        config = json.dumps({"do_lower_case": lowercase})
        (directory / "tokenizer_config.json").write_text(config)
        read = huggingface_tokenizer.read_tokenizer(directory, bert.TOKENIZER)
        assert read.describe() == wanted
    for fields, message in (
        ({"normalizer": {"type": "Unheard"}}, "`tokenizers` does not read it"),
        ({"model": {"type": "Unigram", "vocab": {}}}, "`tokenizers` does not read it"),
        ({"model": tokenizer_json()["model"] | {"vocab": {"a": 1}}}, "unk_token .* not among"),
        ({"model": 3}, "it has no model"),
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json() | fields))
        with pytest.raises(ValueError, match=message):
            huggingface_tokenizer.read_tokenizer(tmp_path, bert.TOKENIZER)


@pytest.mark.parametrize(
    "rules",
    [
        *({"lowercase": a, "strip_accents": b} for a in (True, False) for b in (True, False)),
        {"lowercase": True, "strip_accents": True, "language": "tr"},
        *({"normalization": name} for name in ("none", "nfc", "nfkc")),
        {"normalization": "nfc", "cuts_long_words": True},
        {"lowercase": True, "strip_accents": True, "cuts_long_words": True},
    ],
    ids=str,
)
def test_tokenizer_json_gives_our_ids_and_has_the_rules(rules):
    ours = vocabulary(**rules)
    written = huggingface_tokenizer.fast_tokenizer(ours, bert.TOKENIZER).to_str()
    assert spelled_rules.wordpiece_rules(json.loads(written)) == rules
    assert spelled_rules.rules_of({"type": "BertNormalizer"}) is None
    theirs = tokenizers.Tokenizer.from_str(written)
    rng = random.Random(0)
    pools = [range(32, 127), range(0x500), range(0x2000, 0x3000), [0x3A3, 0x391, 0x27, 0x61, 0x41]]
    drawn = ["".join(chr(rng.choice(rng.choice(pools))) for _ in range(20)) for _ in range(100)]
    for text in [*NASTY, *drawn, *test_normalization.drawn(100)]:
        wanted = [ours.cls_id, *ours.encode_with_masks(text), ours.sep_id]
        assert theirs.encode(text).ids == wanted, ascii(text)
    pair = theirs.encode("a", "b")
    assert pair.tokens == ["[CLS]", "a", "[SEP]", "b", "[SEP]"]
    assert pair.type_ids == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("prefix", [False, True])
def test_a_byte_level_bpe_is_written_with_our_ids_and_the_templates_of_the_family(tmp_path, prefix):
    known = small_byte_bpe.vocabulary(add_prefix_space=prefix)
    huggingface_tokenizer.write_tokenizer(known, tmp_path, bert.TOKENIZER, max_length=64)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in [*NASTY, "the <mask> ran\n<mask>"]:
        text = text.replace("[MASK]", "<mask>")
        ids = theirs.encode(text, add_special_tokens=False).ids
        assert ids == known.encode_with_masks(text)
    pair = theirs.encode("the runner", "ran")
    a, b = known.encode("the runner"), known.encode("ran")
    assert pair.ids == [0, *a, 2, 2, *b, 2]
    # BERT's second segment, of RoBERTa's vocabulary.
    assert pair.type_ids == [0] * (len(a) + 3) + [1] * (len(b) + 1)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 64 and config["mask_token"] == "<mask>"
    for name in ("vocab.json", "tokenizer.json"):
        read = huggingface_tokenizer.read_tokenizer(tmp_path, bert.TOKENIZER)
        assert read is not None and read.describe() == known.describe()
        (tmp_path / name).unlink()


@pytest.mark.parametrize(
    "casing",
    [
        *({"lowercase": True}, {"lowercase": True, "strip_accents": False}, {}),
        *({"composes": True}, {"lowercase": True, "composes": True}),
    ],
    ids=str,
)
def test_a_unigram_model_gives_the_same_ids_to_characters_of_all_kinds(casing):
    model = test_sentence_piece.model(**test_sentence_piece.BERT)
    ours = sentence_piece.SentencePieceTokenizer(model, **casing)
    theirs = huggingface_tokenizer.unigram_tokenizer(ours, albert.TOKENIZER)
    rng = random.Random(3)
    pool = [*"  \t\n\u3000\u00a0\u200bélanTheRunning,.!?：～①½ﬁ博推각ΑΣσİßǅ\x00\ufffd"]
    pool += ["the ", "runner", "`", "``", "'", "''"]
    if "composes" in casing:
        pool += ["a\u0331\u0301", "\u1fb3\u0301", "q\u0307\u0323", *"\u0323\u0301\ua7f2\u32ff"]
    assert sum(piece in ours.vocabulary for piece in "élan") > 2
    for _ in range(200):
        text = "".join(rng.choices(pool, k=rng.randrange(25)))
        assert theirs.encode(text, add_special_tokens=False).ids == ours.encode(text), ascii(text)
    texts = "The unwanted runner", "ran home"
    (a, b), cls, sep = map(ours.encode, texts), ours.cls_id, ours.sep_id
    pair = theirs.encode(*texts)
    assert pair.ids == [cls, *a, sep, *b, sep]
    assert pair.type_ids == [0] * (len(a) + 2) + [1] * (len(b) + 1)
    masked = theirs.encode("the [MASK] ran[MASK]", add_special_tokens=False)
    assert masked.ids == ours.encode_with_masks("the [MASK] ran[MASK]")
    assert theirs.decode(ours.encode("the runner")) == "the runner"


def test_the_library_takes_the_same_of_equal_segmentations_with_a_model_trained_here():
    rng = random.Random(1)
    letters = ["ab", "abc", "-.", "10", "0123456789", "aeiounst"]
    words = ["".join(rng.choices(rng.choice(letters), k=rng.randrange(1, 9))) for _ in range(3_000)]
    made = vocabulary_entries.sentencepiece_model(
        collections.Counter(words), 600, "unigram", normalization.RELEASED
    )
    ours = sentence_piece.SentencePieceTokenizer(made)
    assert {score * 256 % 1 for score in ours.scores()} == {0.0}
    theirs = huggingface_tokenizer.unigram_tokenizer(ours, albert.TOKENIZER)
    for _ in range(2_000):
        text = "".join(rng.choices(rng.choice([*letters, "a", "-"]), k=rng.randrange(1, 60)))
        assert theirs.encode(text, add_special_tokens=False).ids == ours.encode(text), text


def test_xlm_robertas_pieces_are_read_with_weights_of_bert(tmp_path):
    model = test_sentence_piece.model()
    (tmp_path / "sentencepiece.bpe.model").write_bytes(model)
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    ours = huggingface_tokenizer.read_tokenizer(tmp_path, bert.TOKENIZER)
    plain = sentencepiece.SentencePieceProcessor(model_proto=model)
    assert ours.special_ids == (1, 3, 0, 2, ours.vocab_size - 1)
    assert ours.encode("the runner ran") == [piece + 1 for piece in plain.encode("the runner ran")]
