"""Small tokenizer.json files of the shapes that public models have, and hard texts."""

import functools
import json
import random

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bertjax.tokenization import library_tokenizer
from tests import small_byte_bpe

LINES = (
    *small_byte_bpe.LINES,
    "Zażółć gęślą jaźń, kot łąka. Eine Straße mit Übermut; ночь и день, привет.",
    "東京大学で研究する。クラフトを作る パン屋 हिन्दी भाषा में किताब ภาษาไทย",
    "a.b 12 34 ... don't stop [x] the quick brown fox ab cd ef",
)
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MPNET = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "<mask>"]
GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
LLAMA = ["<unk>", "<s>", "</s>", "<pad>", "<sep>", "<mask>", "<cls>"]
PIECES = (
    "the ~runner~12~a.b~don't~ ~  ~\t~\n~。~東京~パ~ハ\u309a~が~हि~न्~\u200d~\u200b~é~e\u0301~ΑΣ~σ"
    "~ß~İ~\u00ad~\u3000~\xa0~🙂~\U0001f469\u200d\U0001f4bb~[~]~``~''~Ł~ł</w>~\x00~\ufffd~ﬁ~①~##b"
    f"~|||IP|||~[unused1]~ด้~▁~Ġ~<0x0A>~\ufeff~{'x' * 101}~{'y' * 150}"
).split("~")


@functools.cache
def texts(count=300):
    """Returns drawn texts of scripts, spaces, marks, long words and names of tokens."""
    rng = random.Random(5)
    drawn = ["".join(rng.choices(PIECES, k=rng.randrange(1, 12))) for _ in range(count)]
    return ["", " ", *LINES, *drawn]


def _roles(names, order="pad unk cls sep mask"):
    return {f"{role}_token": name for role, name in zip(order.split(), names, strict=True)}


def _around(made, before, after, *, kind=1, between=1):
    ids = [(name, made.token_to_id(name)) for name in {before, after}]
    middle = " ".join([f"{after}:0"] * between)
    made.post_processor = processors.TemplateProcessing(
        single=f"{before}:0 $A:0 {after}:0",
        pair=f"{before}:0 $A:0 {middle} $B:{kind} {after}:{kind}",
        special_tokens=ids,
    )
    return made


def _modernbert():
    made = tokenizers.Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["|||IP|||", "<|padding|>"],
        show_progress=False,
    )
    made.train_from_iterator(LINES * 3, trainer)
    fields = json.loads(made.to_str())
    fields["added_tokens"] = []
    made = tokenizers.Tokenizer.from_str(json.dumps(fields))
    made.add_tokens([tokenizers.AddedToken("|||IP|||", normalized=True)])
    made.add_tokens([tokenizers.AddedToken(" " * n, normalized=True) for n in range(4, 1, -1)])
    special = ("[UNK]", "[CLS]", "[SEP]", "[PAD]")
    made.add_special_tokens([tokenizers.AddedToken(name, normalized=False) for name in special])
    made.add_special_tokens([tokenizers.AddedToken("[MASK]", lstrip=True, normalized=False)])
    made.add_tokens([f"[unused{n}]" for n in range(3)])
    _around(made, "[CLS]", "[SEP]", kind=0)
    return made, {**_roles(BERT), "tokenizer_class": "PreTrainedTokenizerFast"}, "modernbert"


def _gemma():
    made = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(steps)
    specials = [*GEMMA, *(f"<0x{n:02X}>" for n in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=430, special_tokens=specials, show_progress=False, limit_alphabet=60
    )
    made.train_from_iterator([line.replace(" ", "▁") for line in LINES * 3], trainer)
    fields = json.loads(made.to_str())
    fields["added_tokens"] = [t for t in fields["added_tokens"] if t["content"] in GEMMA]
    made = tokenizers.Tokenizer.from_str(json.dumps(fields))
    _around(made, "<bos>", "<eos>", kind=0)
    roles = _roles(["<pad>", "<unk>", "<bos>", "<eos>", "<mask>"])
    return made, {**roles, "tokenizer_class": "GemmaTokenizerFast"}, "modernbert"


def _unigram(specials, *, unk, size=260):
    made = tokenizers.Tokenizer(models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=specials, unk_token=unk, show_progress=False
    )
    made.train_from_iterator(LINES * 3, trainer)
    made.decoder = decoders.Metaspace()
    return made


def _japanese():
    made = _unigram(LLAMA, unk="<unk>")
    vocab = json.loads(made.to_str())["model"]["vocab"]
    pieces = [f"<0x{n:02X}>" for n in range(256)]
    entries = [*map(tuple, vocab), *((piece, -20.0) for piece in pieces)]
    model = models.Unigram(entries, unk_id=0, byte_fallback=True)
    fast = tokenizers.Tokenizer(model)
    fast.normalizer = normalizers.Replace(" ", "▁")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    fast.decoder = decoders.Sequence(steps)
    fast.add_special_tokens(LLAMA)
    _around(fast, "<s>", "</s>", kind=0)
    roles = _roles(["<pad>", "<unk>", "<cls>", "<sep>", "<mask>"])
    roles |= {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "LlamaTokenizer"}
    return fast, roles, "modernbert"


def _e5():
    made = _unigram(ROBERTA, unk="<unk>")
    fields = json.loads(made.to_str())
    fields["model"]["unk_id"] = 3
    made = tokenizers.Tokenizer.from_str(json.dumps(fields))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    made.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    _around(made, "<s>", "</s>", kind=0, between=2)
    roles = _roles(["<pad>", "<unk>", "<s>", "</s>", "<mask>"])
    return made, {**roles, "tokenizer_class": "XLMRobertaTokenizer"}, "bert"


def _deberta():
    """As DebertaV2Tokenizer of transformers 5 saves it."""
    made = _unigram(BERT, unk="[UNK]")
    fields = json.loads(made.to_str())
    fields["model"]["unk_id"] = 1
    made = tokenizers.Tokenizer.from_str(json.dumps(fields))
    gap = tokenizers.Regex(r"\s{2,}|[\n\r\t]")
    steps = [normalizers.Replace(gap, " "), normalizers.NFC(), normalizers.Strip(left=False)]
    made.normalizer = normalizers.Sequence(steps)
    made.pre_tokenizer = _cut(pre_tokenizers.Metaspace())
    _around(made, "[CLS]", "[SEP]")
    return made, {**_roles(BERT), "tokenizer_class": "DebertaV2Tokenizer"}, "deberta-v2"


def llama(*, has_end=True):
    """Llama 3's tokenizer with EuroBERT's names; padding is the end of a text."""
    specials = [f"<|{it}|>" for it in ("begin_of_text", "end_of_text", "mask")]
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    pattern = tokenizers.Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    made.pre_tokenizer = _cut(
        pre_tokenizers.Split(pattern, behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    )
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, show_progress=False, initial_alphabet=alphabet)
    made.train_from_iterator(LINES * 3, trainer)
    made.add_special_tokens([*specials[:2], tokenizers.AddedToken(specials[2], lstrip=True)])
    begin, end = specials[:2]
    single = f"{begin} $A {end}" if has_end else f"{begin} $A"
    template = processors.TemplateProcessing(
        single=single,
        pair=f"{single} $B {end}" if has_end else f"{single} {begin} $B",
        special_tokens=[(it, made.token_to_id(it)) for it in specials[:2]],
    )
    made.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    names = dict(zip(("bos_token", "eos_token", "mask_token"), specials, strict=True))
    roles = {**names, "pad_token": specials[1], "tokenizer_class": "PreTrainedTokenizerFast"}
    return made, roles, "eurobert"


def wordpiece(
    *, before=None, normalizer=None, names=BERT, limit=100, unknown="", around=(2, 3), between=1
):
    """Returns a WordPiece with BERT's parts, but for what is given."""
    made = tokenizers.Tokenizer(models.WordPiece(unk_token=unknown or names[1]))
    made.normalizer = normalizer or normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = before or pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=330, special_tokens=list(names), show_progress=False
    )
    made.train_from_iterator([*LINES, "a.b 12 3 x y ab", "x##b"] * 3, trainer)
    fields = json.loads(made.to_str())
    fields["model"]["max_input_chars_per_word"] = limit
    made = tokenizers.Tokenizer.from_str(json.dumps(fields))
    made.decoder = decoders.WordPiece()
    return _around(made, *(names[place] for place in around), between=between)


def _other(**parts):
    made = wordpiece(**parts)
    roles = _roles(parts.get("names", BERT))
    return made, {**roles, "tokenizer_class": "PreTrainedTokenizerFast"}, "bert"


def _cut(*steps):
    return pre_tokenizers.Sequence(list(steps))


SHAPES = {
    "ModernBERT": _modernbert,
    "mmBERT": _gemma,
    "ModernBERT-Ja": _japanese,
    "multilingual-e5": _e5,
    "DeBERTa": _deberta,
    "MPNet": lambda: (
        wordpiece(names=MPNET, unknown="[UNK]", around=(0, 2), between=2),
        {"tokenizer_class": "MPNetTokenizer", "do_lower_case": False},
        "mpnet",
    ),
    "EuroBERT": llama,
    "WhitespaceSplit": lambda: _other(before=pre_tokenizers.WhitespaceSplit()),
    "Metaspace": lambda: _other(before=pre_tokenizers.Metaspace()),
    "Digits": lambda: _other(
        before=_cut(pre_tokenizers.BertPreTokenizer(), pre_tokenizers.Digits(True))
    ),
    "Split": lambda: _other(before=pre_tokenizers.Split(".", behavior="isolated")),
    "Sequence": lambda: _other(
        normalizer=normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    ),
    "200 characters": lambda: _other(limit=200),
    "BERT": lambda: (wordpiece(), {**_roles(BERT), "do_lower_case": False}, "bert"),
    "BertTokenizer": lambda: (
        wordpiece(normalizer=normalizers.BertNormalizer(lowercase=True)),
        {**_roles(BERT), "do_lower_case": False, "tokenizer_class": "BertTokenizer"},
        "bert",
    ),
    "other names": lambda: (
        wordpiece(names=["<pad>", "<unk>", "<s>", "</s>", "<mask>"]),
        {
            **_roles(["<pad>", "<unk>", "<s>", "</s>", "<mask>"]),
            "do_lower_case": False,
            "tokenizer_class": "BertTokenizer",
        },
        "bert",
    ),
}


def mpnet(words):
    """Returns MPNet's tokenizer with these words, by the names that its class gives."""
    config = dict(library_tokenizer.NAMES[library_tokenizer.MPNET_CLASS])
    config[library_tokenizer.CLASS_FIELD] = library_tokenizer.MPNET_CLASS
    return library_tokenizer.of_vocabulary([*MPNET, *words], config)


def write(directory, shape):
    """Writes tokenizer.json and tokenizer_config.json of a shape; returns its model_type."""
    made, config, model_type = SHAPES[shape]()
    directory.mkdir(exist_ok=True, parents=True)
    (directory / "tokenizer.json").write_text(made.to_str(pretty=True))
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    return model_type
