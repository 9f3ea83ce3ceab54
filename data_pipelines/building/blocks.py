"""Documents to blocks, blocks to arrays of tokens: the expensive step, done once for all passes.

A block is some megabytes of consecutive documents. Where it begins and ends depends on the files
and documents alone, so that everything keyed by block is the same on any number of processes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from bertjax.tokenization import letters, tokenizer
from data_pipelines.documents import cuts, segmenters, sentences, sources
from data_pipelines.objectives import examples
from data_pipelines.reports import by_script, losses, statistics

BLOCK_CHARACTERS = 2_000_000
# The memory of a document besides its text: a million empty ones make a large block.
DOCUMENT_CHARACTERS = 50
GROUP_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Where a tokenizer is, and which one it was when the work began.

    What other processes get in its place; see `of`.
    """

    path: str
    do_lower_case: bool | None
    sha256: str
    vocab_size: int

    @classmethod
    def of(cls, path: str, do_lower_case: bool | None) -> Vocabulary:
        """Returns the vocabulary at `path` as it is now; errors are those of `tokenizer.load`."""
        vocabulary = tokenizer.load(path, lowercase=do_lower_case)
        return cls(path, do_lower_case, vocabulary.describe()["sha256"], vocabulary.vocab_size)

    def load(self) -> tokenizer.Tokenizer:
        """Returns the tokenizer, in each process the same object: it remembers words."""
        return _load(self)


@dataclasses.dataclass(frozen=True)
class Tokenization:
    """How text becomes tokens.

    `separate_documents` puts a [SEP] after every document, for segments that cross documents.
    `longest_sentence` is in tokens, for text whose sentence ends no rule knows; 0: no text is cut.
    """

    vocabulary: Vocabulary
    sentence_splitter: str = "rules"
    separate_documents: bool = False
    longest_sentence: int = 0
    segmenter: str = segmenters.BY_VOCABULARY
    counts_words: bool = False
    stores_sentence_ends: bool = False

    @property
    def token_dtype(self) -> np.dtype:
        """The type of the corpus's tokens, with the marks that `examples` adds to them."""
        has_marks = self.stores_words or self.counts_words or self.stores_sentence_ends
        return token_dtype(self.vocabulary, has_marks)

    @property
    def stores_words(self) -> bool:
        """Whether a segmenter finds the words."""
        return self.segmenter != segmenters.BY_VOCABULARY


def token_dtype(vocabulary: Vocabulary, has_marks: bool) -> np.dtype:
    """Returns the type of the corpus's tokens, half as large where the vocabulary allows it."""
    is_small = vocabulary.vocab_size <= 2**16 and not has_marks
    return np.dtype(np.uint16 if is_small else np.uint32)


@dataclasses.dataclass(frozen=True)
class TokenizedBlock:
    """The tokens of a block (positions count from its beginning), and what was seen on the way."""

    corpus: examples.Corpus
    tally: statistics.CorpusTally
    log: sources.Log


def groups(units: Sequence[sources.Unit]) -> list[tuple[sources.Unit, ...]]:
    """Returns the units in runs of at least `GROUP_BYTES`, but for the last.

    No block crosses from one group to the next, so that machines can read groups independently;
    files that are smaller than a block share one.
    """
    runs: list[tuple[sources.Unit, ...]] = []
    begin = size = 0
    for end, unit in enumerate(units, start=1):
        size += unit.bytes
        if size >= GROUP_BYTES or end == len(units):
            runs.append(tuple(units[begin:end]))
            begin, size = end, 0
    return runs


def group_blocks(
    group: Sequence[sources.Unit],
    reading: sources.Reading,
    log: sources.Log,
    filtered: Callable[[Iterator[sources.Document]], Iterator[sources.Document]] = iter,
) -> Iterator[list[sources.Document]]:
    """Yields the blocks of one group's documents, of those that `filtered` leaves."""
    documents = (document for unit in group for document in sources.read_unit(unit, reading, log))
    return text_blocks(filtered(documents))


def text_blocks(documents: Iterable[sources.Document]) -> Iterator[list[sources.Document]]:
    """Yields the documents in lists of at least `BLOCK_CHARACTERS`, but for the last."""
    block: list[sources.Document] = []
    characters = 0
    for document in documents:
        block.append(document)
        characters += len(document.text) + DOCUMENT_CHARACTERS
        if characters >= BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block


def digest(block: Sequence[sources.Document]) -> str:
    """Returns a hash of ids and texts: equal for blocks that become the same tokens."""
    content = hashlib.blake2b(digest_size=16)
    for document in block:
        for part in (document.id, document.markup, document.text):
            content.update(part.encode("utf-8", "surrogatepass"))
            content.update(b"\0")
    return content.hexdigest()


def tokenize(block: Sequence[sources.Document], how: Tokenization) -> TokenizedBlock:
    """Returns the tokens of a block; sentences and documents without any are dropped."""
    vocabulary = how.vocabulary.load()
    splitter = sentences.splitter(how.sentence_splitter)
    log = sources.Log()
    texts = [sources.prose(document, log) for document in block]
    split = [sentences.split_document(text, splitter) for text in texts]
    flat = [one for document in split for one in document]
    if vocabulary.keeps_blanks:
        flat = sentences.with_blanks(flat, [not place for it in split for place in range(len(it))])
    begins = None
    if how.counts_words:
        tokens, lengths, begins = vocabulary.encode_with_words(flat)
        begins[_first_tokens(lengths, sentences.are_inside_words(texts, split))] = False
    else:
        tokens, lengths = vocabulary.encode_flat(flat)
    scripts_seen = by_script.counted(vocabulary, flat, tokens, lengths)
    continues = None
    if how.stores_words:
        segment = segmenters.segmenter(how.segmenter)
        continues = segmenters.continuing(flat, lengths, vocabulary, segment)

    sentence_ends = np.cumsum(lengths)[lengths > 0] - 1
    document_of = np.repeat(np.arange(len(split)), [len(document) for document in split])
    num_uncut = len(lengths)
    is_text = vocabulary.kind != tokenizer.IntegerTokenizer.kind
    if how.longest_sentence and is_text:  # Ids have no sentences.
        lengths, document_of = cuts.cut(
            flat, lengths, document_of, vocabulary, how.longest_sentence
        )
    num_cuts = len(lengths) - num_uncut
    is_real = lengths > 0
    lengths, document_of = lengths[is_real], document_of[is_real]
    counts = np.bincount(document_of, minlength=len(split))
    lost = losses.LostMarks.of(vocabulary)
    if lost:
        for text in texts:
            lost.add(text)
    tally = statistics.CorpusTally.of(
        documents=texts,
        sentences_per_document=counts,
        sentence_lengths=lengths,
        tokens=tokens,
        unk_id=vocabulary.unk_id,
        lost=lost,
        sentence_cuts=num_cuts,
        is_text=is_text,
        scripts_seen=scripts_seen,
        unknown_letters=letters.unknown("".join(texts), vocabulary),
    )
    counts = counts[counts > 0]
    if continues is not None:
        tokens = tokens + np.where(continues, examples.CONTINUES, 0)
    if begins is not None:
        tokens = tokens + begins.astype(np.int32) * np.int32(examples.BEGINS)
    if how.stores_sentence_ends:
        tokens = tokens.astype(np.int32)
        tokens[sentence_ends] += examples.ENDS
    if how.separate_documents:
        tokens, lengths = _with_separators(tokens, lengths, counts, vocabulary.sep_id)
    corpus = examples.Corpus(
        tokens=tokens.astype(how.token_dtype),
        sentence_starts=examples.starts(lengths),
        document_starts=examples.starts(counts),
    )
    return TokenizedBlock(corpus, tally, log)


@functools.lru_cache(maxsize=1)
def _load(vocabulary: Vocabulary) -> tokenizer.Tokenizer:
    loaded = tokenizer.load(vocabulary.path, lowercase=vocabulary.do_lower_case)
    if loaded.describe()["sha256"] != vocabulary.sha256:
        raise ValueError(
            f"the vocabulary {vocabulary.path} changed while it was used; run the command again"
        )
    return loaded


def _first_tokens(lengths: np.ndarray, is_chosen: np.ndarray) -> np.ndarray:
    """Returns the places of the first tokens of the chosen sentences, of those that have any."""
    return (np.cumsum(lengths) - lengths)[is_chosen & (lengths > 0)]


def _with_separators(
    tokens: np.ndarray, lengths: np.ndarray, counts: np.ndarray, sep_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns tokens and sentence lengths with a separator ending each document's last sentence."""
    last_sentences = np.cumsum(counts) - 1
    ends = np.cumsum(lengths)[last_sentences]
    longer = lengths.copy()
    longer[last_sentences] += 1
    return np.insert(tokens, ends, sep_id), longer
