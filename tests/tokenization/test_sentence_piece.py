import io
import json
import pickle
import random
import re

import numpy as np
import pytest
import sentencepiece

from bertjax.tokenization import added_tokens, sentence_piece, tokenizer

BERT = {"pad_piece": "[PAD]", "unk_piece": "[UNK]", "control_symbols": ["[CLS]", "[SEP]", "[MASK]"]}
# As DeBERTa's: without [MASK], and with the bytes of what has no piece.
DEBERTA = {
    **{"bos_id": 1, "eos_id": 2, "unk_id": 3, "vocab_size": 350, "byte_fallback": True},
    **{"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
}
ROBERTA = {"control_symbols": ["<s>", "</s>", "<mask>"]}
LINES = [
    "the unwanted runner was running, and the other runner ran home.",
    "she said: Élan vital! 博推 twice; they want running water",
    "Under The Tree",
] * 20


def model(lines=LINES, **options) -> bytes:
    written = io.BytesIO()
    fixed = {"vocab_size": 90, "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=written,
        minloglevel=2,
        num_threads=1,
        hard_vocab_limit=False,
        **(fixed | options),
    )
    return written.getvalue()


@pytest.fixture(scope="module")
def bert_model() -> bytes:
    return model(**BERT)


@pytest.fixture(scope="module")
def cased(bert_model) -> tokenizer.Tokenizer:
    return sentence_piece.SentencePieceTokenizer(bert_model)


def test_texts_become_the_ids_of_the_model(bert_model, cased):
    plain = sentencepiece.SentencePieceProcessor(model_proto=bert_model)
    texts = ["the Runner was\nunwanted", "", "  ", "博推!", "\u2581the \x00 \ufffd"]
    expected = [plain.encode(text) for text in texts]
    assert [cased.encode(text) for text in texts] == expected
    assert cased.encode_batch(texts) == expected
    ids, lengths = cased.encode_flat(texts)
    assert ids.dtype == lengths.dtype == np.int32
    assert ids.tolist() == [token_id for text in expected for token_id in text]
    assert lengths.tolist() == [len(text) for text in expected]
    assert cased.encode_flat([])[0].shape == (0,)


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_offsets_stand_beside_the_same_ids_and_cover_the_text(kind):
    trained, rng = model(**BERT, model_type=kind), random.Random(kind)
    pool = [*" \n\u3000theruninglÉéA博推ﬁ½İΣ\u0301\u0323각①!,`'", "the ", "runner", "``", "''"]
    for lowercase, strip_accents, composes in (
        *((False, None, False), (True, None, False), (False, True, False), (True, False, False)),
        *((False, None, True), (True, None, True)),
    ):
        rules = {"lowercase": lowercase, "strip_accents": strip_accents, "composes": composes}
        known = sentence_piece.SentencePieceTokenizer(trained, **rules)
        for _ in range(100):
            text = "a" + "".join(rng.choices(pool, k=rng.randrange(20)))
            ids, starts, ends = known.encode_with_offsets(text)
            assert ids.dtype == starts.dtype == ends.dtype == np.int32
            assert ids.tolist() == known.encode(text)
            assert (starts <= ends).all() and (np.diff(starts) >= 0).all()
            assert ends.max() <= len(text)
            held = {place for span in zip(starts, ends, strict=True) for place in range(*span)}
            # All but white space and what normalization drops, which is nothing of this pool.
            dropped = " \n\u3000\u0301\u0323"
            assert {place for place, c in enumerate(text) if c not in dropped} <= held


def test_tokens_hold_their_original_characters(bert_model):
    for text, casing, expected in (
        ("  the   Runner", {}, ["the", "", "R", "un", "n", "er"]),
        ("Élan", {"lowercase": True}, ["", "É", "l", "an"]),
        ("e\u0301lan", {"lowercase": True}, ["", "e\u0301", "l", "an"]),
        ("e\u0301lan ", {}, ["", "e\u0301", "l", "an"]),
        ("unﬁ", {}, ["", "un", "ﬁ", "ﬁ"]),  # the library has the first of these pieces empty
        ("博the", {}, ["", "博", "the"]),
        ("   ", {}, []),
    ):
        known = sentence_piece.SentencePieceTokenizer(bert_model, **casing)
        _, starts, ends = known.encode_with_offsets(text)
        held = [text[start:end] for start, end in zip(starts, ends, strict=True)]
        assert held == expected, text


def test_forms_of_a_letter_with_two_marks_are_one_text_where_the_model_gets_it_composed(tmp_path):
    trained = model([*LINES, "m\xe1\u0331 e\u0323\u0302"], **BERT)
    known = sentence_piece.SentencePieceTokenizer(trained, composes=True)
    released = sentence_piece.SentencePieceTokenizer(trained)
    for first, second in (("a\u0331\u0301", "\xe1\u0331"), ("e\u0302\u0323", "\u1ec7")):
        assert known.encode(f"m{first}") == known.encode(f"m{second}")
        assert released.kept(first) != released.kept(second)
    known.save(tmp_path)
    assert tokenizer.load(tmp_path).describe() == known.describe()
    assert pickle.loads(pickle.dumps(known)).describe() == known.describe()
    assert known.describe()["composes"] is True


def test_half_a_surrogate_pair_is_an_unknown_character(bert_model):
    for rules in ({}, {"lowercase": True}, {"normalization": "nfc"}):
        known = sentence_piece.SentencePieceTokenizer(bert_model, **rules)
        for text in ("the \ud83d runner", "r\udce9un", "\ud83d"):
            ids, starts, ends = known.encode_with_offsets(text)
            assert ids.tolist() == known.encode(text)
            assert known.encode(text) == known.encode(re.sub("[\ud800-\udfff]", "\ufffd", text))
            assert (starts <= ends).all() and ends.max(initial=0) <= len(text)


def test_special_tokens_are_found_by_either_name(cased):
    other = sentence_piece.SentencePieceTokenizer(model(**ROBERTA))
    for known, names in (
        (cased, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]),
        (other, ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]),
    ):
        assert [known.token(token_id) for token_id in known.special_ids] == names
        own = (known.pad_id, known.unk_id, known.cls_id, known.sep_id, known.mask_id)
        assert own == known.special_ids


def test_a_model_unfit_for_masking_is_refused(tmp_path):
    for options, message in (
        (BERT | {"control_symbols": ["[CLS]", "[MASK]"]}, r"lacks \[SEP\] or </s>"),
        (ROBERTA | {"control_symbols": ["<s>", "</s>"]}, r"lacks .*\[MASK\] or <mask>"),
        (
            BERT
            | {
                "control_symbols": ["[CLS]", "[SEP]"],
                "user_defined_symbols": ["[MASK]"],
            },
            r"'\[MASK\]', its mask token, is not a control symbol",
        ),
    ):
        (tmp_path / "some.model").write_bytes(model(**options))
        with pytest.raises(ValueError, match=f"some.model.*{message}"):
            tokenizer.load(tmp_path / "some.model")


@pytest.mark.parametrize("lines", [LINES, LINES[:1] * 20])
def test_a_model_without_a_mask_gets_it_behind_its_pieces(tmp_path, lines):
    content = model(lines, **DEBERTA)
    plain = sentencepiece.SentencePieceProcessor(model_proto=content)
    known = sentence_piece.SentencePieceTokenizer(content)
    size = len(plain)
    assert known.special_ids == (0, 3, 1, 2, size) and known.token(size) == "[MASK]"
    for text in (
        "the Runner\n\u1ea6 \ufb01 \u2460",
        "[MASK] <0x41>",
        "a\xa0b \U0001f469\u200d\u3000",
    ):
        assert known.encode(text) == plain.encode(text)
        ids, starts, ends = known.encode_with_offsets(text)
        assert ids.tolist() == plain.encode(text) and (starts <= ends).all()
    ids, starts, ends = known.encode_with_offsets("the \u1ea6")
    of_bytes = [known.token(int(it)).startswith("<0x") for it in ids]
    assert sum(of_bytes) == 3 and {(4, 5)} == {*zip(starts[of_bytes], ends[of_bytes], strict=True)}
    assert known.continues_word[ids[of_bytes]].all()
    known.save(tmp_path)
    assert (tmp_path / "spm.model").read_bytes() == content
    assert not (tmp_path / "spiece.model").exists()
    for again in (tokenizer.load(tmp_path), pickle.loads(pickle.dumps(known))):
        assert again.describe() == known.describe() and again.special_ids == known.special_ids
    (tmp_path / "spiece.model").write_bytes(content)
    with pytest.raises(ValueError, match="holds both spiece.model and spm.model"):
        tokenizer.load(tmp_path)


def test_what_follows_a_mask_without_a_space_has_no_mark_of_a_word():
    for known in map(sentence_piece.SentencePieceTokenizer, (model(**DEBERTA), model(**BERT))):
        mask, full_stop = known.mask_id, known.encode("ran.")[-1]
        assert known.token(full_stop) == "." != known.token(known.encode(".")[0])
        assert known.encode_with_masks("ran [MASK].") == [*known.encode("ran"), mask, full_stop]
        for space in (" ", "\n", "\u3000", "\xa0", "  "):
            wanted = [mask, *known.encode("ran"), mask]
            assert known.encode_with_masks(f"[MASK]{space}ran{space}[MASK]") == wanted
        more = added_tokens.attach(known, [added_tokens.AddedToken("[E1]", known.vocab_size)])
        wanted = [mask, full_stop, more.vocab_size - 1, mask, full_stop]
        assert more.encode_with_masks("[MASK].[E1][MASK].") == wanted


def test_case_of_a_deberta_is_folded_without_its_accents(tmp_path):
    (tmp_path / "spm.model").write_bytes(model(**DEBERTA))
    path = tmp_path / "tokenizer_config.json"
    (tmp_path / "config.json").write_text('{"model_type": "deberta-v2"}')
    for config, normalized in ({}, "\xc9lan"), ({"do_lower_case": True}, "\xe9lan"):
        path.write_text(json.dumps(config))
        assert tokenizer.load(tmp_path).normalized("\xc9lan") == normalized
    path.write_text(json.dumps({"split_by_punct": True}))
    with pytest.raises(ValueError, match="tokenizer_config.json has split_by_punct true"):
        tokenizer.load(tmp_path)


def test_case_and_accents_are_folded_before_the_model(bert_model, cased):
    for lowercase, strip_accents, expected in (
        (False, None, "Élan ﬁ ``so''"),
        (True, None, 'elan fi "so"'),  # ALBERT's quotes
        (True, False, 'élan ﬁ "so"'),
        (False, True, 'Elan fi "so"'),
    ):
        casing = {"lowercase": lowercase, "strip_accents": strip_accents}
        known = sentence_piece.SentencePieceTokenizer(bert_model, **casing)
        text = "Élan ﬁ ``so''"
        assert known.encode(text) == cased.encode(expected)
        assert sentence_piece.fold(text, known.lowercase, known.strip_accents) == expected


def test_pieces_without_the_mark_of_a_word_continue_it_unless_bert_sets_them_apart(cased):
    for entry, continues in zip(cased.vocabulary, cased.continues_word, strict=True):
        if entry.startswith((sentence_piece.WORD_START, "[")) or entry in ",.:;!博推":
            assert not continues, entry
        elif entry.isalpha():
            assert continues, entry
    assert 10 < cased.continues_word.sum() < 80


def test_decoding_names_special_tokens_and_joins_pieces(cased):
    ids = [cased.cls_id, *cased.encode_with_masks("the runner [MASK] unwanted"), cased.sep_id]
    assert cased.decode(ids) == "[CLS] the runner [MASK] unwanted [SEP]"
    assert cased.decode([]) == ""


def test_the_accents_that_an_albert_config_keeps_are_kept(tmp_path, bert_model):
    sentence_piece.SentencePieceTokenizer(bert_model).save(tmp_path)
    config = {"do_lower_case": True, "keep_accents": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    described = tokenizer.load(tmp_path).describe()
    assert (described["lowercase"], described["strip_accents"]) == (True, False)


def test_the_hash_tells_models_and_casing_apart(bert_model):
    variants = [
        sentence_piece.SentencePieceTokenizer(bert_model),
        sentence_piece.SentencePieceTokenizer(bert_model, lowercase=True),
        sentence_piece.SentencePieceTokenizer(bert_model, strip_accents=True),
        sentence_piece.SentencePieceTokenizer(bert_model, composes=True),
        sentence_piece.SentencePieceTokenizer(model(**BERT, model_type="bpe")),
    ]
    assert len({known.describe()["sha256"] for known in variants}) == len(variants)


def test_text_never_becomes_a_special_token_other_than_unknown(cased):
    ids = cased.encode("[MASK] [CLS] [SEP] [PAD]")
    assert not set(ids) & {cased.pad_id, cased.cls_id, cased.sep_id, cased.mask_id}
    assert cased.encode_with_masks("the [MASK] ran[MASK]") == [
        *cased.encode("the"),
        cased.mask_id,
        *cased.encode("ran"),
        cased.mask_id,
    ]
