"""The options of bertjax's programs, a dataclass each: flags, defaults, help, what goes with what.

They stand apart from the programs, which import JAX: a command line is parsed before that takes its
seconds. The choices are the keys of tables of the programs.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import ml_collections

from bertjax.cli import command_line, recipe_flag
from bertjax.options import run

LAYERS = ("last", "second_to_last", "last4", "sum4", "embeddings", "all")
POOLINGS = ("cls", "mean", "max", "weighted", "last")
VECTOR_FORMATS = ("npy", "parquet")
MASKINGS = ("token", "word_to_right")
READINGS = ("masked", "causal", "fused")
WEIGHT_FORMATS = ("bertjax", "huggingface")
DTYPES = ("float32", "float16", "bfloat16")
PROBES = ("devices", "workdir")
HEADS = (
    "pretraining",
    "masked_lm",
    "causal_lm",
    "replaced_tokens",
    "none",
    "next_sentence",
    "sequence_classification",
    "token_classification",
    "question_answering",
    "multiple_choice",
    "masked_autoencoder",
    "sequence_to_sequence",
)


def _recipe(default: str | None = None) -> ml_collections.ConfigDict:
    define = functools.partial(recipe_flag.define, default)
    default_of_field: Any = dataclasses.MISSING if default is None else None
    return command_line.option(recipe_flag.HELP, define=define, default=default_of_field)


def _batch_size(default: int, help_text: str) -> int:
    return command_line.option(
        help_text, default=default, at_least=1, at_most=command_line.MOST_ROWS
    )


def _input(excludes: str = "") -> list[str] | None:
    return command_line.option(
        "Files of texts, one a line, of JSON objects (.jsonl), or of sequences (FASTA, FASTQ), "
        "packed or not; without it standard input, or the arguments.",
        default=None,
        excludes=excludes,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes:
    """Options of a training on several hosts."""

    distributed: bool = command_line.option(
        "Several hosts; found on Cloud TPU, Slurm, GKE.", default=False
    )
    coordinator_address: str | None = command_line.option(
        "host:port of process 0, if not found.", default=None
    )
    num_processes: int | None = command_line.option("Number of hosts, if not found.", default=None)
    process_id: int | None = command_line.option("Number of this host, if not found.", default=None)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train(Processes):
    """Options of `bertjax.train`."""

    config: ml_collections.ConfigDict = _recipe()
    workdir: str = command_line.option("Directory of the run; resumed if it has a checkpoint.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finish(Processes):
    """Options of `bertjax.finish`."""

    run: str = command_line.option("Workdir of a run.", positional=True)
    workdir: str = command_line.option("Directory of the decay; empty: RUN_from_STEP.", default="")
    step: str = command_line.option(
        "Checkpoint to decay from: newest or a number.", default="newest"
    )
    decay_steps: int = command_line.option("Steps; 0: the recipe's decay.", default=0, at_least=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Glue:
    """Options of `bertjax.glue`."""

    config: ml_collections.ConfigDict = _recipe("glue")
    init_from: str = command_line.option("Weights: config.init_from.")
    data: str = command_line.option("Official files, or tfds:glue.")
    workdir: str = command_line.option("Each task has a directory in it.")
    tasks: list[str] | None = command_line.option(
        "Tasks to finetune; by default all of GLUE or the protocol.", default=None
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SavedModel:
    """Options of all programs that use a model."""

    checkpoint: str = command_line.option("Workdir of a training run.")
    step: str = command_line.option(
        "Which checkpoint: newest, best, or the number of one.", default="newest"
    )
    language: str = command_line.option(
        "Name of the language of the texts, for a model with embeddings of languages; by default "
        "the one that it was finetuned in.",
        default="",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluate(SavedModel):
    """Options of `bertjax.evaluate`."""

    data: str | None = command_line.option(
        "Records, or for a finetuned model a labelled file, or several: NAME=FILE,NAME=FILE.",
        default=None,
    )
    pairs: str | None = command_line.option(
        "Or minimal pairs, EWoK, COMPS or entity tracking: a file, packed or not, or a directory.",
        default=None,
    )
    parallel: str | None = command_line.option(
        "Or translations: SOURCE,TARGET lines, or a table; --language names both, as fr,en.",
        default=None,
    )
    masking: str | None = command_line.option(
        "What is masked in pairs: one token at a time (default), or with it the rest of its word.",
        choices=MASKINGS,
        needs="pairs",
        default=None,
    )
    reading: str = command_line.option(
        "How a hybrid model reads a text: masked (default), causal, or both added.",
        choices=("", *READINGS),
        needs="pairs",
        default="",
    )
    batch_size: int = _batch_size(64, "Sequences at a time, over all devices.")
    json: bool = command_line.option("Print one JSON object instead of a table.", default=False)

    def __post_init__(self) -> None:
        if [self.data, self.pairs, self.parallel].count(None) != 2:
            raise ValueError(
                "give one of --data (records or a labelled file), --pairs and --parallel"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predict(SavedModel):
    """Options of `bertjax.predict`."""

    checkpoint: str = command_line.option(
        "Workdir of a finetuning run, or of a converted model with a head."
    )
    input: list[str] | None = _input(excludes="records")
    batch_size: int = _batch_size(32, "Rows at a time, over all devices.")
    null_threshold: float | None = command_line.option(
        "SQuAD v2.0: no answer above it; without it the tuned one.", default=None
    )
    strict: bool = command_line.option("End at a line that cannot be used.", default=False)
    delimiter: str = command_line.option(
        "Standard input is CSV with a header, and this is between its columns: one character, tab, "
        "or auto to find it in the header; without it each line is JSON.",
        default="",
    )
    records: str | None = command_line.option(
        "Directory of records of values, in place of lines.", default=None
    )
    all_windows: bool = command_line.option(
        "Forecasts: of all windows of the records with their origins, not of the last window of "
        "each series and channel alone.",
        default=False,
        needs="records",
    )
    output: str = command_line.option(
        "Forecasts: a .csv file for them, in place of JSON lines.", default="", needs="records"
    )
    encoding: str = command_line.option(
        "Encoding of standard input, for example cp1251, cp932 or utf-16.", default="utf-8"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Search:
    """How texts are searched; without an option as the model was trained.

    The fields are named as in `models.generation.Search`.
    """

    beams: int | None = command_line.option(
        "Targets searched at a time; 1: the best token each time.", default=None
    )
    length_penalty: float | None = command_line.option(
        "Power of the length in the scores of beams.", default=None
    )
    early_stopping: str | None = command_line.option(
        "End when as many targets have ended as beams: true; when no other can become better at "
        "its length: false; or at any length: never.",
        choices=("false", "true", "never"),
        default=None,
    )
    no_repeat_ngram: int | None = command_line.option(
        "No n-gram of this size twice; 0: all may be.", default=None
    )
    min_new_tokens: int | None = command_line.option(
        "Least tokens of a text before its end.", default=None
    )
    max_length: int | None = command_line.option(
        "Most tokens of a text, its end included.", default=None
    )
    sampling: bool | None = command_line.option(
        "Draw tokens by their probability.", flag="sample", default=None
    )
    temperature: float | None = command_line.option(
        "Sampling: logits are divided by it.", default=None
    )
    top_k: int | None = command_line.option(
        "Sampling: only this number of the best tokens; 0: all.", default=None
    )
    top_p: float | None = command_line.option(
        "Sampling: only the best tokens that have this share.", default=None
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate(Search, SavedModel):
    """Options of `bertjax.generate`."""

    checkpoint: str = command_line.option(
        "Workdir of a finetuning run on pairs of texts, or a converted one."
    )
    batch_size: int = _batch_size(32, "Texts at a time, over all devices.")
    outputs: int = command_line.option("Texts of each line: the best beams, or draws.", default=1)
    seed: int = command_line.option("Sampling: other draws with another seed.", default=0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Vectors:
    """How texts become vectors; None stands for what the model was trained with.

    Other models get the mean of the tokens, not normalized, without a prompt.
    """

    layers: str = command_line.option(
        "Which layers' hidden states.", choices=LAYERS, default="last"
    )
    pooling: str | None = command_line.option(
        "How tokens become one vector; none: all tokens. By default as the model was trained for "
        "embeddings, or the mean.",
        choices=(*POOLINGS, "none"),
        default=None,
    )
    normalize: bool | None = command_line.option(
        "Vectors have length 1; by default as the model's do.", default=None
    )
    prompt: str | None = command_line.option(
        "Text put before each text; by default the model's own.", default=None
    )
    dims: int | None = command_line.option(
        "Number of first numbers of a vector to keep (Matryoshka); 0: all. By default as the model "
        "says.",
        default=None,
        at_least=0,
    )
    truncate: bool | None = command_line.option(
        "Cut texts that are too long; by default with --output.", default=None
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encode(Vectors, SavedModel):
    """Options of `bertjax.encode`."""

    checkpoint: str = command_line.option(
        "Workdir of a training run, or a directory of downloaded weights."
    )
    batch_size: int = _batch_size(32, "Texts at a time.")
    output: str | None = command_line.option(
        "Directory of vectors to write, or to resume.", default=None
    )
    input: list[str] | None = _input(excludes="records")
    text_column: str = command_line.option(
        "Field of JSON objects with the text.", needs="input", default="text"
    )
    id_column: str = command_line.option(
        "Field of JSON objects with an id, if they have one.", needs="input", default="id"
    )
    format: str = command_line.option(
        "Format of the vector files.", choices=VECTOR_FORMATS, needs="output", default="npy"
    )
    shard_size: int = command_line.option(
        "Texts in a file.", needs="output", default=65_536, at_least=1
    )
    store_texts: bool = command_line.option(
        "Write the texts as well.", needs="output", default=True
    )
    records: str | None = command_line.option(
        "Directory of records of values, in place of texts; vectors go to standard output.",
        excludes="output",
        default=None,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FillMask(SavedModel):
    """Options of `bertjax.fill_mask`."""

    sentences: tuple[str, ...] = command_line.option(
        "Texts with [MASK], in place of --input.", positional=True, default=()
    )
    input: list[str] | None = _input()
    num_candidates: int = command_line.option("Tokens per mask.", default=5, at_least=1)
    json: bool = command_line.option("Print one JSON object per sentence.", default=False)

    def __post_init__(self) -> None:
        if bool(self.sentences) == bool(self.input):
            raise ValueError("give texts with [MASK], or files of them with --input")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Score(SavedModel):
    """Options of `bertjax.score`."""

    checkpoint: str = command_line.option("Workdir of a pretraining run.")
    input: list[str] | None = _input()
    masking: str = command_line.option(
        "What is masked: one token at a time, or with it the rest of its word.",
        choices=MASKINGS,
        default="token",
    )
    reading: str = command_line.option(
        "How a hybrid model reads a text: masked (default), causal, or both added.",
        choices=("", *READINGS),
        default="",
    )
    batch_size: int = _batch_size(64, "Rows at a time, one for each token, over all devices.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Options of `bertjax.plan`."""

    config: ml_collections.ConfigDict | None = command_line.option(
        "",
        define=functools.partial(
            recipe_flag.define,
            takes_several=True,
            help_text=f"{recipe_flag.HELP} With --budget several, with commas between; a name "
            "alone is all sizes of a family.",
        ),
        default=None,
    )
    topology: str = command_line.option("v5e-16, v4-8, ..., a shape (v5e:4x4), cpu or gpu.")
    budget: str | None = command_line.option(
        "24h, 90m, 2d: list the tokens that it gives each recipe.", default=None
    )
    tokens_per_parameter: float = command_line.option(
        "That a model should see in --budget, for each parameter outside of embeddings.",
        needs="budget",
        default=100.0,
        at_least=0.0,
    )
    num_slices: int = command_line.option("Slices of that topology.", default=1, at_least=1)
    search: bool = command_line.option(
        "Find the largest batch that fits, and changes that help.",
        excludes="budget",
        default=False,
    )
    json: bool = command_line.option("Print one JSON object instead of text.", default=False)
    spot: bool = command_line.option("Price of spot chips only.", default=False)
    price_per_chip_hour: float | None = command_line.option(
        "Dollars, instead of the table's price.", default=None
    )
    vocab_size: int = command_line.option(
        "Where config.model.vocab_size is 0; 0: 30522.", default=0
    )
    num_examples: int = command_line.option(
        "Number of examples of finetuning, or of an epoch; 0: as the data has.",
        excludes="budget",
        default=0,
        at_least=0,
    )
    cache_dir: str | None = command_line.option(
        "Directory of compiled plans; default: in the user's cache.", default=None
    )
    workdir: str | None = command_line.option(
        "Write plan.json there: `train` compares with it.", excludes="budget", default=None
    )

    def __post_init__(self) -> None:
        if self.budget:
            return
        if not self.config:
            raise ValueError("--config must be given, or --budget; --help lists the flags")
        if len(recipe_flag.names()) > 1:
            raise ValueError("--config names several recipes; only --budget takes more than one")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Doctor:
    """Options of `bertjax.doctor`."""

    workdir: str = command_line.option(
        "Where a run would write: a directory or gs://BUCKET/DIR.", default="."
    )
    json: bool = command_line.option("One JSON object a line.", default=False)
    only: str | None = command_line.option(
        "One probe, in this process, as JSON.", choices=PROBES, default=None
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare:
    """Options of `bertjax.compare`."""

    workdirs: tuple[str, ...] = command_line.option("Workdirs of runs.", positional=True)
    output: str = command_line.option("HTML page to write; empty: none.", default="")
    references: str = command_line.option(
        "Folder of further reference curves of yours.", default=""
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Start:
    """Options of `bertjax.start`."""

    config: ml_collections.ConfigDict = _recipe("own")
    input: str = command_line.option(
        "Files and globs of text, as data_pipelines.build has them, or folders of such files."
    )
    output: str = command_line.option("Directory for all that is made.")
    hours: float = command_line.option(
        "Longest pretraining; 0: all steps of the recipe.",
        default=0.0,
        at_least=0,
        at_most=run.MOST_HOURS,
    )
    normalization: str = command_line.option(
        "Normalization of the text, as in train_vocabulary.", default="nfc"
    )
    vocabulary_size: int = command_line.option(
        "Entries; 0: by the length of the text.", default=0, at_least=0
    )
    encoding: str = command_line.option(
        "Encoding of the text, as in train_vocabulary; empty: UTF-8.", default=""
    )
    text_field: str = command_line.option("Text field of tables and JSON; empty: text.", default="")
    build_options: str = command_line.option(
        "More options of data_pipelines.build, one behind the other.", default=""
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convert:
    """Options of `bertjax.convert`."""

    source: str = command_line.option("Weights: a directory, or a file in it.", flag="from")
    target: str = command_line.option("Directory to write.", flag="to")
    format: str = command_line.option(
        "Format to write.", choices=WEIGHT_FORMATS, default="huggingface"
    )
    head: str | None = command_line.option(
        "Head of the model to write; without it the source's.", choices=HEADS, default=None
    )
    step: str = command_line.option(
        "Checkpoint of a workdir: newest, best, or a number.", default="newest"
    )
    all_words: bool = command_line.option(
        "Write each checkpoint of a workdir kept by words, to --to/chck_1M ...",
        default=False,
    )
    ema: bool | None = command_line.option(
        "Average of the parameters in a workdir; without it the evaluated ones.", default=None
    )
    license: str | None = command_line.option(
        "License of the weights, for the model card: apache-2.0, mit ...", default=None
    )
    dtype: str = command_line.option(
        "Type of the numbers in the export.", choices=DTYPES, default="float32"
    )
    sentence_pooling: str | None = command_line.option(
        "Write a model of sentence embeddings, of any encoder; one that was trained for them is "
        "written as one without.",
        choices=POOLINGS,
        default=None,
    )
    sentence_normalize: bool | None = command_line.option(
        "Vectors of sentences have length 1; without it as trained.", default=None
    )
    overwrite: bool = command_line.option("Replace a directory of weights at --to.", default=False)
    push_to: str | None = command_line.option(
        "Repository of the Hugging Face Hub, ORG/NAME, that gets --to as a commit.", default=None
    )
    revision: str = command_line.option(
        "Its branch, made if missing; {step} is the step of the checkpoint, {words} the words at "
        "which it was kept.",
        needs="push_to",
        default="main",
    )
    private: bool = command_line.option(
        "A repository that is made is private.", needs="push_to", default=False
    )
