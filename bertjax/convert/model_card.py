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
from bertjax.convert import card_examples, heads, pretrained, sentence_transformers
from bertjax.data import records, value_statistics
from bertjax.models import encoder_config
from bertjax.scores import baselines
from bertjax.tokenization import letters
from bertjax.workdirs import reader, scalars

SCRIPT_SHARE = 0.01  # scripts with fewer of the characters are not named
LABELS_SHOWN = 30

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

    Use, scores and data come first, options and sizes last. The card of a
    workdir is one of a model of values, which may belong to no family of weights.
    """
    does, code = card_examples.use_of(weights, is_workdir=is_workdir)
    languages = _languages(run)
    parts = [*_front_matter(weights, license, languages, is_workdir), ""]
    parts += [*_introduction(weights, does, languages, is_workdir), "", "## Use", ""]
    language = "bash" if code.startswith("python -m") else "python"
    parts += [f"```{language}", code, "```", "", _PATH]
    if weights.is_shifted:
        parts += ["", SHIFTED]
    if weights.sentence is not None:
        size = weights.config.hidden_size
        described = sentence_transformers.described(weights.sentence, size)
        parts += ["", "## Vectors of sentences", "", *_table(("", ""), described)]
    if run is not None:
        parts += ["", "## Scores", "", *_scores(run), "", "## Data", "", *_data(run)]
    else:
        parts += ["", "The weights were converted; their source describes the training."]
    if weights.manifest is not None:
        parts += ["", "## Values", "", *_values(weights.manifest)]
    parts += ["", "## License", "", license or _NO_LICENSE]
    if run is not None:
        parts += ["", "## Training", "", *_training(run)]
    parts += ["", "## Sizes", "", *_sizes(weights)]
    return "\n".join(parts) + "\n"


_PATH = "`PATH` is the directory of this file, or the name of the model on the hub."
_NO_LICENSE = (
    "No license was given with these weights. Their owner names one here, and as `license` in the "
    "first lines of this file; without one no other person may use them."
)


def _introduction(
    weights: pretrained.Pretrained, does: str, languages: list[str], is_workdir: bool
) -> Iterator[str]:
    """Yields what the model is."""
    title = "model of values" if is_workdir else weights.family.title
    article = "An" if title[0] in "AEIOU" else "A"
    # Cards are published, so they name no path of the source. A generator is not counted.
    of_class = (weights.head, weights.config.pooler)
    params = weights.params.items()
    count = sum(x.size for path, x in params if is_workdir or heads.is_of_class(path, *of_class))
    yield f"# {title[0].upper()}{title[1:]} that {does}"
    yield ""
    layers, hidden = weights.config.num_hidden_layers, weights.config.hidden_size
    yield (
        f"{article} {title} with {count:,} parameters ({layers} layers, hidden size {hidden}) that "
        f"{does}, written by bertjax {__version__}."
    )
    if weights.labels and not weights.is_regression:
        shown = [f"`{' '.join(it.split())}`" for it in [*weights.labels.values()][:LABELS_SHOWN]]
        more = f", ... ({len(weights.labels):,} in all)" * (len(weights.labels) > len(shown))
        yield f"Its labels are {', '.join(shown)}{more}."
    if weights.vocabulary is not None:
        yield f"Language: {', '.join(languages) or 'not stated; its owner names it here'}."


def _languages(run: Run | None) -> list[str]:
    """Returns the languages that the records name."""
    manifests = run.manifests.values() if run is not None else ()
    return sorted({name for manifest in manifests for name in manifest.languages})


def _front_matter(
    weights: pretrained.Pretrained, license: str | None, languages: list[str], is_workdir: bool
) -> Iterator[str]:
    is_of_sentences = weights.sentence is not None
    library = "sentence-transformers" if is_of_sentences else "transformers"
    yield "---"
    yield f"library_name: {'bertjax' if is_workdir else library}"
    pipeline = "sentence-similarity" if is_of_sentences else heads.HEADS[weights.head].pipeline
    if weights.is_shifted:
        pipeline = "feature-extraction"  # fill-mask would return the token after
    yield f"pipeline_tag: {pipeline}"
    # The hub takes codes of two or three letters alone. YAML reads "no" as false without quotes.
    if codes := [name for name in languages if re.fullmatch("[a-z]{2,3}", name)]:
        yield "\n- ".join(["language:", *map(json.dumps, codes)])
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
    if config.num_key_value_heads:
        rows.insert(3, ("heads of keys and values", config.num_key_value_heads))
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
        return
    if run.config.data.source == "synthetic":
        yield "Random tokens: this model was trained to measure speed and knows no language."
        return
    if not run.manifests:
        yield "The records were missing when this card was written; they are not described."
        return
    yield from dict.fromkeys(map(_text_in_words, run.manifests.values()))
    yield ""
    for phase, manifest in run.manifests.items():
        yield (
            f"Phase {phase}: {manifest.num_examples:,} examples of {manifest.max_seq_length} "
            f"tokens in {len(manifest.shards)} shards, seed {manifest.seed}."
        )


def _text_in_words(manifest: records.Manifest) -> str:
    """Returns what the records were made of, as far as they know it."""
    facts = manifest.statistics
    is_letters = manifest.tokenizer.get(letters.FIELD)
    kinds = ("sequences", "letters") if is_letters else ("documents", "characters")
    counts = [
        (kinds[0], facts.get("documents")),
        ("words", None if is_letters else facts.get("words")),
    ]
    counts += [(kinds[1], facts.get("characters")), ("tokens", facts.get("tokens"))]
    parts = [f"{count:,} {name}" for name, count in counts if count]
    if not parts:
        return f"{manifest.num_examples:,} rows of values."
    scripts = [
        f"{it['script']} {it['character_share']:.0%}"
        for it in facts.get("scripts") or ()
        if it["character_share"] >= SCRIPT_SHARE
    ]
    return f"{', '.join(parts)}{'; scripts: ' * bool(scripts)}{', '.join(scripts)}."


def _scores(run: Run) -> Iterator[str]:
    if not run.scores:
        yield "The run was not evaluated on held-out data."
        return
    at = "" if run.scores_step == run.step else " (not the step of these weights)"
    kind = "sets" if run.config.task == "finetuning" else "records"
    yield (
        f"On held-out {kind}, at step {run.scores_step:,}{at}. A baseline is the score of a rule "
        "that has learnt nothing."
    )
    yield ""
    yield from _table(("metric", "value", "baseline"), list(_score_rows(run.scores)))


def _score_rows(scores: Mapping[str, float | None]) -> Iterator[tuple[str, str, str]]:
    """Yields a row for each score, with the best baseline that it has; the baselines have none."""
    by_set: dict[str, dict[str, float | None]] = {}
    for name, value in scores.items():
        of_set, _, metric = name.partition("/")
        by_set.setdefault(of_set, {})[metric] = value
    for of_set, values in by_set.items():
        known = {name: value for name, value in values.items() if value is not None}
        best = baselines.best(known)
        for name, value in values.items():
            if name.partition("/")[0] not in baselines.NAMES:
                shown = f"{best[name]} {_number(values[best[name]])}" if name in best else ""
                yield f"{of_set}/{name}", _number(value), shown


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
