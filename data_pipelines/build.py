r"""Text to records: sentences, tokens, examples, masks, a global shuffle, shards and a manifest.

    python -m data_pipelines.build --input='corpus/*.txt' --vocabulary=DIR_OR_VOCAB_TXT \
        --output=DIR --max_seq_length=128

One process, the corpus in memory as token ids. The output is a function of input, vocabulary and
options; it appears under its name only when it is complete.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Literal

import numpy as np
import tqdm
from absl import logging
from etils import epath

from bertjax.data import masking, records, tokenizer
from data_pipelines import command_line, examples, report, sentences, sources

DEFAULT_NUM_SHARDS = 32
SENTENCES_PER_BATCH = 20_000
ROWS_PER_BATCH = 8192

# Distinguish the random streams from those of `examples`, which the same seed feeds.
_SHUFFLE_STREAM, _MASK_STREAM = 101, 102


@dataclasses.dataclass(frozen=True)
class Options:
    """What to build; names as in the released create_pretraining_data.py where it has them."""

    input: str = command_line.option("'documentation', or paths and globs of text files")
    vocabulary: str = command_line.option("a vocabulary directory or a vocab.txt")
    output: str = command_line.option("the record directory to make")
    max_seq_length: int = command_line.option("tokens per example", default=128)
    max_predictions_per_seq: int = command_line.option(
        "masked tokens per example at most; 0: max_seq_length * masked_lm_prob", default=0
    )
    masked_lm_prob: float = command_line.option("share of tokens to mask", default=0.15)
    short_seq_prob: float = command_line.option(
        "share of documents cut to shorter examples", default=0.1
    )
    dupe_factor: int = command_line.option(
        "passes over the corpus, each with other pairs and masks", default=10
    )
    random_seed: int = command_line.option("seed of pairs, masks and shuffle", default=12345)
    pair_objective: Literal["nsp", "none"] = command_line.option(
        "nsp: two segments, the second random in half the examples; none: full sentences",
        default="nsp",
    )
    masking: Literal["static", "dynamic"] = command_line.option(
        "static: masks are stored; dynamic: training draws them", default="static"
    )
    num_shards: int = command_line.option(
        "files to write; 0: 32, or fewer for less than 32 examples", default=0
    )
    split: Literal["all", "train", "heldout"] = command_line.option(
        "which documents to take", default="all"
    )
    heldout_fraction: float = command_line.option(
        "share of documents held out, chosen by a hash of their id", default=0.02
    )
    one_sentence_per_line: bool = command_line.option(
        "the input's lines are sentences, not paragraphs", default=False
    )
    one_document_per_file: bool = command_line.option(
        "files are documents; otherwise blank lines separate them", default=False
    )
    do_lower_case: bool | None = command_line.option(
        "lower-case the text; unset: as the vocabulary directory says, true for a vocab.txt",
        default=None,
    )
    overwrite: bool = command_line.option("replace the records in output", default=False)


def build(options: Options) -> records.Manifest:
    """Writes the record directory that `options` describe and returns its manifest.

    Raises:
      FileNotFoundError: if there is no input or no vocabulary.
      FileExistsError: if the output exists and is not to be overwritten.
      ValueError: if options, vocabulary or text do not allow a single correct record.
    """
    options = _checked(options)
    output = epath.Path(options.output)
    _check_output(output, options.overwrite)
    vocabulary = tokenizer.load(options.vocabulary, lowercase=options.do_lower_case)
    corpus = _read_corpus(options, vocabulary)
    spans = _make_examples(options, corpus)

    draft = output.parent / f"{output.name}.partial"
    if draft.exists():
        draft.rmtree()
    draft.mkdir(parents=True)
    try:
        manifest = _write(options, vocabulary, corpus, spans, draft)
        _replace(output, draft)
    finally:
        if draft.exists():
            draft.rmtree()
    return manifest


def default_num_shards(num_examples: int) -> int:
    """Returns 32, or for fewer examples the largest power of two that leaves no shard empty."""
    return min(DEFAULT_NUM_SHARDS, 2 ** (max(num_examples, 1).bit_length() - 1))


def _checked(options: Options) -> Options:
    """Returns the options with defaults filled in; raises one error that names all faults."""
    faults = [
        f"{name} is {getattr(options, name)}; it must be {wanted}"
        for name, holds, wanted in (
            ("max_seq_length", options.max_seq_length >= 8, "at least 8"),
            ("max_predictions_per_seq", options.max_predictions_per_seq >= 0, "at least 0"),
            ("masked_lm_prob", 0 < options.masked_lm_prob < 1, "between 0 and 1"),
            ("short_seq_prob", 0 <= options.short_seq_prob <= 1, "between 0 and 1"),
            ("dupe_factor", options.dupe_factor >= 1, "at least 1"),
            ("random_seed", options.random_seed >= 0, "at least 0"),
            ("num_shards", options.num_shards >= 0, "at least 0"),
            ("heldout_fraction", 0 <= options.heldout_fraction < 1, "at least 0 and below 1"),
            ("split", options.split in sources.SPLITS, f"one of {sources.SPLITS}"),
            ("masking", options.masking in ("static", "dynamic"), "static or dynamic"),
            (
                "pair_objective",
                options.pair_objective in examples.PAIR_OBJECTIVES,
                f"one of {examples.PAIR_OBJECTIVES}",
            ),
        )
        if not holds
    ]
    if faults:
        raise ValueError("the options do not fit:\n  " + "\n  ".join(faults))
    if options.masking == "dynamic":
        return dataclasses.replace(options, max_predictions_per_seq=0)
    default = masking.default_max_predictions(options.max_seq_length, options.masked_lm_prob)
    return dataclasses.replace(
        options, max_predictions_per_seq=options.max_predictions_per_seq or default
    )


def _check_output(output: epath.Path, overwrite: bool) -> None:
    if not output.exists():
        return
    if not overwrite:
        raise FileExistsError(
            f"output {output} exists; choose another name or replace it with --overwrite"
        )
    # Overwriting deletes, and a mistyped output might be a home directory.
    if any(output.iterdir()) and not (output / records.MANIFEST_FILE).exists():
        raise FileExistsError(
            f"output {output} is not a record directory (it has no {records.MANIFEST_FILE}) and "
            "is not overwritten; choose another name"
        )


def _replace(output: epath.Path, draft: epath.Path) -> None:
    old = output.parent / f"{output.name}.replaced"
    if output.exists():
        output.rename(old)
    draft.rename(output)
    if old.exists():
        old.rmtree()


def _read_corpus(options: Options, vocabulary: tokenizer.Tokenizer) -> examples.Corpus:
    found = sources.documents(
        options.input,
        split=options.split,
        heldout_fraction=options.heldout_fraction,
        one_document_per_file=options.one_document_per_file,
    )
    documents = list(tqdm.tqdm(found, "reading", unit=" documents", disable=None))
    if not documents:
        raise ValueError(
            f"input {options.input!r} holds no documents in its split {options.split!r}; give "
            "other files, or another --split and --heldout_fraction"
        )
    corpus = examples.corpus(_tokenized(options, documents, vocabulary))
    if not corpus.num_sentences:
        raise ValueError(
            f"the {len(documents)} documents of input {options.input!r} hold no sentence; check "
            "that they are text"
        )
    if corpus.num_documents < len(documents):
        empty = len(documents) - corpus.num_documents
        logging.warning("%d of %d documents hold no sentence", empty, len(documents))
    return corpus


def _tokenized(
    options: Options, documents: list[sources.Document], vocabulary: tokenizer.Tokenizer
) -> Iterator[list[list[int]]]:
    """Yields the documents as sentences of token ids, encoded in large batches for speed."""
    splitter = sentences.SPLITTERS["lines" if options.one_sentence_per_line else "rules"]
    texts: list[str] = []
    ends: list[int] = []
    progress = tqdm.tqdm(documents, "tokenizing", unit=" documents", disable=None)
    for number, document in enumerate(progress, start=1):
        texts += sentences.split_document(document.text, splitter)
        ends.append(len(texts))
        if len(texts) >= SENTENCES_PER_BATCH or number == len(documents):
            encoded = vocabulary.encode_batch(texts)
            yield from (
                encoded[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)
            )
            texts, ends = [], []


def _make_examples(options: Options, corpus: examples.Corpus) -> examples.Spans:
    """Returns the examples of all passes, shuffled."""
    make = examples.nsp_pairs if options.pair_objective == "nsp" else examples.full_sentences
    passes = [
        make(
            corpus,
            max_seq_length=options.max_seq_length,
            short_seq_prob=options.short_seq_prob,
            seed=options.random_seed,
            pass_index=pass_index,
        )
        for pass_index in tqdm.trange(options.dupe_factor, desc="pairing", disable=None)
    ]
    spans = np.concatenate(passes)
    rng = np.random.default_rng([options.random_seed, _SHUFFLE_STREAM])
    return spans[rng.permutation(len(spans))]


def _write(
    options: Options,
    vocabulary: tokenizer.Tokenizer,
    corpus: examples.Corpus,
    spans: examples.Spans,
    directory: epath.Path,
) -> records.Manifest:
    num_shards = options.num_shards or default_num_shards(len(spans))
    if num_shards > len(spans):
        raise ValueError(
            f"num_shards is {num_shards}, but there are only {len(spans)} examples; give at most "
            "that many, or 0 to have the number chosen"
        )
    tally = report.Tally(vocabulary)
    shards = []
    progress = tqdm.tqdm(total=len(spans), desc="writing", unit=" examples", disable=None)
    for index, part in enumerate(np.array_split(spans, num_shards)):
        name = f"records-{index:05d}-of-{num_shards:05d}.tfrecord"
        batches = _batches(options, vocabulary, corpus, part, shard_index=index)
        shards.append(records.write_shard(directory / name, _serialized(batches, tally, progress)))
    progress.close()
    vocabulary.save(directory)
    arguments = dataclasses.asdict(options)
    # What does not decide the content would only make equal builds differ.
    del arguments["output"], arguments["overwrite"]
    manifest = records.Manifest(
        tokenizer=vocabulary.describe(),
        max_seq_length=options.max_seq_length,
        max_predictions_per_seq=options.max_predictions_per_seq,
        masked_lm_prob=options.masked_lm_prob,
        pair_objective=options.pair_objective,
        shards=tuple(shards),
        seed=options.random_seed,
        arguments=arguments,
        statistics=report.corpus_statistics(corpus, vocabulary) | tally.statistics(),
    )
    manifest.save(directory)
    return manifest


def _batches(
    options: Options,
    vocabulary: tokenizer.Tokenizer,
    corpus: examples.Corpus,
    spans: examples.Spans,
    shard_index: int,
) -> Iterator[dict[str, np.ndarray]]:
    for start in range(0, len(spans), ROWS_PER_BATCH):
        part = spans[start : start + ROWS_PER_BATCH]
        batch = examples.rows(
            corpus,
            part,
            max_seq_length=options.max_seq_length,
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
            pad_id=vocabulary.pad_id,
        )
        if options.pair_objective != "none":
            batch[records.PAIR_FEATURE] = part[:, 4:].astype(np.int32)
        if options.masking == "static":
            batch |= masking.mask_tokens(
                batch["input_ids"],
                batch["input_mask"],
                options=masking.MaskingOptions(
                    options.masked_lm_prob, options.max_predictions_per_seq
                ),
                vocab_size=vocabulary.vocab_size,
                mask_id=vocabulary.mask_id,
                special_ids=vocabulary.special_ids,
                rng=np.random.default_rng([options.random_seed, _MASK_STREAM, shard_index, start]),
            )
        yield batch


def _serialized(
    batches: Iterator[dict[str, np.ndarray]], tally: report.Tally, progress: tqdm.tqdm
) -> Iterator[bytes]:
    for batch in batches:
        tally.add(batch)
        for row in range(len(batch["input_ids"])):
            yield records.encode({name: values[row] for name, values in batch.items()})
        progress.update(len(batch["input_ids"]))


def main(options: Options) -> None:
    """Builds and prints the health report."""
    print("\n".join(report.lines(build(options))))


if __name__ == "__main__":
    command_line.run(Options, main)
