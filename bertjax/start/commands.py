"""The commands from text to an exported model, and which of them are done.

Each is the command line of a program, so that what `bertjax start` does can be done by hand.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from bertjax import config as config_lib
from bertjax.files import atomic, directories, json_text
from bertjax.tokenization import wordpiece
from bertjax.workdirs import checkpoint, reader

OPTIONS_FILE = reader.START_FILE
RUN = "run"
# Options that the training alone reads: others may be given while there is no run.
OF_TRAINING = ("hours",)
# The hours count to the end of the export: these parts of them, and minutes at least, are left to
# what follows the training.
AFTER_TRAINING, LEAST_MINUTES, MOST_AFTER_TRAINING = 0.05, 1.0, 0.25
DEFAULT_LENGTH = 128  # of records, where the recipe takes it from them
# Records for a recipe that takes everything from them: single segments, several in a row, whose
# masks are drawn while training, so that one pass is enough.
OWN_RECORDS = ("--pair_objective=none", "--mask=none", "--packing=best_fit", "--dupe_factor=1")
# For such a recipe as well: enough of few documents are left to score.
OWN_SPLIT = ("--heldout_fraction=0.05",)


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of vocabulary, records and recipe; a second call must have the same ones.

    Empty `encoding` and `text_field` are the defaults of the programs that read the text.
    `build_options` are further options of data_pipelines.build, as one types them.
    """

    input: str
    recipe: str
    hours: float = 0.0
    normalization: str = "nfc"
    vocabulary_size: int = 0
    encoding: str = ""
    text_field: str = ""
    build_options: str = ""

    @property
    def reading(self) -> list[str]:
        """The options of all programs that read the text."""
        given = {"encoding": self.encoding, "text_field": self.text_field}
        return [f"--input={self.input}", *(f"--{name}={it}" for name, it in given.items() if it)]


@dataclasses.dataclass(frozen=True)
class Command:
    """A program with its arguments; it is done once the directory `made` exists.

    A command without one is run in every call.
    """

    module: str
    arguments: tuple[str, ...]
    made: pathlib.Path | None = None

    @property
    def is_done(self) -> bool:
        return self.made is not None and self.made.exists()

    @property
    def argv(self) -> list[str]:
        return [sys.executable, "-m", self.module, *self.arguments]

    @property
    def shown(self) -> str:
        """The command as one would type it."""
        return shlex.join(["python", "-m", self.module, *self.arguments])


def begin(output: pathlib.Path, options: Options) -> None:
    """Makes the directory, or compares the options with those that an earlier call stored."""
    names = {"vocabulary", RUN, "exported", "index.html", OPTIONS_FILE}
    names |= {path.name for pattern in ("train*", "heldout*") for path in output.glob(pattern)}
    directories.claim(output, "start", names, advice="give another --output")
    path, asked = output / OPTIONS_FILE, dataclasses.asdict(options)
    try:
        before = json_text.read_object(path) if path.exists() else asked
    except ValueError as error:
        raise ValueError(
            f"{path}, the options of the first call, cannot be read: remove it to continue with "
            f"the options of this call ({error})"
        ) from error
    has_run = (output / RUN).exists()
    changed = {
        name: f"--{'config' if name == 'recipe' else name} was {before.get(name)!r}, is {value!r}"
        for name, value in asked.items()
        if before.get(name) != value
        and (has_run or name not in OF_TRAINING)
        # The run decides its number of steps again.
        and not (name == "hours" and before.get(name) and value)
    }
    if not changed:
        return
    remedy = "Give those to continue it, or another --output"
    if set(changed) <= {*OF_TRAINING}:
        remedy = (
            "A run without hours takes all its steps, and cannot take a budget later. Give the "
            f"former value to continue it, or another --output; or remove {output / RUN} to train "
            "again on the same records"
        )
    raise ValueError(
        f"{output} was begun with other options: {'; '.join(changed.values())}. {remedy}"
    )


def store(output: pathlib.Path, options: Options) -> None:
    """Stores the options, once something was made with them."""
    text = json.dumps(dataclasses.asdict(options), indent=2, ensure_ascii=False)
    atomic.write(output / OPTIONS_FILE, text + "\n")


def before_training(
    output: pathlib.Path, options: Options, config: ml_collections.ConfigDict
) -> list[Command]:
    """Returns the commands that make the vocabulary and the records of a recipe."""
    vocabulary = output / "vocabulary"
    split_options = OWN_SPLIT if _is_open(config) else ()
    arguments = (
        *options.reading,
        f"--output={vocabulary}",
        "--kind=auto",
        f"--size={options.vocabulary_size}",
        f"--normalization={options.normalization}",
        *split_options,
    )
    made = vocabulary / wordpiece.CONFIG_FILE  # which is written last
    commands = [Command("data_pipelines.train_vocabulary", arguments, made)]
    lengths = _lengths(config)
    for split, length in [("train", each) for each in lengths] + [("heldout", lengths[-1])]:
        made = output / directory(split, length, lengths)
        arguments = (
            *options.reading,
            f"--vocabulary={vocabulary}",
            f"--split={split}",
            f"--output={made}",
            f"--max_seq_length={length}",
            *split_options,
            *_record_options(config),
            *shlex.split(options.build_options),
        )
        commands.append(Command("data_pipelines.build", arguments, made))
    return commands


def training(
    output: pathlib.Path,
    options: Options,
    config: ml_collections.ConfigDict,
    more: Sequence[str] = (),
) -> Command:
    """Returns the command that trains, with `more` options of the recipe."""
    lengths = _lengths(config)
    train = directory("train", "{max_seq_length}", lengths)
    arguments = [
        f"--config={options.recipe}",
        f"--workdir={output / RUN}",
        f"--config.data.train_dir={output / train}",
        f"--config.data.eval_dir={output / directory('heldout', lengths[-1], lengths)}",
        *([f"--config.budget.hours={_training_hours(options.hours):.4g}"] if options.hours else []),
    ]
    return Command("bertjax.train", (*arguments, *more))


def _training_hours(hours: float) -> float:
    """Returns the hours of training, without the time for scores, examples and the export."""
    after = max(AFTER_TRAINING * hours, LEAST_MINUTES / 60)
    return hours - min(after, MOST_AFTER_TRAINING * hours)


def after_training(
    output: pathlib.Path, config: ml_collections.ConfigDict, sentences: Sequence[str]
) -> list[Command]:
    """Returns the commands that evaluate, fill the masks of sentences, and export."""
    lengths, run, exported = _lengths(config), output / RUN, output / "exported"
    heldout = output / directory("heldout", lengths[-1], lengths)
    conversion = [f"--from={run}", f"--to={exported}"]
    is_old = exported.exists() and exported.stat().st_mtime < _last_save(run)
    if is_old:
        conversion.append("--overwrite")
    return [
        Command("bertjax.evaluate", (f"--checkpoint={run}", f"--data={heldout}")),
        Command("bertjax.fill_mask", (f"--checkpoint={run}", "--", *sentences)),
        Command("bertjax.convert", tuple(conversion), made=None if is_old else exported),
    ]


def _last_save(run: pathlib.Path) -> float:
    """Returns the time at which a run saved its last checkpoint, in seconds."""
    return (run / checkpoint.DIRECTORY).stat().st_mtime


def directory(split: str, length: int | str, lengths: Sequence[int]) -> str:
    """Returns the name of the records of a split: with their length where there are several."""
    return split if len(lengths) == 1 else f"{split}_{length}"


def _lengths(config: ml_collections.ConfigDict) -> list[int]:
    """Returns the lengths of the phases in ascending order, the last of which is evaluated."""
    if config.phases.phase1.max_seq_length is None:
        return [DEFAULT_LENGTH]
    return sorted({config.phases[it].max_seq_length for it in config_lib.phase_names(config)})


def _is_open(config: ml_collections.ConfigDict) -> bool:
    """Returns whether the recipe takes from the records how they are made."""
    return config.pretraining.masking is None


def _record_options(config: ml_collections.ConfigDict) -> Sequence[str]:
    options: Mapping[str, Any] = config.pretraining
    if _is_open(config):
        return OWN_RECORDS
    pairs = (f"--pair_objective={options['pair_loss']}",)
    return (*pairs, "--mask=none", "--dupe_factor=1") if options["masking"] == "dynamic" else ()
