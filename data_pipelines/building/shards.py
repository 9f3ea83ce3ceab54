"""From a tokenized corpus to files of records: pairs of every block, dealt to shards, written.

Two steps, each a function of the corpus on disk, the options and one index, so that any process may
do any of them and a file that exists need not be made again. `pair_block` draws the examples of a
block and shuffles them; `write` takes each block's share for one shard, shuffles once more, and
makes rows, masks and records. Both write their counts into a JSON file next to their output.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging
from etils import epath

from bertjax.data import encoding, masking, record_files, records
from bertjax.files import atomic, hashed_files, json_text
from bertjax.tokenization import tokenizer
from data_pipelines.building import blocks, row_packing, store
from data_pipelines.objectives import base, examples, pairing
from data_pipelines.reports import statistics, used_tokens

# Small enough for a processor's cache; part of the random stream of the masks.
ROWS_PER_BATCH = 1024


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How examples are made."""

    vocabulary: blocks.Vocabulary
    pairs: base.PairOptions
    masking: masking.MaskingOptions | None
    stores_words: bool = dataclasses.field(default=False, kw_only=True)
    counts_words: bool = dataclasses.field(default=False, kw_only=True)
    stores_sentence_ends: bool = dataclasses.field(default=False, kw_only=True)

    @property
    def has_marks(self) -> bool:
        """Whether the corpus's tokens have marks, which become features."""
        return self.stores_words or self.counts_words or self.stores_sentence_ends

    @property
    def token_dtype(self) -> np.dtype:
        """The type of the corpus's tokens."""
        return blocks.token_dtype(self.vocabulary, self.has_marks)

    def new_tally(self) -> statistics.ExampleTally:
        """Returns a tally that has counted nothing."""
        return statistics.ExampleTally(
            self.vocabulary.load(),
            max_seq_length=self.pairs.max_seq_length,
            pair_objective=self.pairs.pair_objective,
            max_sequences_per_row=self.pairs.max_sequences_per_row,
        )


@dataclasses.dataclass(frozen=True)
class Job(Recipe):
    """The description of the work for every step: the recipe of examples, and the paths.

    `block_documents` are the numbers of the blocks' first documents and, last, of all documents.
    """

    scratch: str
    directory: str
    block_documents: tuple[int, ...]

    @property
    def num_blocks(self) -> int:
        return len(self.block_documents) - 1


@dataclasses.dataclass(frozen=True)
class PairCounts:
    """The numbers of examples of a block: all, random, forced to be random, left out.

    `used` are the tokens of the corpus that stand in them, as `used_tokens.of` has it.
    """

    examples: int
    random: int
    forced_random: int
    dropped: int
    used: str

    @classmethod
    def of(cls, drafts: base.Drafts, spans: examples.Spans, num_tokens: int) -> PairCounts:
        """Returns the counts of one block, whose examples are finished, of a corpus."""
        random = int(drafts.spans["label"].sum())
        used = used_tokens.of(spans, num_tokens)
        return cls(len(drafts.spans), random, drafts.forced_random, drafts.dropped, used)


@dataclasses.dataclass(frozen=True)
class PairTotals:
    """The numbers of `PairCounts` of all blocks, and the share of the tokens that is used."""

    examples: int
    random: int
    forced_random: int
    dropped: int
    used_share: float

    @classmethod
    def of(cls, counts: Sequence[PairCounts], num_tokens: int) -> PairTotals:
        """Returns what all blocks gave together; ValueError if that is nothing."""
        names = ("examples", "random", "forced_random", "dropped")
        sums = {name: sum(getattr(one, name) for one in counts) for name in names}
        used = used_tokens.share((one.used for one in counts), num_tokens)
        total = cls(**sums, used_share=used)
        if not total.examples:
            raise ValueError(
                "no examples are left: all pairs are random, so that half of them cannot be next "
                "sentences; drop --balanced_nsp, and look whether documents have several sentences"
            )
        return total

    def statistics(self, pair_objective: str) -> dict[str, Any]:
        """Returns what the finished rows no longer tell."""
        used = {"used_token_share": self.used_share}
        if not pairing.labels(pair_objective):
            return used
        return used | {
            "forced_random_share": self.forced_random / self.examples,
            "dropped_pair_share": self.dropped / (self.examples + self.dropped),
        }


@dataclasses.dataclass(frozen=True)
class WrittenShard:
    """A shard's manifest entry, and what was counted in it."""

    shard: records.Shard
    tally: statistics.ExampleTally


def pair_block(index: int, job: Job) -> PairCounts:
    """Writes the shuffled examples of a block, unless they are there, and returns their counts."""
    path = _pairs_path(job, index)
    counts_path = path.with_suffix(".json")
    if (notes := _notes(counts_path, path)) is not None:
        return PairCounts(**notes["counts"])
    corpus = _corpus(job)
    first, last = job.block_documents[index : index + 2]
    text, first_token = store.block_of(corpus, first, last)
    drafts = pairing.draft(base.Block(text, index, first, corpus.num_documents), job.pairs)
    segments = base.random_segments(corpus, drafts.requests)
    spans = finished(drafts, *segments, job.pairs, index=index, first_token=first_token)
    with atomic.writing(path) as file:
        np.save(file, spans)
    counts = PairCounts.of(drafts, spans, len(corpus.tokens))
    _save_notes(counts_path, path, {"counts": dataclasses.asdict(counts)})
    return counts


def finished(
    drafts: base.Drafts,
    begin_b: np.ndarray,
    length_b: np.ndarray,
    pairs: base.PairOptions,
    *,
    index: int,
    first_token: int,
) -> examples.Spans:
    """Returns the shuffled examples of block `index`, cut to length.

    `begin_b` and `length_b` are the segments that the drafts request, in tokens of the whole
    corpus, in which the block begins at `first_token`; so are the positions returned.
    """
    spans = base.completed(drafts, begin_b, length_b, first_token=first_token)
    spans = examples.cut_to(spans, pairing.budget(pairs), pairs.generator("cuts", index))
    return spans[pairs.generator("block order", index).permutation(len(spans))]


def shares(counts: np.ndarray, shard: int, num_shards: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns begin and end of one shard's examples in every block.

    The examples of all blocks, one block after the other, are dealt to the shards in turn, so that
    shards differ by one example at most. A block is shuffled, hence a shard may take its number of
    examples as one piece, which is quicker to read.
    """
    return share(np.cumsum(counts) - counts, counts, shard, num_shards)


def share(
    before: int | np.ndarray, count: int | np.ndarray, shard: int | np.ndarray, num_shards: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns begin and end of a shard's examples in a block that `before` others come before."""
    first = np.asarray(before) % num_shards
    each, extra = np.divmod(count, num_shards)
    # The shards `first`, `first` + 1, ... of a block get one more, `extra` of them, in a circle.
    extra_before = np.clip(shard - first, 0, extra) + np.clip(
        np.minimum(shard, first + extra - num_shards), 0, None
    )
    gets_extra = (shard - first) % num_shards < extra
    begin = shard * each + extra_before
    return begin, begin + each + gets_extra


def feature_batches(
    job: Job, shard: int, num_shards: int, counts: np.ndarray
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the finished features of one shard, batch by batch, in their final order."""
    spans = _shard_spans(job, shard, num_shards, counts)
    spans = spans[order(job.pairs, shard, len(spans))]
    return row_batches(job, shard, _corpus(job).tokens, spans)


def order(pairs: base.PairOptions, shard: int, size: int) -> np.ndarray:
    """Returns the order in which a shard has its examples; before, they are in that of blocks."""
    return pairs.generator("shard order", shard).permutation(size)


def row_batches(
    recipe: Recipe, shard: int, tokens: np.ndarray, spans: examples.Spans
) -> Iterator[dict[str, np.ndarray]]:
    """Yields the features of one shard's examples, which are `spans` of `tokens` in final order.

    Where they are packed, a window of them is in the order of its rows.
    """
    vocabulary = recipe.vocabulary.load()
    mask_rng = recipe.pairs.generator("masks", shard)
    unmasked = _packed_batches if recipe.pairs.is_packed else _plain_batches
    for batch in unmasked(recipe, shard, tokens, spans):
        if recipe.has_marks:
            batch = examples.with_marks(
                batch,
                stored=recipe.stores_words,
                counted=recipe.counts_words,
                ended=recipe.stores_sentence_ends,
            )
        yield masked(batch, recipe.masking, vocabulary, mask_rng)


def _plain_batches(
    recipe: Recipe, shard: int, tokens: np.ndarray, spans: examples.Spans
) -> Iterator[dict[str, np.ndarray]]:
    del shard
    for start in range(0, len(spans), ROWS_PER_BATCH):
        part = spans[start : start + ROWS_PER_BATCH]
        batch = examples.rows(tokens, part, _frame(recipe))
        if pairing.labels(recipe.pairs.pair_objective):
            batch[records.PAIR_FEATURE] = part["label"][:, None].astype(np.int32)
        yield batch


def _packed_batches(
    recipe: Recipe, shard: int, tokens: np.ndarray, spans: examples.Spans
) -> Iterator[dict[str, np.ndarray]]:
    most = recipe.pairs.max_sequences_per_row
    rows = row_packing.rows(
        examples.lengths(spans),
        recipe.pairs.max_seq_length,
        most,
        recipe.pairs.generator("row order", shard),
    )
    while part := list(itertools.islice(rows, ROWS_PER_BATCH)):
        sequences = np.array([len(row) for row in part])
        chosen = spans[np.concatenate(part)]
        batch = examples.packed_rows(tokens, chosen, sequences, _frame(recipe))
        if pairing.labels(recipe.pairs.pair_objective):
            labels = np.zeros((len(part), most), np.int32)
            labels[np.arange(most) < sequences[:, None]] = chosen["label"]
            batch[records.PAIR_FEATURE] = labels
        yield batch


def _frame(recipe: Recipe) -> examples.Frame:
    vocabulary = recipe.vocabulary.load()
    return examples.Frame(
        recipe.pairs.max_seq_length, vocabulary.cls_id, vocabulary.sep_id, vocabulary.pad_id
    )


def masked(
    batch: dict[str, np.ndarray],
    options: masking.MaskingOptions | None,
    vocabulary: tokenizer.Tokenizer,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Returns the batch with stored masks, or as it is without `options`."""
    if options is None:
        return batch
    return batch | masking.mask_tokens(
        batch["input_ids"],
        records.sequence_ids(batch),
        options=options,
        vocab_size=vocabulary.vocab_size,
        mask_id=vocabulary.mask_id,
        special_ids=vocabulary.special_ids,
        continues_word=vocabulary.continues_word,
        stored_words=batch.get(records.WORDS_FEATURE),
        rng=rng,
    )


def write(index: int, job: Job, num_shards: int, counts: np.ndarray) -> WrittenShard:
    """Writes one shard, unless it is there, and returns its manifest entry and its counts."""
    path = epath.Path(job.directory) / record_files.shard_name(index, num_shards)
    notes = pathlib.Path(job.scratch) / f"{path.name}.json"
    tally = job.new_tally()
    if (before := _notes(notes, path)) is not None:
        tally.add_json(before["tally"])
        return WrittenShard(records.Shard(**before["shard"]), tally)
    shard = write_batches(path, feature_batches(job, index, num_shards, counts), tally)
    _save_notes(notes, path, {"shard": dataclasses.asdict(shard), "tally": tally.to_json()})
    return WrittenShard(shard, tally)


def write_batches(
    path: epath.Path, batches: Iterable[Mapping[str, np.ndarray]], tally: statistics.ExampleTally
) -> records.Shard:
    """Writes a record file of the rows of all batches and counts them."""

    def serialized() -> Iterator[bytes]:
        for batch in batches:
            tally.add(batch)
            yield from encoding.encode_batch(batch)

    return record_files.write_shard(path, serialized())


def _save_notes(notes: epath.PathLike, path: epath.PathLike, fields: Mapping[str, Any]) -> None:
    """Writes what was counted in a finished file, with its size and hash."""
    file = dataclasses.asdict(hashed_files.HashedFile.of(path))
    atomic.write(notes, json.dumps({**fields, "file": file}))


def _notes(notes: epath.PathLike, path: epath.PathLike) -> dict[str, Any] | None:
    """Returns what `_save_notes` wrote of a file, None if the file must be made (again)."""
    notes = epath.Path(notes)
    if not notes.exists():
        return None
    try:
        fields = json_text.read_object(notes)
        file = hashed_files.HashedFile.from_json(fields.pop("file", None))
        faults = list(hashed_files.faults(epath.Path(path).parent, [file]))
        if file.name != epath.Path(path).name:
            faults = [f"{notes} is of {file.name}"]
    except ValueError as error:
        faults = [f"{notes}: {error}"]
    if faults:
        logging.warning("a part of the unfinished build is made again: %s", faults[0])
        return None
    return fields


def _shard_spans(job: Job, shard: int, num_shards: int, counts: np.ndarray) -> examples.Spans:
    begin, end = shares(counts, shard, num_shards)
    parts = [
        np.array(np.load(_pairs_path(job, block), mmap_mode="r")[begin[block] : end[block]])
        for block in np.flatnonzero(end > begin).tolist()
    ]
    return np.concatenate(parts)


def _pairs_path(job: Job, block: int) -> pathlib.Path:
    return pathlib.Path(job.scratch) / f"pairs-{block:06d}.npy"


def _corpus(job: Job) -> examples.Corpus:
    # Never kept: a map would outlive the files of a build that is started anew.
    return store.open_corpus(pathlib.Path(job.scratch), job.token_dtype)
