"""The exact build: the examples of the released create_pretraining_data.py, to the bit.

Every decision there is a draw from one `random.Random(seed)`, so the same draws are made here in
the same order: documents, then for each pass and document the target length, cuts, random
partners, truncation and masks of one example after the other, and at the end the order of all.
Only the bookkeeping differs: tokens are ids in one array, an example is two stretches of it and
the masks drawn for it, and rows are made on demand. It is one process, because each draw depends
on all draws before it. `objectives` has the same rules for many cores.

Source: google-research/bert, create_pretraining_data.py and tokenization.py.
"""

from __future__ import annotations

import array
import bisect
import dataclasses
import functools
import itertools
import random
import struct
from collections.abc import Callable, Iterator, MutableSequence, Sequence

import numpy as np
import tqdm
from etils import epath
from jaxtyping import Bool, Int

from bertjax.data import masking, record_files, records
from bertjax.files import opening
from bertjax.tokenization import tokenizer
from data_pipelines import progress
from data_pipelines.building import blocks, builders, shards
from data_pipelines.building.options import Options
from data_pipelines.documents import sentences, sources
from data_pipelines.formats import base, input_files, text_files
from data_pipelines.objectives import examples
from data_pipelines.partial_output import PartialOutput
from data_pipelines.reports import distinct, statistics

_RANDOM_DOCUMENT_DRAWS = 10
_LINES_PER_BATCH = 20_000
_PACK_SPAN = struct.Struct("<qqIIB").pack
# The released script pads with id 0, wherever [PAD] is.
_PAD_ID = 0

Pair = tuple[int, int, int, int, int]  # the fields of examples.SPAN
# Returns which tokens of a pair are masked, in the order of drawing, counted without specials.
Chooser = Callable[[Pair], list[int]]


def build(
    options: Options,
    vocabulary: blocks.Vocabulary,
    units: Sequence[sources.Unit],
    output: PartialOutput,
    judge: builders.Judge,
) -> builders.BuildResult:
    """Writes the shards of `options` into `output.records`; example i into shard i modulo shards.

    One process, with the tokens and the draws of all examples in memory.
    """
    loaded = vocabulary.load()
    paths = _plain_text_paths(units)
    exact_examples = batches(paths, loaded, options)
    corpus = exact_examples.corpus
    figures_so_far = {
        "documents": corpus.num_documents,
        "sentences": corpus.num_sentences,
        "tokens": len(corpus.tokens),
        "unknown_rate": float((corpus.tokens == loaded.unk_id).mean()),
    }
    tally = statistics.ExampleTally(loaded, max_seq_length=options.max_seq_length)
    example_bytes = builders.sample(exact_examples, tally)
    judge(figures_so_far | tally.statistics(loaded) | {"examples": exact_examples.num_examples})
    num_shards = builders.num_shards(options, exact_examples.num_examples, example_bytes, output)

    tally = statistics.ExampleTally(loaded, max_seq_length=options.max_seq_length)
    written = []
    with progress.Progress("writing", num_shards, " shards") as shown:
        for index in range(num_shards):
            share = dataclasses.replace(
                exact_examples, order=exact_examples.order[index::num_shards]
            )
            path = output.records / record_files.shard_name(index, num_shards)
            written.append(shards.write_batches(path, share, tally))
            shown.at(len(written))
    figures = figures_so_far | tally.statistics(loaded)
    return builders.BuildResult(tuple(written), figures, tally.contents(_documents(paths, loaded)))


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
        if unit.format != sources.TEXT or opening.suffixes(unit.location)[1]:
            raise ValueError(
                f"input {unit.location} is not a plain text file; algorithm exact is the released "
                "script, which reads nothing else: convert it, or use --algorithm=fast"
            )
    return [unit.location for unit in units]


@dataclasses.dataclass(frozen=True)
class ExactExamples:
    """All examples; iterating gives them as batches of arrays [rows, ...], in the released order.

    `corpus` is the text as it was read. Example i, as drawn, is masked at its tokens
    `chosen[ends[i - 1] : ends[i]]`, where `replacements` stand then (the size of the vocabulary:
    the token itself). `order` lists the examples as the last shuffle left them.
    """

    corpus: examples.Corpus
    spans: examples.Spans
    ends: Int[np.ndarray, " examples"]
    chosen: Int[np.ndarray, " masks"]
    replacements: Int[np.ndarray, " masks"]
    order: Int[np.ndarray, " examples"]
    vocabulary: tokenizer.Tokenizer
    options: Options
    batch_size: int = shards.ROWS_PER_BATCH

    @property
    def num_examples(self) -> int:
        """The number of examples of all passes."""
        return len(self.order)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        for start in range(0, self.num_examples, self.batch_size):
            yield self._batch(self.order[start : start + self.batch_size])

    def _batch(self, numbers: Int[np.ndarray, " rows"]) -> dict[str, np.ndarray]:
        spans, vocabulary = self.spans[numbers], self.vocabulary
        length = self.options.max_seq_length
        frame = examples.Frame(length, vocabulary.cls_id, vocabulary.sep_id, _PAD_ID)
        batch = examples.rows(self.corpus.tokens, spans, frame)
        batch |= self._masks(batch["input_ids"], numbers, spans["length_a"].astype(np.int64))
        batch[records.PAIR_FEATURE] = spans["label"].astype(np.int32)[:, None]
        return batch

    def _masks(
        self,
        input_ids: Int[np.ndarray, "rows length"],
        numbers: Int[np.ndarray, " rows"],
        length_a: Int[np.ndarray, " rows"],
    ) -> dict[str, np.ndarray]:
        """Returns masked `input_ids` and the masks, by ascending position, as in the records."""
        begins = np.where(numbers > 0, self.ends[numbers - 1], 0)[:, None]
        slots = np.arange(self.options.max_predictions_per_seq)
        used = slots < self.ends[numbers][:, None] - begins
        source = np.where(used, begins + slots, 0)
        chosen = self.chosen[source].astype(np.int64)
        # Past [CLS], and tokens of B past the [SEP] between; unused slots go last.
        positions = chosen + np.where(chosen < length_a[:, None], 1, 2)
        positions = np.where(used, positions, self.options.max_seq_length)
        ascending = np.argsort(positions, axis=1)
        positions = np.take_along_axis(positions, ascending, axis=1)
        positions = np.where(used, positions, 0)
        originals = np.take_along_axis(input_ids, positions, axis=1)
        drawn = np.take_along_axis(self.replacements[source], ascending, axis=1)
        drawn = np.where(drawn == self.vocabulary.vocab_size, originals, drawn)
        masked = input_ids.copy()
        rows, places = np.nonzero(used)
        masked[rows, positions[rows, places]] = drawn[rows, places]
        return {
            "input_ids": masked,
            "masked_lm_positions": positions.astype(np.int32),
            "masked_lm_ids": np.where(used, originals, 0).astype(np.int32),
            "masked_lm_weights": used.astype(np.float32),
        }


def batches(
    paths: Sequence[epath.PathLike], vocabulary: tokenizer.Tokenizer, options: Options
) -> ExactExamples:
    """Returns the examples that the released script makes of these files, vocabulary and options.

    The files hold a sentence per line; empty lines end documents, ends of files do not.
    """
    corpus = _read_corpus(paths, vocabulary)
    rng = random.Random(options.random_seed)
    documents = array.array("q", range(corpus.num_documents))
    shuffle(rng, documents, len(documents))
    # Python's rounding of halves to even numbers is the released one, too.
    num_masked = [
        min(options.max_predictions_per_seq, max(1, int(round(length * options.masked_lm_prob))))
        for length in range(options.max_seq_length + 1)
    ]
    if options.mask == "whole_word":
        choose = _word_chooser(corpus.tokens, vocabulary.continues_word, num_masked, rng)
    else:
        choose = _token_chooser(num_masked, rng)
    pairs = _pairs(corpus, documents, options, rng)
    drawn = _draw(pairs, choose, vocabulary, options.max_seq_length, rng)
    order = array.array("q", range(len(drawn[0])))
    shuffle(rng, order, len(order))
    return ExactExamples(corpus, *drawn, np.asarray(order), vocabulary, options)


def _read_corpus(
    paths: Sequence[epath.PathLike], vocabulary: tokenizer.Tokenizer
) -> examples.Corpus:
    dtype = np.uint16 if vocabulary.vocab_size <= 1 << 16 else np.uint32
    tokens, lengths, documents = [], [], []
    num_breaks, before = 0, ""
    lines = iter(tqdm.tqdm(_lines(paths), "reading", unit=" lines", disable=None))
    while batch := list(itertools.islice(lines, _LINES_PER_BATCH)):
        texts = batch
        if vocabulary.keeps_blanks:
            texts = sentences.with_blanks(batch, [not line for line in (before, *batch[:-1])])
            before = batch[-1]
        ids, counts = vocabulary.encode_flat(texts)
        document = num_breaks + np.cumsum([not line for line in batch])
        num_breaks = document[-1]
        tokens.append(ids.astype(dtype))
        lengths.append(counts[counts > 0])
        documents.append(document[counts > 0])
    if not any(map(len, tokens)):
        names = ", ".join(map(str, paths))
        raise ValueError(f"the input {names} holds no token; check that it is text")
    changes = np.flatnonzero(np.diff(np.concatenate(documents))) + 1
    sentence_starts = np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64)
    return examples.Corpus(
        tokens=np.concatenate(tokens),
        sentence_starts=sentence_starts,
        document_starts=np.array([0, *changes, len(sentence_starts) - 1], np.int64),
    )


def _lines(paths: Sequence[epath.PathLike]) -> Iterator[str]:
    for path in paths:
        with epath.Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                # The TensorFlow reader of the released script drops all carriage returns.
                try:
                    yield line.replace(b"\r", b"").decode("utf-8").strip()
                except UnicodeDecodeError as error:
                    raise ValueError(
                        f"{path} is not UTF-8 in line {number} ({error.reason}); the released "
                        "script stops there too: mend the line, or skip it with --algorithm=fast"
                    ) from error


def _pairs(
    corpus: examples.Corpus, documents: Sequence[int], options: Options, rng: random.Random
) -> Iterator[Pair]:
    """Yields the pairs of all passes; the masks of each are to be drawn before the next."""
    starts = array.array("q", corpus.sentence_starts.tobytes())
    bounds = array.array("q", corpus.document_starts.tobytes())
    passes, budget = range(options.dupe_factor * len(documents)), options.max_seq_length - 3
    for number in tqdm.tqdm(passes, "pairing", unit=" documents", disable=None):
        index = number % len(documents)
        sentence, last = bounds[documents[index]], bounds[documents[index] + 1]
        target = budget
        if rng.random() < options.short_seq_prob:
            target = 2 + below(rng, budget - 1)
        while sentence < last:
            begin_a = starts[sentence]
            end = bisect.bisect_left(starts, begin_a + target, sentence + 1, last)
            count = end - sentence
            middle = end if count == 1 else sentence + 1 + below(rng, count - 1)
            is_random = count == 1 or rng.random() < 0.5
            if is_random:
                num_tokens = target - (starts[middle] - begin_a)
                other = documents[_random_index(index, len(documents), rng)]
                first_b = bounds[other] + below(rng, bounds[other + 1] - bounds[other])
                end_b = bisect.bisect_left(
                    starts, starts[first_b] + num_tokens, first_b + 1, bounds[other + 1]
                )
                sentence = middle  # The sentences that the partner replaces are used again.
            else:
                first_b, end_b = middle, end
                sentence = end
            begin_b = starts[first_b]
            lengths = starts[middle] - begin_a, starts[end_b] - begin_b
            yield (*_truncate(begin_a, begin_b, *lengths, budget, rng), int(is_random))


def _random_index(excluded: int, size: int, rng: random.Random) -> int:
    """Returns an index that is not `excluded`, if there was another one in ten draws."""
    for _ in range(_RANDOM_DOCUMENT_DRAWS):
        drawn = below(rng, size)
        if drawn != excluded:
            return drawn
    return excluded


def _truncate(
    begin_a: int, begin_b: int, length_a: int, length_b: int, budget: int, rng: random.Random
) -> tuple[int, int, int, int]:
    """Returns the pair without as many tokens as are too many, each from the longer segment."""
    draw = rng.random
    for _ in range(length_a + length_b - budget):
        from_front = draw() < 0.5
        if length_a > length_b:
            begin_a += from_front
            length_a -= 1
        else:
            begin_b += from_front
            length_b -= 1
    return begin_a, begin_b, length_a, length_b


def _token_chooser(num_masked: Sequence[int], rng: random.Random) -> Chooser:
    """Returns a chooser of single tokens; `num_masked` counts masks by the length with specials."""

    def choose(pair: Pair) -> list[int]:
        length = pair[2] + pair[3]
        tokens = list(range(length))
        front = num_masked[length + 3]
        shuffle(rng, tokens, front)
        return tokens[:front]

    return choose


def _word_chooser(
    tokens: Int[np.ndarray, " tokens"],
    continues_word: Bool[np.ndarray, " vocabulary"],
    num_masked: Sequence[int],
    rng: random.Random,
) -> Chooser:
    """Returns a chooser of whole words; those that would be too many are passed over.

    As released, a segment B that begins within a word makes one word with the last of A.
    """
    begins_word = (~continues_word)[tokens].tobytes()

    def choose(pair: Pair) -> list[int]:
        begin_a, begin_b, length_a, length_b, _ = pair
        length = length_a + length_b
        begins = (
            begins_word[begin_a : begin_a + length_a] + begins_word[begin_b : begin_b + length_b]
        )
        first, *others = range(length)
        bounds = [first, *itertools.compress(others, begins[1:]), length]
        words = list(range(len(bounds) - 1))
        shuffle(rng, words, len(words))
        count = num_masked[length + 3]
        chosen: list[int] = []
        for word in words:
            if len(chosen) >= count:
                break
            if len(chosen) + bounds[word + 1] - bounds[word] <= count:
                chosen.extend(range(bounds[word], bounds[word + 1]))
        return chosen

    return choose


def _draw(
    pairs: Iterator[Pair],
    choose: Chooser,
    vocabulary: tokenizer.Tokenizer,
    max_seq_length: int,
    rng: random.Random,
) -> tuple[examples.Spans, np.ndarray, np.ndarray, np.ndarray]:
    """Returns spans, ends, chosen and replacements of ExactExamples."""
    draw, mask_share = rng.random, masking.MASK_SHARE
    mask_id, size = vocabulary.mask_id, vocabulary.vocab_size
    spans = bytearray()
    ends = array.array("q")
    chosen = array.array("H" if max_seq_length < 1 << 16 else "I")
    replacements = array.array("H" if size < 1 << 16 else "I")
    for pair in pairs:
        for token in choose(pair):
            chosen.append(token)
            masked = draw() < mask_share
            # The size of the vocabulary stands for the token itself.
            replacements.append(mask_id if masked else size if draw() < 0.5 else below(rng, size))
        spans += _PACK_SPAN(*pair)
        ends.append(len(chosen))
    # Something for unused slots to point at, should no example have a mask.
    chosen.append(0)
    replacements.append(0)
    masks = np.asarray(ends), np.asarray(chosen), np.asarray(replacements)
    return np.frombuffer(spans, examples.SPAN), *masks


def shuffle(rng: random.Random, items: MutableSequence[int], front: int) -> None:
    """Shuffles in place as `rng.shuffle(items)` would; only the first `front` items are valid.

    The others may be lost, which saves half of the work.

    Source: CPython 3.11 to 3.14, Lib/random.py, Random.shuffle and _randbelow_with_getrandbits.
    """
    getrandbits = rng.getrandbits
    for bits, lasts in _steps(len(items), max(front, 1)):
        for last in lasts:
            place = getrandbits(bits)
            while place > last:
                place = getrandbits(bits)
            items[place] = items[last]
    for bits, lasts in _steps(min(front, len(items)), 1):
        for last in lasts:
            place = getrandbits(bits)
            while place > last:
                place = getrandbits(bits)
            items[last], items[place] = items[place], items[last]


def below(rng: random.Random, limit: int) -> int:
    """Returns what `rng.randrange(limit)` would.

    Source: CPython 3.11 to 3.14, Lib/random.py, _randbelow_with_getrandbits.
    """
    bits = limit.bit_length()
    drawn = rng.getrandbits(bits)
    while drawn >= limit:
        drawn = rng.getrandbits(bits)
    return drawn


@functools.lru_cache(maxsize=4096)
def _steps(size: int, stop: int) -> tuple[tuple[int, range], ...]:
    """Returns the last indices of a shuffle from `size` items down to `stop`, by bits to draw."""
    steps = []
    while size > stop:
        bits = size.bit_length()
        lowest = max(1 << (bits - 1), stop + 1)
        steps.append((bits, range(size - 1, lowest - 2, -1)))
        size = lowest - 1
    return tuple(steps)
