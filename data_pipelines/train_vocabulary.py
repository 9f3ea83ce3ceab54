"""Trains a WordPiece vocabulary, and says how well it covers text that it has not seen.

    python -m data_pipelines.train_vocabulary --input='corpus/*.txt' --output=DIR --size=30522

The same input and options give the same bytes, on any number of cores.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence

import tokenizers
from etils import epath

from bertjax.data import tokenizer
from data_pipelines import command_line, sources

SPECIALS = (tokenizer.PAD, tokenizer.UNK, tokenizer.CLS, tokenizer.SEP, tokenizer.MASK)
# Rarer characters than the thousand most frequent become [UNK] rather than entries.
ALPHABET_LIMIT = 1000
MINIMUM_PAIR_FREQUENCY = 2


@dataclasses.dataclass(frozen=True)
class Options:
    """What to train on and what kind of vocabulary to make."""

    input: str = command_line.option("'documentation', or paths and globs of text files")
    output: str = command_line.option("the directory for vocab.txt and tokenizer_config.json")
    size: int = command_line.option("entries at most, specials included", default=30522)
    lowercase: bool = command_line.option("lower-case the text", default=True)
    strip_accents: bool | None = command_line.option(
        "drop accents; unset: as lowercase, like the released BERT", default=None
    )
    heldout_fraction: float = command_line.option(
        "share of documents to measure on and not to train on, chosen by a hash of their id",
        default=0.02,
    )
    one_document_per_file: bool = command_line.option(
        "files are documents; otherwise blank lines separate them", default=False
    )
    overwrite: bool = command_line.option("replace the vocabulary in output", default=False)


@dataclasses.dataclass(frozen=True)
class Coverage:
    """How a vocabulary does on a text: [UNK] per token, and tokens per white-space word."""

    words: int
    fertility: float
    unknown_rate: float


def train(
    texts: Sequence[str], *, size: int, lowercase: bool = True, strip_accents: bool | None = None
) -> tokenizer.WordPieceTokenizer:
    """Returns a tokenizer with the WordPiece vocabulary of the texts.

    Entries: the specials, the characters and their continuation forms in code point order, then
    merged pieces by frequency.

    Raises:
      ValueError: if the texts are empty or `size` does not hold the characters.
    """
    trained = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=tokenizer.UNK))
    trained.normalizer = tokenizers.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=lowercase if strip_accents is None else strip_accents,
        lowercase=lowercase,
    )
    trained.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    alphabet = _alphabet(texts, trained.normalizer)
    # The trainer of tokenizers 0.23 numbers continuation characters in hash order, which decides
    # ties between merges. Seeded as special tokens in sorted order they have fixed numbers.
    seeds = [*SPECIALS, *alphabet, *(f"##{character}" for character in alphabet)]
    if len(seeds) > size:
        raise ValueError(
            f"size is {size}, but the text has {len(alphabet)} characters, which with their "
            f"continuation forms and the special tokens take {len(seeds)} entries: give a larger "
            "size"
        )
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=MINIMUM_PAIR_FREQUENCY,
        special_tokens=seeds,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    ids = trained.get_vocab(with_added_tokens=False)
    # Built anew: in the trained tokenizer the seeded characters would stay special tokens.
    return tokenizer.WordPieceTokenizer(
        sorted(ids, key=lambda entry: ids[entry]),
        lowercase=lowercase,
        strip_accents=strip_accents,
    )


def coverage(vocabulary: tokenizer.Tokenizer, texts: Sequence[str]) -> Coverage:
    """Returns how the vocabulary does on the texts."""
    words = sum(len(text.split()) for text in texts)
    encoded = vocabulary.encode_batch(texts)
    tokens = sum(len(ids) for ids in encoded)
    unknown = sum(ids.count(vocabulary.unk_id) for ids in encoded)
    return Coverage(words, tokens / max(words, 1), unknown / max(tokens, 1))


def train_vocabulary(options: Options) -> tuple[tokenizer.WordPieceTokenizer, Coverage]:
    """Trains, saves into `options.output` and returns the tokenizer and its held-out coverage.

    Where the hash holds out no document, coverage is that of the last one, which is then trained
    on as well.

    Raises:
      FileNotFoundError: if there is no input.
      FileExistsError: if there is a vocabulary already and it is not to be overwritten.
      ValueError: if options or text do not allow a vocabulary.
    """
    path = epath.Path(options.output) / tokenizer.VOCABULARY_FILE
    if path.exists() and not options.overwrite:
        raise FileExistsError(
            f"{path} exists; choose another output or replace it with --overwrite"
        )
    documents = list(
        sources.documents(
            options.input,
            heldout_fraction=options.heldout_fraction,
            one_document_per_file=options.one_document_per_file,
        )
    )
    is_heldout = [sources.is_heldout(item.id, options.heldout_fraction) for item in documents]
    seen = [item.text for item, held in zip(documents, is_heldout, strict=True) if not held]
    unseen = [item.text for item, held in zip(documents, is_heldout, strict=True) if held]
    if not any(text.strip() for text in seen):
        raise ValueError(f"input {options.input!r} holds no text to train on; give other files")
    made = train(
        seen, size=options.size, lowercase=options.lowercase, strip_accents=options.strip_accents
    )
    made.save(options.output)
    return made, coverage(made, unseen or seen[-1:])


def main(options: Options) -> None:
    """Trains and prints the size and the held-out coverage."""
    made, measured = train_vocabulary(options)
    print(f"vocabulary of {made.vocab_size:,} entries in {options.output}")
    print(
        f"on {measured.words:,} held-out words: {measured.fertility:.3f} tokens per word, "
        f"{measured.unknown_rate:.4%} of the tokens unknown"
    )


def _alphabet(texts: Sequence[str], normalizer: tokenizers.normalizers.Normalizer) -> list[str]:
    """Returns the most frequent characters of the normalized texts, in code point order."""
    counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        counts.update(normalizer.normalize_str(text))
    visible = [character for character in counts if not character.isspace()]
    if not visible:
        raise ValueError("the text holds no visible characters; a vocabulary needs some")
    by_frequency = sorted(visible, key=lambda character: (-counts[character], character))
    return sorted(by_frequency[:ALPHABET_LIMIT])


if __name__ == "__main__":
    command_line.run(Options, main)
