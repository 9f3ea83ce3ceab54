"""The entries of a vocabulary from counted units: WordPiece, sentencepiece and byte-level BPE."""

from __future__ import annotations

import collections
import io
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import sentencepiece
import tokenizers

from bertjax.options import faults
from bertjax.tokenization import byte_bpe, normalization, sentence_piece, wordpiece
from data_pipelines.documents import segmenters

SPECIALS = (wordpiece.PAD, wordpiece.UNK, wordpiece.CLS, wordpiece.SEP, wordpiece.MASK)
# Characters beyond the thousand most frequent, and beyond those that this share of the text
# consists of, become [UNK] rather than entries. (The share is sentencepiece's default.)
ALPHABET_SIZE = 1000
CHARACTER_COVERAGE = 0.9995
MINIMUM_PAIR_FREQUENCY = 2
# Text without white space is cut into units of this number of characters, for sentencepiece and
# byte_bpe, whose trainer takes the square of a unit's length for each merge: DNA is one long word.
MAX_UNIT_CHARACTERS = 1000

# The sums that sentencepiece makes depend on the number of threads that share them, so this is
# not the number of cores.
SENTENCEPIECE_THREADS = 2

BERT = "bert"  # the special tokens of a WordPiece vocabulary
_BERT_PIECES: dict[str, Any] = {
    **{"pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1},
    **{"pad_piece": wordpiece.PAD, "unk_piece": wordpiece.UNK},
    "control_symbols": list(SPECIALS[2:]),
}


def of_wordpiece(word_counts: Mapping[str, int], size: int, rule: str) -> list[str]:
    """Returns at most `size` entries for words with these counts, normalized by `rule`.

    The specials, the characters and their continuation forms in code point order, then merged
    pieces by frequency.
    """
    alphabet = _alphabet(_character_counts(word_counts))
    # The trainer of tokenizers 0.23 numbers continuation characters in hash order, which decides
    # ties between merges. Seeded as special tokens in sorted order they have fixed numbers.
    # Neither punctuation nor CJK continues a word.
    inner = [
        one for one in alphabet if len(wordpiece.split_words(f"a{one}", normalization=rule)) == 1
    ]
    seeds = [*SPECIALS, *alphabet, *(f"{wordpiece.CONTINUATION}{one}" for one in inner)]
    if len(seeds) > size:
        parts = f"the {len(alphabet)} characters, their continuation forms and special tokens"
        raise faults.wrong("size", size, f"at least {len(seeds)}, for {parts}", "give a larger one")
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=MINIMUM_PAIR_FREQUENCY,
        special_tokens=seeds,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        show_progress=False,
    )
    trained = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=wordpiece.UNK))
    trained.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trained.train_from_iterator(_repeated(word_counts), trainer)
    ids = trained.get_vocab(with_added_tokens=False)
    return sorted(ids, key=lambda entry: ids[entry])


def sentencepiece_model(
    unit_counts: Mapping[str, int], size: int, model_type: str, rule: str, ids: str = BERT
) -> bytes:
    """Returns a model of at most `size` pieces for units with these counts.

    `ids` names the special tokens: BERT, as a WordPiece vocabulary made here has them, or a family
    of sentence_piece.PIECES. By the released rule the model
    normalizes the text itself; by any other it leaves it as it is. No piece holds WORD_END.
    """
    pieces = sentence_piece.PIECES.get(ids)
    characters = _character_counts(unit_counts)
    has_words = characters.pop(segmenters.WORD_END, 0) > 0
    covered = sum(characters[character] for character in _alphabet(characters))
    written = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{unit}\t{count}" for unit, count in unit_counts.items()),
            input_format="tsv",
            model_writer=written,
            model_type=model_type,
            normalization_rule_name=(
                sentence_piece.FOLDED_LATER[0]
                if rule == normalization.RELEASED
                else sentence_piece.IDENTITY
            ),
            vocab_size=size - pieces.more if pieces else size,
            hard_vocab_limit=False,
            character_coverage=covered / characters.total(),
            max_sentence_length=8 * MAX_UNIT_CHARACTERS,
            num_threads=SENTENCEPIECE_THREADS,
            minloglevel=2,
            **({"pretokenization_delimiter": segmenters.WORD_END} if has_words else {}),
            **({} if pieces else _BERT_PIECES),
        )
    except RuntimeError as error:
        raise ValueError(f"size is {size}; sentencepiece says: {error}") from error
    model = written.getvalue()
    model = sentence_piece.renumbered(model, pieces) if pieces else model
    return sentence_piece.rounded(model) if model_type == "unigram" else model


def of_byte_bpe(
    unit_counts: Mapping[str, int], size: int
) -> tuple[list[str], list[byte_bpe.Merge]]:
    """Returns at most `size` entries, and the merges, for units with these counts.

    The specials in RoBERTa's order, the 256 bytes, then the merged pieces, the most frequent first.
    """
    least = len(byte_bpe.SPECIALS) + len(byte_bpe.BYTES)
    if size < least:
        parts = f"{len(byte_bpe.BYTES)} bytes and the {len(byte_bpe.SPECIALS)} special tokens"
        raise faults.wrong("size", size, f"at least {least}, for the {parts}")
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=MINIMUM_PAIR_FREQUENCY,
        special_tokens=list(byte_bpe.SPECIALS),
        initial_alphabet=sorted(byte_bpe.BYTES),
        show_progress=False,
    )
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            tokenizers.pre_tokenizers.Split("\n", behavior="removed"),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trained.train_from_iterator(_repeated(unit_counts, "\n"), trainer)
    model = json.loads(trained.to_str())["model"]
    return byte_bpe.entries(model["vocab"]), byte_bpe.merges_of(model["merges"])


def _character_counts(unit_counts: Mapping[str, int]) -> collections.Counter[str]:
    counts: collections.Counter[str] = collections.Counter()
    for unit, count in unit_counts.items():
        for character in unit:
            counts[character] += count
    return counts


def _alphabet(characters: collections.Counter[str]) -> list[str]:
    """Returns the most frequent of the counted characters, in code point order."""
    if not any(character.isprintable() for character in characters):
        raise ValueError("the text holds no visible characters; a vocabulary needs some")
    by_frequency = sorted(characters, key=lambda character: (-characters[character], character))
    shares = itertools.accumulate(characters[character] for character in by_frequency)
    enough = sum(share < CHARACTER_COVERAGE * characters.total() for share in shares) + 1
    return sorted(by_frequency[: max(enough, ALPHABET_SIZE)])


def _repeated(word_counts: Mapping[str, int], separator: str = " ") -> Iterator[str]:
    """Yields every word as often as it occurs, in strings of at most 2^16 copies."""
    for word, count in word_counts.items():
        for start in range(0, count, 2**16):
            yield f"{word}{separator}" * min(2**16, count - start)
