"""Tokenizers of others: read as transformers reads them, kept, and written again as they were."""

import functools
import json
import pickle

import pytest
import tokenizers

from bertjax.convert import families, formats, huggingface_tokenizer
from bertjax.convert import workdir as convert_workdir
from bertjax.tokenization import tokenizer
from bertjax.workdirs import reader
from tests import lazily, small_tokenizers
from tests.convert import weights
from tests.interop import exports

transformers = lazily.imported("transformers")


def assert_same(ours, theirs):
    for text in small_tokenizers.texts():
        wanted = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text) == wanted, ascii(text)
        ids, starts, ends = ours.encode_with_offsets(text)
        assert ids.tolist() == wanted
        assert all(0 <= a <= b <= len(text) for a, b in zip(starts, ends, strict=True))
    mask, a, b = theirs.mask_token, ours.encode("the runner"), ours.encode("ran")
    for text in (f"the {mask} runner", f"the{mask}", f"{mask} ran {mask}."):
        wanted = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode_with_masks(text) == wanted
        assert ours.encode_with_masks(text.replace(mask, "[MASK]")) == wanted
        assert ours.mask_id not in ours.encode(text)
    cls, sep = ours.cls_id, ours.sep_id
    assert theirs("the runner")["input_ids"] == [cls, *a, sep]
    between = [sep] * ours.pair_separators
    assert theirs("the runner", "ran")["input_ids"] == [cls, *a, *between, *b, sep]
    assert (theirs.pad_token_id, theirs.mask_token_id) == (ours.pad_id, ours.mask_id)


@pytest.mark.parametrize("shape", small_tokenizers.SHAPES)
def test_ids_are_those_of_transformers_and_the_files_go_out_as_they_came(tmp_path, shape):
    model_type = small_tokenizers.write(tmp_path / "came", shape)
    family = families.named(model_type)
    ours = huggingface_tokenizer.read_tokenizer(tmp_path / "came", family.tokenizer)
    assert ours.kind == "tokenizers"
    assert_same(ours, transformers.AutoTokenizer.from_pretrained(tmp_path / "came"))
    again = pickle.loads(pickle.dumps(ours))
    assert again.describe() == ours.describe() and again.encode("the 12") == ours.encode("the 12")

    config, _ = exports.small(family, max_position_embeddings=16)
    made = weights.make("masked_lm", config=config, vocabulary=ours)
    convert_workdir.write(made, tmp_path / "workdir")
    kept = reader.read(tmp_path / "workdir").vocabulary
    assert kept.describe() == ours.describe()
    formats.write(formats.read(tmp_path / "workdir"), tmp_path / "went", format="huggingface")
    came, went = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("came", "went"))
    assert came == went
    assert_same(ours, transformers.AutoTokenizer.from_pretrained(tmp_path / "went"))
    assert formats.read(tmp_path / "went").vocabulary.describe() == ours.describe()


def test_a_beginning_alone_gets_an_end_with_a_warning_and_an_export_says_so(
    tmp_path, caplog, monkeypatch
):
    caplog.set_level("INFO", logger="absl")
    made = functools.partial(small_tokenizers.llama, has_end=False)
    monkeypatch.setitem(small_tokenizers.SHAPES, "bos alone", made)
    small_tokenizers.write(tmp_path / "came", "bos alone")
    ours = tokenizer.load(tmp_path / "came")
    assert "'<|end_of_text|>' ends it" in caplog.text
    written = weights.make("masked_lm", config=weights.CONFIG, vocabulary=ours)
    formats.write(written, tmp_path / "went", format="huggingface")
    came, went = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / it) for it in ("came", "went")
    )
    inside = ours.encode("the runner")
    assert came("the runner")["input_ids"] == [ours.cls_id, *inside]
    assert went("the runner")["input_ids"] == [ours.cls_id, *inside, ours.sep_id]
    places = [
        it("the runner", return_offsets_mapping=True)["offset_mapping"] for it in (came, went)
    ]
    assert places[1] == [*places[0], (0, 0)]
    assert went("a", "b")["input_ids"][-3:] == [ours.sep_id, *ours.encode("b"), ours.sep_id]
    assert tokenizer.load(tmp_path / "went").describe() == ours.describe()


@pytest.mark.parametrize(
    ("shape", "config"),
    [
        ("WhitespaceSplit", {"tokenizer_class": "BertTokenizer", "do_lower_case": True}),
        ("BertTokenizer", {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": False}),
        ("BERT", {"tokenizer_class": "BertTokenizerFast"}),
        ("BERT", {"tokenizer_class": "BertTokenizer", "tokenize_chinese_chars": False}),
        ("BERT", {"tokenizer_class": "BertTokenizer", "strip_accents": True}),
        ("BERT", {"added_tokens_decoder": {"326": {"content": "[E1]", "special": True}}}),
        ("BERT", {"extra_special_tokens": ["<url>"]}),
        ("ModernBERT-Ja", {"add_bos_token": False, "add_eos_token": False}),
        ("ModernBERT-Ja", {"add_bos_token": True, "add_eos_token": False}),
        ("ModernBERT", {"tokenizer_class": "BertTokenizer", "do_lower_case": True}),
    ],
    ids=str,
)
def test_the_class_and_flags_of_the_config_count_as_in_transformers(tmp_path, shape, config):
    small_tokenizers.write(tmp_path, shape)
    path = tmp_path / "tokenizer_config.json"
    given = {**json.loads(path.read_text()), **config}
    path.write_text(json.dumps(given))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = tokenizer.load(tmp_path)
    assert_same(ours, theirs)
    for text in ("[E1] the <url>", "東京 CAFÉ Café"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]


def test_without_a_class_the_file_counts_and_the_log_says_so(tmp_path, caplog):
    small_tokenizers.write(tmp_path, "WhitespaceSplit")
    (tmp_path / "tokenizer_config.json").unlink()
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ours = tokenizer.load(tmp_path)
    for text in small_tokenizers.texts():
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, ascii(text)
    assert "is read as it stands, with pre_tokenizer {'type': 'WhitespaceSplit'}" in caplog.text


def herbert(directory):
    """Writes HerBERT's files: vocab.json and merges.txt, whose entries show where words end."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=250,
        special_tokens=small_tokenizers.ROBERTA,
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    made.train_from_iterator(small_tokenizers.LINES * 3, trainer)
    made.model.save(str(directory))
    return {"model_type": "bert"}, {"tokenizer_class": "HerbertTokenizer"}


def mpnet(directory):
    """Writes the vocab.txt of an MPNet, without a file that names its special tokens."""
    ids = small_tokenizers.SHAPES["MPNet"]()[0].get_vocab()
    (directory / "vocab.txt").write_text("\n".join(sorted(ids, key=ids.__getitem__)))
    return {"model_type": "mpnet"}, {"do_lower_case": False}


def two_sets_of_names(directory):
    """Writes a vocab.txt with the special tokens of RoBERTa, which counts, and of BERT."""
    names = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    made = small_tokenizers.wordpiece(names=[*names, *small_tokenizers.BERT])
    ids = made.get_vocab()
    (directory / "vocab.txt").write_text("\n".join(sorted(ids, key=ids.__getitem__)))
    roles = zip(("pad", "unk", "cls", "sep", "mask"), names, strict=True)
    return {"model_type": "bert"}, {"do_lower_case": False, **{f"{r}_token": n for r, n in roles}}


@pytest.mark.parametrize("files", [herbert, mpnet, two_sets_of_names])
def test_vocabularies_of_other_rules_are_read_as_transformers_reads_them(tmp_path, files):
    model, config = files(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(model))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = tokenizer.load(tmp_path)
    assert_same(ours, transformers.AutoTokenizer.from_pretrained(tmp_path))
    config, _ = exports.small(families.named("bert"), max_position_embeddings=16)
    made = weights.make("masked_lm", config=config, vocabulary=ours)
    formats.write(made, tmp_path / "went", format="huggingface")
    assert_same(ours, transformers.AutoTokenizer.from_pretrained(tmp_path / "went"))
    assert formats.read(tmp_path / "went").vocabulary.describe() == ours.describe()


@pytest.mark.parametrize(
    ("words", "subwords", "lowercase"),
    [
        *(("basic", "wordpiece", True), ("basic", "character", False)),
        *(("mecab", "wordpiece", False), ("mecab", "character", True)),
    ],
)
def test_japanese_is_cut_as_in_transformers(tmp_path, words, subwords, lowercase):
    if words == "mecab":
        pytest.importorskip("fugashi")
        pytest.importorskip("unidic_lite")
    letters = dict.fromkeys("".join(small_tokenizers.PIECES + list(small_tokenizers.LINES)).lower())
    pieces = ["東京", "大学", "##大学", "研究", "する", "クラフト", "the", *letters]
    entries = [*small_tokenizers.BERT, *pieces, *(f"##{it}" for it in letters if not it.isspace())]
    entries = [entry for entry in dict.fromkeys(entries) if entry.strip()]
    (tmp_path / "vocab.txt").write_text("\n".join(entries))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    config = {"tokenizer_class": "BertJapaneseTokenizer", "do_lower_case": lowercase}
    config |= {"word_tokenizer_type": words, "subword_tokenizer_type": subwords}
    config |= {"mecab_kwargs": {"mecab_dic": "unidic_lite"}} if words == "mecab" else {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = tokenizer.load(tmp_path)
    texts = ("w1 w2 東京大学で", "東京大学で研究する。The クラフトを作る", "ﾊﾝｶｸ　全角 ABC１２", "")
    texts += small_tokenizers.LINES
    config, _ = exports.small(families.named("bert"), max_position_embeddings=16)
    made = weights.make("masked_lm", config=config, vocabulary=ours)
    formats.write(made, tmp_path / "went", format="huggingface")
    for directory in (tmp_path, tmp_path / "went"):
        theirs = transformers.AutoTokenizer.from_pretrained(directory)
        for text in texts:
            wanted = theirs.convert_tokens_to_ids(theirs.tokenize(text))
            assert ours.encode(text) == wanted, text
    again = formats.read(tmp_path / "went").vocabulary
    assert again.describe() == pickle.loads(pickle.dumps(ours)).describe() == ours.describe()
    ids, starts, ends = again.encode_with_offsets("東京大学で")
    assert ids.tolist() == ours.encode("東京大学で") and starts[0] == 0 and ends[-1] == 5


def test_what_has_no_reader_is_refused_by_name_and_a_missing_special_token_is_an_error(tmp_path):
    small_tokenizers.write(tmp_path, "BERT")
    path = tmp_path / "tokenizer_config.json"
    for config, message in (
        (
            {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "sudachi"},
            "(?s)BertJapaneseTokenizer .*word_tokenizer_type is 'sudachi'; known are basic, mecab",
        ),
        (
            {"mask_token": "<mask>", "pad_token": "<p>"},
            "pad_token '<p>' is not .*mask_token '<mask>",
        ),
        ({"added_tokens_decoder": {"9": {"content": "[E1]"}}}, r"'\[E1\]' has the id 9"),
    ):
        path.write_text(json.dumps(config))
        with pytest.raises(ValueError, match=message):
            tokenizer.load(tmp_path)
