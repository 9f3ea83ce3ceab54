"""Small record directories of random tokens with a real vocabulary, for tests of whole runs."""

import dataclasses
import pathlib

import numpy as np

from bertjax.data import contents, encoding, masking, record_files, records
from bertjax.tokenization import tokenizer
from tests import made_once

WORDS = [f"w{number}" for number in range(90)]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def manifest(**fields) -> records.Manifest:
    """A manifest of text without masks, pairs or shards, but for these fields."""
    values = {
        "tokenizer": {"kind": "wordpiece", "sha256": "", "vocab_size": 1000},
        **{"max_seq_length": 8, "max_predictions_per_seq": 0, "masked_lm_prob": 0.15},
        **{"pair_objective": "none", "shards": (), "seed": 0, "arguments": {}, "statistics": {}},
    }
    return records.Manifest(**values | fields)


def vocabulary(words=WORDS, **options) -> tokenizer.Tokenizer:
    return tokenizer.WordPieceTokenizer([*SPECIALS, *words], **options)


def write(
    directory: pathlib.Path,
    *,
    max_seq_length: int = 16,
    counts: tuple[int, ...] = (40, 41, 43, 44),
    seed: int = 0,
    words: list[str] = WORDS,
    documents: range | None = None,
    known: tokenizer.Tokenizer | None = None,
    pair_objective: str = "nsp",
    is_alike: bool = False,
    is_masked: bool = True,
    counts_words: bool = False,
    stores_sentence_ends: bool = False,
) -> pathlib.Path:
    """Writes shards of sentence pairs, masked where `is_masked`, the vocabulary and the manifest.

    With `documents`, numbers that stand for texts, the records have their contents too. `known` is
    a vocabulary in place of that of `words`. Where `is_alike`, a row is one token, again and again;
    with `counts_words` a row has a number of words, with `stores_sentence_ends` a sentence ends
    after every fourth token.
    """
    rng = np.random.default_rng(seed)
    directory.mkdir(parents=True)
    made = known or vocabulary(words)
    ordinary = np.setdiff1d(np.arange(made.vocab_size), made.special_ids)
    shards, counts_of_tokens = [], np.zeros(made.vocab_size, np.int64)
    for shard, count in enumerate(counts):
        size = (count, max_seq_length)
        input_ids = ordinary[rng.integers(0, len(ordinary), (count, 1) if is_alike else size)]
        input_ids = np.broadcast_to(input_ids, size).copy()
        input_ids[:, 0] = made.cls_id
        input_ids[:, [max_seq_length // 2, -1]] = made.sep_id
        segment_ids = np.broadcast_to(np.arange(max_seq_length) > max_seq_length // 2, size)
        input_mask = np.ones(size, np.int64)
        options = masking.MaskingOptions(max_predictions_per_seq=3)
        masked = masking.mask_tokens(
            input_ids,
            input_mask,
            options=options,
            vocab_size=made.vocab_size,
            mask_id=made.mask_id,
            special_ids=made.special_ids,
            rng=rng,
        )
        columns = (masked if is_masked else {"input_ids": input_ids}) | {
            "input_mask": input_mask,
            "segment_ids": segment_ids.astype(np.int64),
            "next_sentence_labels": rng.integers(0, 2, count),
        }
        features = records.text_features(
            max_predictions_per_seq=3 if is_masked else 0,
            pair_objective=pair_objective,
            counts_words=counts_words,
            stores_sentence_ends=stores_sentence_ends,
        )
        if stores_sentence_ends:
            columns["ends_sentence"] = np.broadcast_to(np.arange(max_seq_length) % 4 == 3, size)
        if counts_words:
            columns["word_count"] = np.count_nonzero(input_ids % 2, axis=1)
        asked = masked["masked_lm_ids"][masked["masked_lm_weights"] > 0]
        counts_of_tokens += np.bincount(asked, minlength=made.vocab_size)
        path = directory / f"records-{shard}.tfrecord"
        shards.append(record_files.write_shard(path, encoding.encode_batch(columns)))
    made.save(directory)
    if documents is not None:
        sample = contents.Documents(np.array(documents, np.uint64))
        contents.RecordSummary(counts_of_tokens, sample).save(directory)
    manifest(
        tokenizer=made.describe(),
        max_seq_length=max_seq_length,
        max_predictions_per_seq=3 if is_masked else 0,
        pair_objective=pair_objective,
        features=features,
        shards=tuple(shards),
        seed=seed,
        statistics={
            "unigram_entropy": float(np.log(len(words))),
            "unigram_tokens": int(counts_of_tokens.sum()),
        },
    ).save(directory)
    return directory


def made(**options) -> pathlib.Path:
    """The directory of `write` with these options, made once: read it only."""
    return made_once.directory("records", lambda path: write(path, **options), **options)


def write_languages(
    directory: pathlib.Path, sizes: dict[str, tuple[int, ...]], **options
) -> pathlib.Path:
    """Writes records in several languages, of shards of these sizes, and the manifest over them."""
    shards, listed, summary = [], {}, None
    for number, (name, counts) in enumerate(sizes.items()):
        own = options | {"counts": counts, "seed": options.get("seed", 0) + number}
        write(directory / name, **own)
        one = records.Manifest.load(directory / name)
        figures = {"documents": sum(counts), "tokens": 16 * sum(counts), "bytes": 48 * sum(counts)}
        listed[name] = figures | {"examples": sum(counts)}
        one = dataclasses.replace(
            one, languages={name: listed[name]}, statistics=one.statistics | figures
        )
        one.save(directory / name)
        shards += [dataclasses.replace(it, file=f"{name}/{it.file}") for it in one.shards]
        if found := contents.load(directory / name):
            summary = summary.merged(found) if summary else found
    if summary:
        summary.save(directory)
    tokenizer.load(directory / name).save(directory)
    statistics = one.statistics | {"fill": 1.0}
    whole = dataclasses.replace(one, shards=tuple(shards), languages=listed, statistics=statistics)
    whole.save(directory)
    return directory
