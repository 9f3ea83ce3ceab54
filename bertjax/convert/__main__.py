"""Weights from one format into another; the format of --from is recognized from its files.

python -m bertjax.convert --from=WORKDIR --to=DIR --license=apache-2.0
python -m bertjax.convert --from=DOWNLOADED_BERT --to=WORKDIR --format=bertjax
python -m bertjax.convert --from=WORKDIR --to=DIR --step=best --head=none
python -m bertjax.convert --from=ENCODER --to=DIR --sentence_pooling=mean
python -m bertjax.convert --from=WORKDIR --to=DIR --push_to=ORG/NAME --revision='step-{step}'
python -m bertjax.convert --from=WORKDIR --to=DIR --all_words
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from absl import flags, logging
from etils import epath

from bertjax.cli import command_line
from bertjax.convert import formats, hub, huggingface_write, model_card, pretrained, workdir
from bertjax.files import directories
from bertjax.models import pooling
from bertjax.workdirs import checkpoint, reader, trained_positions, word_marks

# A training checkpoint of TensorFlow has some 800 optimizer slots.
UNUSED_SHOWN = 10


def convert(
    source: epath.PathLike,
    target: epath.PathLike,
    *,
    format: str = "huggingface",
    head: str | None = None,
    step: str | int = checkpoint.NEWEST,
    ema: bool | None = None,
    license: str | None = None,
    dtype: str = "float32",
    sentence_pooling: str | None = None,
    sentence_normalize: bool | None = None,
    overwrite: bool = False,
    push: hub.Destination | None = None,
    words: int | None = None,
) -> None:
    """Reads the weights at `source` and writes the directory `target`.

    `head` is that of the model to write; None: the source's. `step` is that of a workdir, `ema` as
    in `reader.read`. With `sentence_pooling` any encoder is written as a model of sentence
    embeddings, without a head, its vectors of length 1 with `sentence_normalize`. `dtype` is that
    of `formats.write`. `push` is where the directory goes besides; it stays here. `words` is the
    mark that names its branch, by default the last one that the checkpoint reached.
    """
    source, target = epath.Path(source), epath.Path(target)
    is_huggingface = format == "huggingface"
    if license is not None and not is_huggingface:
        raise ValueError(f"--license goes into a model card, and --format={format} has none")
    if dtype != "float32" and not is_huggingface:
        raise ValueError(f"--dtype={dtype} is of exports; --format={format} has float32 alone")
    if push is not None and not is_huggingface:
        raise ValueError(f"--push_to takes --format=huggingface; it is {format}")
    if push is not None:
        hub.check(push, target)
    real = directories.real_path(source)
    if directories.real_path(target) in (real, *real.parents):
        raise ValueError(f"--to={target} is, or holds, the source {source}; give another directory")
    formats.output_of(target, overwrite=overwrite)  # checked before minutes of reading
    kind = formats.recognize(source)
    logging.info("Reading %s (%s)", source, kind)
    if kind == "bertjax":
        weights, run = _of_workdir(source, head, step, ema)
    else:
        weights, run = _of_files(source, kind, head, step, ema), None
    step_read = run.step if run else None
    reached = words or (run.word_mark if run else None)
    named = word_marks.label(reached) if reached else ""
    revision = hub.revision_of(push, step_read, named) if push else ""
    if sentence_pooling is not None or sentence_normalize is not None:
        weights = pretrained.for_sentences(weights, sentence_pooling, sentence_normalize)
    if unused := weights.unused:
        shown = ", ".join([*unused[:UNUSED_SHOWN], *["..."] * (len(unused) > UNUSED_SHOWN)])
        logging.warning("Not part of the model, and left behind: %d (%s)", len(unused), shown)
    has_card = is_huggingface and not weights.export_fault
    card = model_card.text(weights, run=run, license=license) if has_card else None
    formats.write(weights, target, format=format, card=card, dtype=dtype, overwrite=overwrite)
    if push is not None:
        title = "Weights" if step_read is None else f"Weights of step {step_read}"
        hub.push(target, push, revision=revision, title=title)


def convert_all(source: epath.PathLike, target: epath.PathLike, **options: Any) -> None:
    """Writes a directory in `target` for each checkpoint kept by words: chck_1M, chck_2M, ...

    `options` are those of `convert`, without a step.
    """
    newest = checkpoint.read_meta(source)
    marks = newest[0].get("word_marks", []) if newest else []
    if not marks:
        raise ValueError(
            f"--all_words takes the checkpoints that config.checkpoint.save_at_words keeps in a "
            f"workdir, and {source} holds none: leave it out"
        )
    if options.pop("step", checkpoint.NEWEST) != checkpoint.NEWEST:
        raise ValueError(
            "--all_words and --step each choose the checkpoints: leave one of them out"
        )
    if (push := options.get("push")) is not None and hub.WORDS not in push.revision:
        raise ValueError(
            f"--revision is {push.revision!r}, but --all_words pushes each checkpoint to a branch "
            "of its own: give --revision='chck_{words}'"
        )
    for mark, step in marks:
        directory = epath.Path(target) / f"chck_{word_marks.label(mark)}"
        convert(source, directory, step=step, words=mark, **options)


def _of_files(
    source: epath.Path, kind: str, head: str | None, step: str | int, ema: bool | None
) -> pretrained.Pretrained:
    """Returns weights that are not in a workdir."""
    if step != checkpoint.NEWEST:
        raise ValueError(f"--step={step} chooses a checkpoint of a workdir; {source} is none")
    if ema:
        raise ValueError(f"--ema takes the average that a run kept in a workdir; {source} is none")
    return formats.read(source, format=kind, head=head)


def _of_workdir(
    source: epath.Path, head: str | None, step: str | int, ema: bool | None
) -> tuple[pretrained.Pretrained, model_card.Run | None]:
    """Returns the weights of a workdir, and what it tells of its training."""
    found = reader.read(source, step=step, ema=ema)
    weights = workdir.weights_of(found)
    weights = weights if head is None else pretrained.select(weights, head)
    longest = weights.config.max_position_embeddings
    if weights.sentence and weights.sentence.max_seq_length:
        longest = min(weights.sentence.max_seq_length, longest)
    use = f"exporting {source} as a model of {longest} positions"
    trained_positions.warn_beyond(trained_positions.number(found), longest, use)
    return weights, model_card.read_run(found)


def _define_flags() -> None:
    flags.DEFINE_string("from", None, "Weights: a directory, or a file in it.", required=True)
    flags.DEFINE_string("to", None, "Directory to write.", required=True)
    flags.DEFINE_enum("format", "huggingface", [*formats.WRITERS], "Format to write.")
    flags.DEFINE_enum(
        "head", None, [*pretrained.PARTS], "Head of the model to write; without it the source's."
    )
    flags.DEFINE_string(
        "step", checkpoint.NEWEST, "Of a workdir, which checkpoint: newest, best, or a number."
    )
    flags.DEFINE_bool(
        "all_words",
        False,
        "Of a workdir, each checkpoint kept by words, to --to/chck_1M and so on.",
    )
    flags.DEFINE_bool(
        "ema", None, "Of a workdir, the average of the parameters; without it what was evaluated."
    )
    flags.DEFINE_string("license", None, "Of the weights, for the model card: apache-2.0, mit ...")
    flags.DEFINE_enum(
        "dtype", "float32", [*huggingface_write.DTYPES], "Type of the numbers in the export."
    )
    flags.DEFINE_enum(
        "sentence_pooling",
        None,
        [*pooling.POOLINGS],
        "Write a model of sentence embeddings, of any encoder; one that was trained for them is "
        "written as one without.",
    )
    flags.DEFINE_bool(
        "sentence_normalize", None, "Vectors of sentences have length 1; without it as trained."
    )
    flags.DEFINE_bool("overwrite", False, "Replace a directory of weights at --to.")
    flags.DEFINE_string(
        "push_to", None, "Repository of the Hugging Face Hub, ORG/NAME, that gets --to as a commit."
    )
    flags.DEFINE_string(
        "revision",
        hub.MAIN,
        "Its branch, made if missing; {step} is the step of the checkpoint, {words} the "
        "words at which it was kept.",
    )
    flags.DEFINE_bool("private", False, "A repository that is made is private.")


def main(argv: list[str]) -> None:
    """Converts as the flags say."""
    if len(argv) > 1:
        raise ValueError(f"{argv[1]!r} is not a flag; give --from=PATH --to=DIR")
    options = flags.FLAGS.flag_values_dict()  # "from" is not an attribute that Python would take
    names = ("format", "head", "step", "ema", "license", "dtype", "overwrite")
    names += ("sentence_pooling", "sentence_normalize")
    chosen = {name: options[name] for name in names}
    write = convert_all if options["all_words"] else convert
    write(options["from"], options["to"], **chosen, push=_destination(options))


def _destination(options: Mapping[str, Any]) -> hub.Destination | None:
    if options["push_to"] is not None:
        return hub.Destination(options["push_to"], options["revision"], options["private"])
    for name, default in (("revision", hub.MAIN), ("private", False)):
        if options[name] != default:
            raise ValueError(f"--{name}={options[name]} is of --push_to=ORG/NAME, which is missing")
    return None


if __name__ == "__main__":
    logging.set_verbosity(logging.INFO)
    _define_flags()
    command_line.run(main)
