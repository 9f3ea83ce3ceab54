"""The record format: TFRecord files of `tf.train.Example`, and their manifest.

The manifest describes a record: its features, each with a shape and a type. Those of text have the
names of the original BERT pipeline (google-research/bert, create_pretraining_data.py), so files
made there train here and files made here train there. Here belong names, dtypes, the decoding of
records, and the checks that a directory fits a run. Single files belong to `record_files`; order,
batching and shuffling to `streams`.

TensorFlow is imported by the functions that read records (`import_tensorflow`), so that writing
them, and importing this module (for the manifest, say), needs none.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from etils import epath
from jaxtyping import Float, Int

from bertjax.data import contents as contents_lib
from bertjax.data import encoding, value_statistics
from bertjax.files import atomic, hashed_files, json_text, opening
from bertjax.options import faults, schema

if TYPE_CHECKING:
    import tensorflow as tf

FORMAT_VERSION = 2
MANIFEST_FILE = "manifest.json"

TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")
# For rows of several sequences; `input_mask` follows from the last one.
PACKED_TOKEN_FEATURES = ("input_ids", "segment_ids", "sequence_ids")
MASK_FEATURES = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
PAIR_FEATURE = "next_sentence_labels"
# 1 where a token continues the word of the token before; for masks that are drawn while training.
WORDS_FEATURE = "continues_word"
WORD_COUNT_FEATURE = "word_count"  # of the words that begin in a row, as `str.split` has words
SENTENCES_FEATURE = "ends_sentence"  # 1 at a sentence's last token; for rows of whole sentences
LANGUAGE_FEATURE = "language"  # the number of a row's language, or of each token's
READ_BY_DRAWS = (WORDS_FEATURE, SENTENCES_FEATURE)  # and by no model
# Values of every position; which of them were observed; the positions that are to be predicted; and
# what stands in the place of the values meanwhile.
VALUES_FEATURE, OBSERVED_FEATURE = "values", "observed"
HIDDEN_FEATURE, SHOWN_FEATURE = "hidden", "shown_values"
LABELS_FEATURE = "labels"  # of a row: the number of its class, or numbers
LABELS_OBSERVED_FEATURE = "labels_observed"  # 1 for each step of a forecast that was observed
PIXELS_FEATURE = "pixels"  # of which the values are made as they are read
POSITIONS_FEATURE = "positions"  # of each token, where these do not follow from its place
# The weights of predictions; an evaluation sets them to 0 in the rows that fill its last batch.
WEIGHT_FEATURES = ("masked_lm_weights",)

# The first dimension of a feature that has values for every position of a row.
LENGTH = "length"
DTYPES = ("int32", "float32", "uint8")

# The first part of the shards' names, and so the name that tensorflow-datasets knows them by.
DATASET_NAME = "bert"

# No model reads more tokens in a row, and no vocabulary has more entries.
MOST_TOKENS, MOST_ENTRIES = 1 << 20, 1 << 28

LANGUAGE_FIGURES = ("documents", "tokens", "bytes", "examples")

CHECKSUM = "checksum"  # in the statistics of rows of values, which have no figures of text

# The fields that `Manifest.digest` hashes.
_READ = (
    *("format_version", "max_seq_length", "max_predictions_per_seq", "masked_lm_prob"),
    *("pair_objective", "seed", "max_sequences_per_row", "features"),
)
_TOKENIZER_READ = ("kind", "sha256", "vocab_size")
_FIGURES = (
    *("examples", "fill", "example_unknown_rate", "unigram_tokens", "unigram_entropy"),
    *("most_frequent_token_share", "vocabulary_used_share", "characters", "tokens", "sentences"),
)


@dataclasses.dataclass(frozen=True)
class Feature:
    """The array that a record holds under a name.

    The first dimension of `shape` is LENGTH where the feature has values for every position of a
    row; all others are numbers, and a shape without dimensions is a single number. `dtype` is the
    type in a batch, one of DTYPES; files hold int64, float32 and bytes.
    """

    shape: tuple[int | str, ...]
    dtype: str = "int32"

    @property
    def is_by_position(self) -> bool:
        return self.shape[:1] == (LENGTH,)

    def sizes(self, length: int) -> tuple[int, ...]:
        """Returns the shape in a row of `length` positions."""
        return tuple(length if size == LENGTH else int(size) for size in self.shape)


Features = Mapping[str, Feature]


def text_features(
    *,
    max_predictions_per_seq: int = 0,
    pair_objective: str = "none",
    max_sequences_per_row: int = 0,
    stores_words: bool = False,
    counts_words: bool = False,
    stores_sentence_ends: bool = False,
) -> dict[str, Feature]:
    """Returns the features of text, as in the released script or for rows of several sequences.

    Source: google-research/bert, create_pretraining_data.py, write_instance_to_example_files.
    """
    names = PACKED_TOKEN_FEATURES if max_sequences_per_row else TOKEN_FEATURES
    features: dict[str, Feature] = dict.fromkeys(names, Feature((LENGTH,)))
    if stores_words:
        features[WORDS_FEATURE] = Feature((LENGTH,))
    if stores_sentence_ends:
        features[SENTENCES_FEATURE] = Feature((LENGTH,))
    if counts_words:
        features[WORD_COUNT_FEATURE] = Feature(())
    if max_predictions_per_seq:
        features |= mask_features(max_predictions_per_seq)
    if pair_objective != "none":
        features[PAIR_FEATURE] = Feature((max_sequences_per_row,) * bool(max_sequences_per_row))
    return features


def mask_features(max_predictions_per_seq: int) -> dict[str, Feature]:
    """Returns the features of masked tokens, at most `max_predictions_per_seq` in a row."""
    shape = (max_predictions_per_seq,)
    return {
        name: Feature(shape, "float32" if name in WEIGHT_FEATURES else "int32")
        for name in MASK_FEATURES
    }


def value_features(width: int) -> dict[str, Feature]:
    """Returns the features of rows of values: `width` numbers a position, and which are there."""
    shape = (LENGTH, width)
    return {VALUES_FEATURE: Feature(shape, "float32"), OBSERVED_FEATURE: Feature(shape)}


def hidden_features(features: Features, are_exchanged: bool) -> dict[str, Feature]:
    """Returns the features that are drawn when values are read: masks and replacements."""
    shown = {SHOWN_FEATURE: features[VALUES_FEATURE]} if are_exchanged else {}
    return {HIDDEN_FEATURE: Feature((LENGTH,)), **shown}


@dataclasses.dataclass(frozen=True)
class Shard:
    """One TFRecord file: its name in the directory, its number of examples, its size in bytes."""

    file: str
    examples: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The contents of a record directory and the options that it was built with.

    Every record has the `features`; by default they are the features of text that the other
    fields imply (`text_features`). `tokenizer` is `tokenizer.Tokenizer.describe()`: kind, sha256,
    vocab_size and casing; {} for records without text.
    `max_predictions_per_seq` is 0 if no masks are stored and training draws them (dynamic).
    `pair_objective` is "nsp", "sop" or "none". `max_sequences_per_row` is 0 if a row is one
    example, with the features of the released script; else it is the most sequences of a row,
    numbered by `sequence_ids` (1, 2, ...; 0 is padding), each with a pair label. `statistics` is
    the health report with `unigram_entropy` in nats and `most_frequent_token_share`. `arguments`
    are the exact options of the program that wrote the records.

    `languages` has by name the documents, tokens, bytes and examples of each language, {} where the
    input names no language. Records in several languages have a record directory for each; a
    shard's file is then `LANGUAGE/FILE`. A record has the language of its shard.
    """

    tokenizer: Mapping[str, Any]
    max_seq_length: int
    max_predictions_per_seq: int
    masked_lm_prob: float
    pair_objective: str
    shards: tuple[Shard, ...]
    seed: int
    arguments: Mapping[str, Any]
    statistics: Mapping[str, Any]
    format_version: int = FORMAT_VERSION
    max_sequences_per_row: int = 0
    features: Features = dataclasses.field(default_factory=dict)
    languages: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.features:
            object.__setattr__(self, "features", self._text_features())

    def _text_features(self) -> dict[str, Feature]:
        return text_features(
            max_predictions_per_seq=self.max_predictions_per_seq,
            pair_objective=self.pair_objective,
            max_sequences_per_row=self.max_sequences_per_row,
        )

    @property
    def is_packed(self) -> bool:
        """Whether a row holds several sequences."""
        return self.max_sequences_per_row > 0

    @property
    def num_examples(self) -> int:
        """The number of examples in all shards."""
        return sum(shard.examples for shard in self.shards)

    @property
    def is_mixture(self) -> bool:
        """Whether the records are in several languages, with a directory of each."""
        return len(self.languages) > 1

    def shards_of(self, language: str) -> list[int]:
        """Returns the places of a language's shards among all."""
        if not self.is_mixture:
            return list(range(len(self.shards)))
        folder = f"{language}/"
        return [i for i, shard in enumerate(self.shards) if shard.file.startswith(folder)]

    @property
    def tokenizer_sha256(self) -> str | None:
        """The hash of the vocabulary, None for records without text."""
        return self.tokenizer.get("sha256")

    @property
    def position_features(self) -> tuple[str, ...]:
        """The features of a batch that have values for every position, the mask among them."""
        names = (name for name, feature in self.features.items() if feature.is_by_position)
        return tuple(dict.fromkeys((*names, "input_mask")))

    @property
    def has_static_masks(self) -> bool:
        """Whether masks are stored, not drawn at load time."""
        return self.max_predictions_per_seq > 0

    @functools.cached_property
    def category_counts(self) -> Float[np.ndarray, " columns"]:
        """The number of categories of each column of cells, inf for a column of numbers."""
        columns = self.statistics.get("columns", ())
        return np.array([len(it.get("categories", ())) or np.inf for it in columns])

    @functools.cached_property
    def digest(self) -> str:
        """The hash by which a resumed run recognizes its records.

        It covers the content that is read, its order and its figures, but neither the path of the
        directory nor the command that wrote it.
        """
        fields = self._to_json()
        read = {name: fields[name] for name in _READ}
        read["tokenizer"] = {name: self.tokenizer.get(name) for name in _TOKENIZER_READ}
        read["shards"] = [[shard.file, shard.examples, shard.bytes] for shard in self.shards]
        read["statistics"] = {name: self.statistics.get(name) for name in _FIGURES}
        if CHECKSUM in self.statistics:
            read[CHECKSUM] = self.statistics[CHECKSUM]
        if self.languages:
            read["languages"] = {name: dict(figures) for name, figures in self.languages.items()}
        return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()

    def save(self, directory: epath.PathLike) -> None:
        """Writes manifest.json into `directory`, which is made if missing, whole or not at all."""
        epath.Path(directory).mkdir(parents=True, exist_ok=True)
        content = json.dumps(self._to_json(), indent=2, sort_keys=True) + "\n"
        atomic.write(epath.Path(directory) / MANIFEST_FILE, content)

    def _to_json(self) -> dict[str, Any]:
        features = {name: [list(it.shape), it.dtype] for name, it in self.features.items()}
        fields = dataclasses.asdict(self) | {"features": features}
        if not self.languages:
            del fields["languages"]
        return fields

    @classmethod
    def load(cls, directory: epath.PathLike) -> Manifest:
        """Reads manifest.json.

        Raises:
          FileNotFoundError: if there is none.
          ValueError: if it is not a manifest, or one of another format version.
        """
        path = epath.Path(directory) / MANIFEST_FILE
        if not path.exists():
            if "," in os.fspath(directory):
                raise FileNotFoundError(
                    f"{directory} does not exist. If you mean several, a run reads one record "
                    "directory: build one from all inputs, --input='a/*.txt,b/*.txt'"
                )
            remedy = (
                "`python -m data_pipelines.build`, or give TFRecord files of the original BERT "
                "script a manifest with "
                "`python -m data_pipelines.inspect_records DIR --adopt --vocabulary=vocab.txt`"
            )
            if epath.Path(directory).is_file():
                fault = f"{directory} is a file, and records are a directory"
                raise FileNotFoundError(f"{fault}; make them with {remedy}")
            raise FileNotFoundError(f"{path} does not exist; make records with {remedy}")
        try:
            fields = json_text.loads(opening.read(path))
            version = fields["format_version"]
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a record manifest: {error!r}") from error
        except ValueError as error:
            raise ValueError(f"{path} is not a record manifest: {error}") from error
        if version != FORMAT_VERSION:
            raise ValueError(
                f"{path} has format_version {version}; this version of bertjax reads "
                f"{FORMAT_VERSION}: rebuild the records with `python -m data_pipelines.build`"
            )
        if found := [str(fault) for fault in _manifest_faults(fields)]:
            raise ValueError(f"{path} is not a record manifest: {'; '.join(found)}")
        try:
            fields["shards"] = tuple(Shard(**shard) for shard in fields["shards"])
            fields["features"] = {
                name: Feature(tuple(shape), dtype)
                for name, (shape, dtype) in fields["features"].items()
            }
            manifest = cls(**fields)
            manifest._check_text()
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} is not a record manifest: {error}") from error
        return manifest

    def _check_text(self) -> None:
        """Raises a ValueError where the features of text are not those that the fields imply."""
        if not self.tokenizer:
            return
        for name, feature in self._text_features().items():
            if self.features.get(name) != feature:
                raise ValueError(
                    f"the feature {name} is {self.features.get(name)}; max_predictions_per_seq, "
                    f"pair_objective and max_sequences_per_row ask for {feature}"
                )
        if MASK_FEATURES[0] in self.features and not self.has_static_masks:
            raise ValueError("max_predictions_per_seq is 0, but the features have masked tokens")


@dataclasses.dataclass(frozen=True)
class RecordSet:
    """A checked record directory, ready to be read."""

    directory: epath.Path
    manifest: Manifest

    @property
    def shard_paths(self) -> list[str]:
        """The shards' paths in the order of the manifest."""
        return [str(self.directory / shard.file) for shard in self.manifest.shards]

    @functools.cached_property
    def contents(self) -> contents_lib.RecordSummary | None:
        """The token counts and document hashes of contents.npz, None without that file.

        Raises:
          ValueError: if the file is damaged.
        """
        return contents_lib.load(self.directory)

    def check_unchanged(self) -> None:
        """Raises a ValueError if other records have taken the place of those that were opened.

        Their manifest is another: of other shards, options or figures. A copy, or a new time of the
        file, changes nothing.
        """
        try:
            content = (self.directory / MANIFEST_FILE).read_bytes()
            if content in self._manifests_read:
                return
            digest = Manifest.load(self.directory).digest
        except (OSError, ValueError):
            return  # half a copy, or a disk that is away: the next shard says so
        if digest != self.manifest.digest:
            raise ValueError(
                f"the records in {self.directory} are not those that the run began with: they were "
                "replaced while it read them. Put the first ones back and repeat the command, or "
                "begin a new run"
            )
        self._manifests_read.add(content)

    @functools.cached_property
    def _manifests_read(self) -> set[bytes]:
        return set()

    def of_language(self, language: str) -> RecordSet:
        """Returns the records of one language of several.

        Raises:
          ValueError: if its directory is damaged, or not the one that this manifest describes.
        """
        one = open(self.directory / language)
        expected = [self.manifest.shards[place] for place in self.manifest.shards_of(language)]
        found = [
            dataclasses.replace(it, file=f"{language}/{it.file}") for it in one.manifest.shards
        ]
        if found != expected:
            raise ValueError(
                f"records in {one.directory} are not those that {self.directory / MANIFEST_FILE} "
                "describes: copy the whole directory again, or build it again"
            )
        return one


def directory_of(template: str, max_seq_length: int) -> str:
    """Returns the directory of a length; of all that braces may say, {max_seq_length} alone."""
    return template.replace("{max_seq_length}", str(max_seq_length))


def open(
    directory: epath.PathLike, misfits: Callable[[Manifest], Iterable[str]] = lambda _: ()
) -> RecordSet:
    """Returns the record set in `directory` after checking that it is whole and fits its use.

    `misfits` yields why records with a manifest cannot be used. All faults found are reported at
    once. Content is checked when it is read (each record carries a checksum); here the files'
    presence and sizes are.

    Raises:
      FileNotFoundError: if there is no manifest.
      ValueError: if a shard is missing or has another size than the manifest says, or the records
        do not fit.
    """
    directory = epath.Path(directory)
    manifest = Manifest.load(directory)
    found = [*_shard_faults(directory, manifest), *misfits(manifest)]
    faults.check(f"records in {directory} cannot be used", found)
    return RecordSet(directory, manifest)


def _shard_faults(directory: epath.Path, manifest: Manifest) -> Iterable[str]:
    if not manifest.num_examples:
        yield "they hold no examples: build them from a larger corpus"
    for shard in manifest.shards:
        path = directory / shard.file
        if not path.exists():
            yield f"shard {shard.file} is missing: copy it again or rebuild the records"
        elif path.stat().length != shard.bytes:
            yield (
                f"shard {shard.file} has {path.stat().length} bytes, the manifest says "
                f"{shard.bytes}: it is truncated or of another build; copy it again or rebuild"
            )


def _manifest_faults(fields: Mapping[str, Any]) -> Iterator[ValueError]:
    """Yields values that no builder writes, before anything is read or allocated by them."""
    languages = fields.get("languages", {})
    folders = languages if isinstance(languages, dict) and len(languages) > 1 else {}
    files = functools.partial(_file_faults, folders=folders)
    count, tokens = schema.Whole(0), schema.Whole(0, MOST_TOKENS)
    found = list(
        schema.faults(
            {"languages": {}, **fields},
            {
                "max_seq_length": schema.Whole(1, MOST_TOKENS),
                "max_predictions_per_seq": tokens,
                "max_sequences_per_row": tokens,
                "seed": count,
                "tokenizer": {"vocab_size": schema.Whole(1, MOST_ENTRIES)}
                if fields.get("tokenizer")
                else {},
                "arguments": {},
                "statistics": {},
                "features": {"*": _feature_faults},
                "shards": [{"file": files, "examples": count, "bytes": count}],
                "languages": {"*": dict.fromkeys(LANGUAGE_FIGURES, count)},
            },
            "",
            is_whole=True,
        )
    )
    for name in languages if isinstance(languages, dict) else ():
        if not hashed_files.is_bare(name):
            found.append(faults.wrong("a language", name, "the name of a directory in this one"))
    yield from found
    if found:
        return
    for shard in fields["shards"]:
        name, examples, size = shard["file"], shard["examples"], shard["bytes"]
        if examples * encoding.FRAME_BYTES > size:
            yield ValueError(
                f"shard {name!r} has {examples:,} examples in {size:,} bytes; that is too few bytes"
            )
    if len({shard["file"] for shard in fields["shards"]}) < len(fields["shards"]):
        yield ValueError("a shard is named twice")
    yield from value_statistics.faults(fields)


def _feature_faults(feature: Any, name: str) -> Iterator[ValueError]:
    match feature:
        case [list(shape), dtype] if dtype in DTYPES:
            sizes = shape[1:] if shape[:1] == [LENGTH] else shape
            yield from schema.faults(sizes, [schema.Whole(1, MOST_TOKENS)], f"{name}.sizes")
        case _:
            must = f"a list of sizes, the first of them a number or {LENGTH!r}, and one of "
            yield faults.wrong(name, feature, must + ", ".join(DTYPES))


def _file_faults(file: Any, name: str, folders: Collection[str]) -> Iterator[ValueError]:
    folder, _, bare = file.rpartition("/") if isinstance(file, str) else ("", "", "")
    if not hashed_files.is_bare(bare) or not (folder in folders if folders else bare == file):
        where = " of one of its languages" if folders else ""
        yield faults.wrong(name, file, f"the name of a file in the directory{where}")


@functools.cache
def import_tensorflow() -> Any:
    """Returns the tensorflow module, which leaves accelerators to JAX."""
    # Before the import: it greets with several lines about its build.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    import tensorflow as tf

    tf.config.set_visible_devices([], "GPU")
    tf.config.set_visible_devices([], "TPU")
    return tf


def first_misfit(batch: Mapping[str, np.ndarray], manifest: Manifest) -> tuple[int, str] | None:
    """Returns the first row with a number outside its range, and a sentence about it.

    A look-up past the end of a table gives a NaN, or silently another entry.
    """
    length, sequences = manifest.max_seq_length, manifest.max_sequences_per_row
    classes = len(manifest.statistics.get("labels", {}).get("names", ())) or np.inf
    entries = manifest.tokenizer["vocab_size"] if manifest.tokenizer else np.inf
    of_vocabulary = (entries, f"the vocabulary has {entries} entries")
    limits = {
        "sequence_ids": (sequences + 1, f"a row has at most {sequences} sequences"),
        "input_ids": of_vocabulary,
        "masked_lm_ids": of_vocabulary,
        "masked_lm_positions": (length, f"it has {length} places"),
        PAIR_FEATURE: (2, "labels are 0 and 1"),
        LABELS_FEATURE: (classes, f"the classes are 0 to {classes - 1}"),
        WORDS_FEATURE: (2, "a token continues a word or does not: 0 and 1"),
        SENTENCES_FEATURE: (2, "a token ends a sentence or does not: 0 and 1"),
        WORD_COUNT_FEATURE: (length + 1, f"at most {length} words begin in {length} tokens"),
    }
    for name, feature in manifest.features.items():
        if name not in batch or not batch[name].size:
            continue
        rows = batch[name].reshape(len(batch[name]), -1)
        if feature.dtype == "float32":
            misfits, reason = ~np.isfinite(rows), "numbers must be finite"
            if name == VALUES_FEATURE and rows.shape[1] == len(manifest.category_counts):
                misfits |= rows >= manifest.category_counts
                reason += ", and categories below the number that the manifest has"
        else:
            limit, reason = limits.get(name, (np.inf, "they count from 0"))
            misfits = (rows < 0) | (rows >= limit)
        if misfits.any():
            row = int(np.flatnonzero(misfits.any(axis=1))[0])
            return row, f"{name} holds {rows[row][misfits[row]][0]}, but {reason}"
    return _misnumbered(batch)


def _misnumbered(batch: Mapping[str, np.ndarray]) -> tuple[int, str] | None:
    """Returns the first row whose sequences are not 1, 2, ... in their order, with padding last."""
    if "sequence_ids" not in batch:
        return None
    numbers = batch["sequence_ids"]
    steps = np.diff(numbers, axis=1, prepend=0)
    fits = (steps == 0) | ((steps == 1) & (np.cumsum(numbers == 0, axis=1) == 0)) | (numbers == 0)
    if fits.all() and (numbers[:, 0] == 1).all():
        return None
    row = int(np.flatnonzero(~fits.all(axis=1) | (numbers[:, 0] != 1))[0])
    return row, "sequence_ids are not 1, 2, ... one after the other with 0 behind them"


def sequence_ids(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the number of the sequence of each token, 0 at padding; in rows of one it is 1."""
    return batch["sequence_ids"] if "sequence_ids" in batch else batch["input_mask"]


def row_lengths(batch: Mapping[str, np.ndarray]) -> Int[np.ndarray, " rows"]:
    """Returns the number of tokens of each row."""
    return batch["input_mask"].sum(axis=1)


def parse_batch(serialized: tf.Tensor, manifest: Manifest) -> dict[str, tf.Tensor]:
    """Decodes a batch of serialized examples into int32 and float32 arrays [batch, ...].

    They are the features of the manifest, and `input_mask`: where the records have none it is 1
    wherever `sequence_ids` are not 0, or everywhere.
    """
    tf = import_tensorflow()
    length = manifest.max_seq_length
    parsed = tf.io.parse_example(
        serialized,
        {
            name: tf.io.FixedLenFeature([], tf.string)
            if feature.dtype == "uint8"
            else tf.io.FixedLenFeature(
                feature.sizes(length), tf.float32 if feature.dtype == "float32" else tf.int64
            )
            for name, feature in manifest.features.items()
        },
    )
    batch = {}
    for name, feature in manifest.features.items():
        if feature.dtype == "uint8":
            size = int(np.prod(feature.sizes(length)))
            flat = tf.io.decode_raw(parsed[name], tf.uint8, fixed_length=size)
            batch[name] = tf.reshape(flat, [-1, *feature.sizes(length)])
        else:
            batch[name] = tf.cast(parsed[name], feature.dtype)
    if manifest.is_packed:
        batch["input_mask"] = tf.cast(batch["sequence_ids"] != 0, tf.int32)
    elif "input_mask" not in batch:
        batch["input_mask"] = tf.ones([tf.size(serialized), length], tf.int32)
    return batch
