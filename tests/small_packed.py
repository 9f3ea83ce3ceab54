"""The same short sequences twice: several in a row, and each in a row of its own."""

import numpy as np

from bertjax.data import encoding, record_files, records
from tests import small_records

CLS, SEP, FIRST = 2, 3, 5  # of the vocabulary; what follows is ordinary


def sequence(length, rng, vocab_size):
    """Random token ids of two segments, and the place of the [SEP] between them."""
    ids = rng.integers(FIRST, vocab_size, length)
    between = int(rng.integers(1, length - 1)) if length > 3 else length - 1
    ids[0], ids[between], ids[-1] = CLS, SEP, SEP
    return ids, np.arange(length) > between


def rows(lengths, max_seq_length, *, most, vocab_size=96, seed=0):
    """Features of packed rows, and of the same sequences apart; `lengths` of each row's."""
    rng = np.random.default_rng(seed)
    shape = (len(lengths), max_seq_length)
    packed = {
        name: np.zeros(shape, np.int32) for name in ("input_ids", "sequence_ids", "segment_ids")
    }
    packed["next_sentence_labels"] = np.zeros((len(lengths), most), np.int32)
    apart = {
        name: np.zeros((sum(map(len, lengths)), max_seq_length), np.int32)
        for name in records.TOKEN_FEATURES
    }
    labels = []
    for row, its_lengths in enumerate(lengths):
        begin = 0
        for number, length in enumerate(its_lengths, start=1):
            ids, segments = sequence(length, rng, vocab_size)
            label = int(rng.integers(2))
            place = slice(begin, begin + length)
            packed["input_ids"][row, place] = apart["input_ids"][len(labels), :length] = ids
            packed["segment_ids"][row, place] = segments
            apart["segment_ids"][len(labels), :length] = segments
            apart["input_mask"][len(labels), :length] = 1
            packed["sequence_ids"][row, place] = number
            packed["next_sentence_labels"][row, number - 1] = label
            labels.append(label)
            begin += length
    return packed, apart | {"next_sentence_labels": np.array(labels, np.int32)}


def write(directory, shards, *, length, most, vocab_size=96):
    """A record directory of packed rows without masks; `shards` are lists of rows of lengths."""
    directory.mkdir()
    written = [
        record_files.write_shard(
            directory / f"shard-{number}.tfrecord",
            encoding.encode_batch(
                rows(lengths, length, most=most, vocab_size=vocab_size, seed=number)[0]
            ),
        )
        for number, lengths in enumerate(shards)
    ]
    small_records.manifest(
        tokenizer={"kind": "wordpiece", "sha256": "", "vocab_size": vocab_size},
        max_seq_length=length,
        pair_objective="nsp",
        shards=tuple(written),
        max_sequences_per_row=most,
    ).save(directory)
    return records.open(directory)
