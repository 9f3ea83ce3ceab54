"""The exact build: the examples of `algorithm`, written round robin as the released script does."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bertjax.data import records, tables, tokenizer
from data_pipelines import blocks, builders, progress, shards, sizes, sources
from data_pipelines.exact import algorithm
from data_pipelines.formats import base, input_files, text_files
from data_pipelines.options import Options
from data_pipelines.partial_output import PartialOutput
from data_pipelines.reports import distinct, statistics


def build(
    options: Options,
    vocabulary: blocks.Vocabulary,
    units: Sequence[sources.Unit],
    output: PartialOutput,
    judge: builders.Judge,
) -> builders.Content:
    """Writes the shards of `options` into `output.records`; example i into shard i modulo shards.

    One process, with the tokens and the draws of all examples in memory.

    Raises:
      ValueError: if the input is not plain text, or does not allow a correct record.
      OSError: if the disk is, or would be, full.
    """
    loaded = vocabulary.load()
    paths = _plain_text_paths(units)
    made = algorithm.batches(
        paths,
        loaded,
        max_seq_length=options.max_seq_length,
        dupe_factor=options.dupe_factor,
        short_seq_prob=options.short_seq_prob,
        masked_lm_prob=options.masked_lm_prob,
        max_predictions_per_seq=options.max_predictions_per_seq,
        do_whole_word_mask=options.mask == "whole_word",
        random_seed=options.random_seed,
        batch_size=shards.ROWS_PER_BATCH,
    )
    corpus = made.corpus
    known = {
        "documents": corpus.num_documents,
        "sentences": corpus.num_sentences,
        "tokens": len(corpus.tokens),
        "unknown_rate": float((corpus.tokens == loaded.unk_id).mean()),
    }
    tally = statistics.ExampleTally(loaded, max_seq_length=options.max_seq_length)
    example_bytes = sizes.sample(made, tally)
    judge(known | tally.statistics(loaded) | {"examples": made.num_examples})
    num_shards = options.num_shards or sizes.default_num_shards(made.num_examples, example_bytes)
    sizes.check(num_shards, made.num_examples, example_bytes, output)

    tally = statistics.ExampleTally(loaded, max_seq_length=options.max_seq_length)
    written = []
    with progress.Progress("writing", num_shards, " shards") as shown:
        for index in range(num_shards):
            share = dataclasses.replace(made, order=made.order[index::num_shards])
            path = output.records / records.shard_name(index, num_shards)
            written.append(shards.write_batches(path, share, tally))
            shown.at(len(written))
    figures = known | tally.statistics(loaded)
    return builders.Content(tuple(written), figures, tally.contents(_documents(paths, loaded)))


def _documents(paths: Sequence[str], vocabulary: tokenizer.Tokenizer) -> distinct.Distinct:
    """Returns the documents as the fast builder cuts, cleans and hashes them.

    For comparison alone: else a text would not be known again in records that are built fast. As
    there, a text without a token counts for nothing.
    """
    log = input_files.Log()
    texts = (text for path in paths for _, text in text_files.read(path, base.Reading(), log))
    tokenized = (text for text in texts if any(map(vocabulary.encode, text.split("\n"))))
    return distinct.Distinct.of(distinct.hashes_of(tokenized))


def _plain_text_paths(units: Sequence[sources.Unit]) -> list[str]:
    for unit in units:
        if unit.format != sources.TEXT or tables.suffixes(unit.location)[1]:
            raise ValueError(
                f"input {unit.location} is not a plain text file; algorithm exact is the released "
                "script, which reads nothing else: convert it, or use --algorithm=fast"
            )
    return [unit.location for unit in units]
