"""Weights from one format into another; the format of --from is recognized from its files.

python -m bertjax.convert --from=WORKDIR --to=DIR --license=apache-2.0
python -m bertjax.convert --from=DOWNLOADED_BERT --to=WORKDIR --format=bertjax
python -m bertjax.convert --from=WORKDIR --to=DIR --step=best --head=none
python -m bertjax.convert --from=ENCODER --to=DIR --sentence_pooling=mean
python -m bertjax.convert --from=WORKDIR --to=DIR --push_to=ORG/NAME --revision='step-{step}'
python -m bertjax.convert --from=WORKDIR --to=DIR --all_words
"""

from __future__ import annotations

if __name__ == "__main__":
    from bertjax.cli import command_line, programs  # what follows takes seconds to import

    command_line.parse(programs.Convert, __doc__, logs=True)

import dataclasses
from typing import Any

from absl import logging
from etils import epath

from bertjax.cli import command_line, programs
from bertjax.convert import formats, hub, model_card, pretrained, workdir
from bertjax.files import directories
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
    card = None
    if (is_huggingface or weights.manifest is not None) and not weights.export_fault:
        card = model_card.text(weights, run=run, license=license, is_workdir=not is_huggingface)
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


def main(options: programs.Convert) -> None:
    """Converts as the options say."""
    chosen = dataclasses.asdict(options)
    write = convert_all if chosen.pop("all_words") else convert
    push_to, revision, private = map(chosen.pop, ("push_to", "revision", "private"))
    push = None if push_to is None else hub.Destination(push_to, revision, private)
    write(**chosen, push=push)


if __name__ == "__main__":
    command_line.run(main)
