"""The README.md of an exported model, written from the files of its run.

Its owner adds what no file has: intended uses, risks and limits.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_collections

from bertjax import __version__
from bertjax import config as config_lib
from bertjax.convert import heads, pretrained, sentence_transformers
from bertjax.data import records, value_statistics
from bertjax.models import encoder_config, sentence_vectors
from bertjax.workdirs import reader, scalars

SHIFTED = (
    "**Shifted by one.** The logits of a masked token are at the position before it, not at its "
    "own: a plain fill-mask pipeline gives the token after the mask. `python -m bertjax.fill_mask` "
    "reads `masked_lm_shift` of config.json. The same weights read from left to right are written "
    "by `python -m bertjax.convert --head=causal_lm`."
)


@dataclasses.dataclass(frozen=True)
class Run:
    """The record of a training in its workdir.

    `manifests` has the records' manifests by phase, and is empty if they are missing. `scores` maps
    the names of metrics.jsonl (eval/...) to the last value, at step `scores_step`. `teacher_sha256`
    is the hash of a teacher's parameters, "" without one. `words` and `epochs` are the numbers seen
    by then, 0 if not counted; `word_mark` is the last mark that the step reached.
    """

    config: ml_collections.ConfigDict
    step: int
    manifests: Mapping[str, records.Manifest]
    scores: Mapping[str, float | None]
    scores_step: int | None
    teacher_sha256: str = ""
    words: int = 0
    epochs: float = 0.0
    word_mark: int | None = None


def read_run(workdir: reader.Description) -> Run | None:
    """Returns the record of a workdir's training; None if it was converted."""
    if "converted" in workdir.meta:
        return None
    lines = scalars.read(workdir.directory / scalars.FILE)
    scores_step, found = scalars.last_evaluation(lines, until_step=workdir.step)
    scores = {name.removeprefix("eval/"): value for name, value in found.items()}
    marks = workdir.meta.get("word_marks", [])
    return Run(
        workdir.config,
        workdir.step,
        {phase: it.manifest for phase, it in reader.training_records(workdir).items()},
        scores,
        scores_step,
        teacher_sha256=workdir.meta.get("teacher_sha256", ""),
        words=workdir.meta.get("words", 0),
        epochs=workdir.meta.get("epochs") or 0.0,
        word_mark=max((mark for mark, step in marks if step == workdir.step), default=None),
    )


def text(
    weights: pretrained.Pretrained,
    *,
    run: Run | None = None,
    license: str | None = None,
    is_workdir: bool = False,
) -> str:
    """Returns the model card: front matter that the hub reads, then Markdown.

    The card of a workdir is one of a model of values, which may belong to no family of weights.
    """
    parts = [*_front_matter(weights, license, is_workdir), "", "# Model card", ""]
    title = "model of values" if is_workdir else weights.family.title
    article = "An" if title[0] in "AEIOU" else "A"
    # Cards are published, so they name no path of the source. A generator is not counted.
    of_class = (weights.head, weights.config.pooler)
    params = weights.params.items()
    count = sum(x.size for path, x in params if is_workdir or heads.is_of_class(path, *of_class))
    parts += [f"{article} {title} with {count:,} parameters, written by bertjax {__version__}."]
    parts += ["", *_sizes(weights)]
    if weights.manifest is not None:
        parts += ["", "## Values", "", *_values(weights.manifest)]
    if weights.is_shifted:
        parts += ["", SHIFTED]
    if weights.sentence is not None:
        parts += ["", *_sentence_vectors(weights, weights.sentence)]
    if run is not None:
        parts += ["", "## Training", "", *_training(run), "", "## Data", "", *_data(run)]
        parts += ["", "## Scores", "", *_scores(run)]
    else:
        parts += ["", "The weights were converted; their source describes the training."]
    parts += ["", "## License", "", license or "No license was given with these weights."]
    return "\n".join(parts) + "\n"


def _front_matter(
    weights: pretrained.Pretrained, license: str | None, is_workdir: bool
) -> Iterator[str]:
    is_of_sentences = weights.sentence is not None
    library = "sentence-transformers" if is_of_sentences else "transformers"
    yield "---"
    yield f"library_name: {'bertjax' if is_workdir else library}"
    pipeline = "sentence-similarity" if is_of_sentences else heads.HEADS[weights.head].pipeline
    if weights.is_shifted:
        pipeline = "feature-extraction"  # fill-mask would return the token after
    yield f"pipeline_tag: {pipeline}"
    yield f"tags:\n- {'values' if is_workdir else weights.family.model_type}\n- bertjax"
    if is_of_sentences:
        yield "- sentence-transformers\n- feature-extraction"
    if license is not None and re.fullmatch(r"[a-z0-9][a-z0-9.-]*", license.lower()):
        yield f"license: {license.lower()}"
    elif license is not None:
        yield f"license: other\nlicense_name: {json.dumps(license)}"
    yield "---"


def _sizes(weights: pretrained.Pretrained) -> list[str]:
    config, vocabulary = weights.config, weights.vocabulary
    rows = [
        ("layers", config.num_hidden_layers),
        ("hidden size", config.hidden_size),
        ("attention heads", config.num_attention_heads),
        ("intermediate size", config.intermediate_size),
        ("activation", config.hidden_act),
        ("longest input", f"{config.max_position_embeddings} {_unit(config.embeddings)}"),
    ]
    if weights.decoder is not None:
        rows.insert(1, ("layers of the decoder", weights.decoder.num_hidden_layers))
    if config.num_hidden_groups:
        rows.insert(1, ("layers stored", config.num_groups * config.inner_group_num))
    if vocabulary is not None:
        described = vocabulary.describe()
        casing = "lowercase" if described["lowercase"] else "cased"
        casing += f", {described['normalization']}" if "normalization" in described else ""
        rows.append(("vocabulary", f"{described['kind']}, {vocabulary.vocab_size}, {casing}"))
        rows.append(("vocabulary SHA-256", f"`{described['sha256']}`"))
    return _table(("", ""), rows)


def _unit(embeddings: str) -> str:
    return "tokens" if embeddings in encoder_config.OF_TOKENS else "positions"


def _values(manifest: records.Manifest) -> Iterator[str]:
    """Yields the scales and classes of values and labels, and how pictures become pixels."""
    facts = manifest.statistics
    scales = zip(facts.get("channel_means", ()), facts.get("channel_deviations", ()), strict=True)
    shades = [
        {"name": f"channel {at}", "mean": a, "deviation": b} for at, (a, b) in enumerate(scales)
    ]
    rows = [*facts.get("channels", ()), *facts.get("columns", ()), *shades]
    rows += [{"name": "the labels", **facts["labels"]}] if "labels" in facts else []
    described = [
        (it["name"], value_statistics.described(it)) for it in rows if it.get("kind") != "none"
    ]
    yield from _table(("", ""), described)
    if records.PIXELS_FEATURE in manifest.features:
        height, width, _ = manifest.features[records.PIXELS_FEATURE].shape
        yield ""
        yield (
            f"Bicubic filters make a picture as small as {height} x {width} pixels allow, and its "
            "middle is read. Pixels, from 0 to 1, are scaled as above."
        )
    if limits := facts.get("pixel_range"):
        yield (
            f"In pictures of more than 8 bits {limits[0]:g} became 0 and {limits[1]:g} became 255. "
            "Processors of transformers read 8 bits: do this before."
        )


def _sentence_vectors(
    weights: pretrained.Pretrained, vectors: sentence_vectors.SentenceVectors
) -> Iterator[str]:
    """Yields the description of sentence vectors, and an example."""
    yield "## Vectors of sentences"
    yield ""
    size = weights.config.hidden_size
    yield from _table(("", ""), sentence_transformers.described(vectors, size))
    yield _USE_OF_VECTORS


_USE_OF_VECTORS = """
```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("PATH")
queries = model.encode_query(["a question"])
documents = model.encode_document(["a text", "another text"])
print(model.similarity(queries, documents))
```"""


def _training(run: Run) -> Iterator[str]:
    config, optimizer, schedule = run.config, run.config.optimizer, run.config.schedule
    phases = {name: config.phases[name] for name in config_lib.phase_names(config)}
    steps = sum(phase.num_steps for phase in phases.values())
    seen = f" Seen: {run.epochs:.3g} epochs" if run.epochs else ""
    seen += f", {run.words:,} words" if run.words else ""
    yield f"Step {run.step:,} of {steps:,}, seed {config.seed}.{seen and f'{seen}.'}"
    yield ""
    names = (
        "phase",
        "steps",
        "sequences per step",
        f"{_unit(config.model.embeddings)} per sequence",
    )
    batch = {name: it.global_batch_size or config.global_batch_size for name, it in phases.items()}
    rows = [
        (name, f"{phase.num_steps:,}", batch[name], phase.max_seq_length)
        for name, phase in phases.items()
    ]
    yield from _table(names, rows)
    yield ""
    if config.task == "finetuning":
        yield f"- finetuned: {_finetuned_with(config.finetuning)}"
    else:
        options = config.pretraining
        objective = options.objective.replace("_", " ")
        yield f"- objective: {objective}, pair loss {options.pair_loss}, masks {options.masking}"
    if config.distillation.teacher:
        yield f"- taught: {_taught_by(run)}"
    yield (
        f"- optimizer: {optimizer.name}, beta1 {optimizer.beta1:g}, beta2 {optimizer.beta2:g}, "
        f"epsilon {optimizer.eps:g}, weight decay {optimizer.weight_decay:g}, "
        f"gradient norm clipped at {optimizer.clip_norm:g}"
    )
    share = schedule.warmup_share
    warmup = f"{share:.0%} of the steps" if share else f"{schedule.warmup_steps:,} steps"
    yield (
        f"- learning rate: peak {schedule.peak_learning_rate:g} after {warmup}, "
        f"{schedule.name} decay"
    )
    yield f"- matrix products in {config.model.dtype}, parameters in float32"


def _finetuned_with(options: ml_collections.ConfigDict) -> str:
    parts = [f"{options.num_epochs:g} epochs", f"inputs of at most {options.max_seq_length} tokens"]
    if options.dataset == "embeddings":
        parts.append(f"loss {options.loss}")
    if options.lora_rank:
        parts.append(f"LoRA of rank {options.lora_rank}, merged")
    return ", ".join(parts)


def _taught_by(run: Run) -> str:
    options = run.config.distillation
    weights = f"soft targets {options.soft_weight:g} at temperature {options.temperature:g}, "
    weights += f"labels {options.hard_weight:g}"
    if run.config.task == "pretraining":
        weights += f", cosine {options.cosine_weight:g}"
    return f"by the weights with SHA-256 `{run.teacher_sha256}`; of the losses: {weights}"


def _data(run: Run) -> Iterator[str]:
    if run.config.task == "finetuning":  # the kind and the labels alone: the files are the owner's
        options = run.config.finetuning
        yield f"The data set is of the kind `{f'{options.dataset} {options.name}'.strip()}`."
        if options.labels:
            yield f"Its labels are {', '.join(f'`{label}`' for label in options.labels)}."
        return
    if run.config.data.source == "synthetic":
        yield "Random tokens: this model was trained to measure speed and knows no language."
        return
    if not run.manifests:
        yield "The records were missing when this card was written; they are not described."
        return
    for phase, manifest in run.manifests.items():
        yield (
            f"Phase {phase}: {manifest.num_examples:,} examples of {manifest.max_seq_length} "
            f"tokens in {len(manifest.shards)} shards, seed {manifest.seed}."
        )
        figures = {
            name: value
            for name, value in manifest.statistics.items()
            if isinstance(value, int | float) and not isinstance(value, bool)
        }
        if figures:
            yield ""
            yield from _table(("of the records", ""), [(n, _number(v)) for n, v in figures.items()])
        yield ""


def _scores(run: Run) -> Iterator[str]:
    if not run.scores:
        yield "The run was not evaluated on held-out data."
        return
    at = "" if run.scores_step == run.step else " (not the step of these weights)"
    kind = "sets" if run.config.task == "finetuning" else "records"
    yield f"On held-out {kind}, at step {run.scores_step:,}{at}:"
    yield ""
    yield from _table(("metric", "value"), [(n, _number(v)) for n, v in run.scores.items()])


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    cells = (
        [" ".join(str(cell).split("\n")).replace("|", r"\|") for cell in line] for line in lines
    )
    return [f"| {' | '.join(line)} |" for line in cells]


def _number(value: float | None) -> str:
    if value is None:  # metrics.jsonl has null for what is not finite
        return "not finite"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4f}"
