"""Faults planted in the code, one at a time: do the tests find them?

`python .ci/mutants.py [NUMBER ...]` copies the tracked files, plants each fault of MUTANTS in the
copy, runs its tests and prints whether one failed. A row names a file, a text that occurs once in
it, what replaces it, and the tests that should fail. The rows were chosen before the tests were
rewritten (issue 54): 40 across the packages, then 20 in what that issue changed. The last 20 are
traps of later families of weights. Code may move; a row whose text is gone is to be planted again
at the place that does the same now.

Outside of the gate: all rows take about half an hour, and one whose tests wait for ever its limit.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile
from typing import NamedTuple

ROOT = pathlib.Path(__file__).parents[1]
LIMIT_SECONDS = 900


class Mutant(NamedTuple):
    """A fault: in `file` the text `old` becomes `new`; `tests` are paths below tests/."""

    file: str
    old: str
    new: str
    tests: str


MUTANTS = [
    # Models.
    Mutant(
        "bertjax/models/plain_attention.py",
        "    scale = 1 / (1 - rate)",
        "    scale = 1 / (1 + rate)",
        "models/test_attention.py",
    ),
    Mutant(
        "bertjax/models/plain_attention.py",
        "masks.seen.any(axis=-1, keepdims=True)",
        "masks.seen.any(axis=-2, keepdims=True)",
        "models/test_attention.py models/test_encoder.py",
    ),
    Mutant(
        "bertjax/models/embeddings.py",
        "kept * (1 - TRAINED_MASK_SHARE) / unmasked",
        "kept / unmasked",
        "models convert/families",
    ),
    Mutant(
        "bertjax/models/pooling.py",
        "jnp.arange(1, hidden.shape[1] + 1)",
        "jnp.arange(0, hidden.shape[1])",
        "models",
    ),
    Mutant(
        "bertjax/models/packed_rows.py",
        "axis=1, prepend=0) > 0",
        "axis=1, prepend=1) > 0",
        "models tasks",
    ),
    Mutant(
        "bertjax/models/generation.py",
        "scores[:, :1] / length.astype(jnp.float32) ** search.length_penalty",
        "scores[:, :1] / length.astype(jnp.float32)",
        "models/test_generation.py",
    ),
    Mutant(
        "bertjax/models/generation.py",
        "jnp.arange(starts)[None] + size - 1 <= at",
        "jnp.arange(starts)[None] + size - 1 < at",
        "models/test_generation.py",
    ),
    Mutant(
        "bertjax/models/lora.py", "alpha / a.shape[1]", "alpha / a.shape[0]", "models finetuning"
    ),
    Mutant(
        "bertjax/models/values.py",
        "(weights * (values - mean) ** 2).sum(",
        "((values - mean) ** 2).sum(",
        "models tasks",
    ),
    # Tasks.
    Mutant(
        "bertjax/tasks/distillation.py",
        '        coefficients["mlm_loss"] *= self.options.hard_weight\n',
        "        pass\n",
        "tasks",
    ),
    Mutant(
        "bertjax/tasks/masked_autoencoder.py",
        "length - int((length - 1) * self.share)",
        "length - int(length * self.share)",
        "tasks",
    ),
    Mutant(
        "bertjax/tasks/replaced_tokens.py",
        "is_masked & (drawn != original)",
        "is_masked",
        "tasks",
    ),
    Mutant("bertjax/tasks/masked_values.py", "keepdims=True, ddof=1)", "keepdims=True)", "tasks"),
    Mutant(
        "bertjax/tasks/pretraining.py",
        '        return batch["example_weights"]\n',
        '        return 0.0 * batch["example_weights"] + 1.0\n',
        "tasks",
    ),
    # Training.
    Mutant(
        "bertjax/training/optim.py",
        "limit / jnp.maximum(reductions.global_norm(grads), limit)",
        "limit / jnp.maximum(reductions.global_norm(grads), 1.0)",
        "training/test_optim.py",
    ),
    Mutant(
        "bertjax/training/optim.py",
        "options.layer_decay ** (len(used_at) + 1)",
        "options.layer_decay ** len(used_at)",
        "training/test_optim.py training/test_two_encoders.py",
    ),
    Mutant(
        "bertjax/training/schedules.py",
        "    left = (end - step) / jnp",
        "    left = (end - step - 1) / jnp",
        "training/test_schedules.py",
    ),
    Mutant(
        "bertjax/training/state.py",
        "lambda new, old: jnp.where(is_finite, new, old),",
        "lambda new, old: new,",
        "training/test_state.py training/test_program.py test_train.py",
    ),
    Mutant(
        "bertjax/training/monitor.py",
        "in_a_row < self._options.max_skipped_steps",
        "in_a_row <= self._options.max_skipped_steps",
        "training/test_monitor.py",
    ),
    Mutant(
        "bertjax/training/trials.py",
        "statistics.stdev(numbers)",
        "statistics.pstdev(numbers)",
        "training/test_trials.py",
    ),
    # Data.
    Mutant(
        "bertjax/data/streams.py",
        "default_rng([seed, _RECORD_ORDER, epoch, shard])",
        "default_rng([seed, _RECORD_ORDER, epoch])",
        "data/test_streams.py",
    ),
    Mutant(
        "bertjax/data/streams.py",
        "int(records.row_lengths(batch).max())",
        "int(records.row_lengths(batch).min())",
        "data",
    ),
    Mutant(
        "bertjax/data/masking.py",
        "dice < options.mask_share + options.keep_share + 1e-9",
        "dice < options.mask_share + 1e-9",
        "data/test_masking.py data/test_word_masking.py",
    ),
    Mutant("bertjax/data/encoding.py", "if highest < 128:", "if highest <= 128:", "data"),
    Mutant(
        "bertjax/data/mixtures.py", "left * size / total", "size / total", "data/test_mixtures.py"
    ),
    Mutant(
        "bertjax/data/sequence_rows.py",
        "math.ceil(length / 2)",
        "length // 2",
        "data/test_sequence_rows.py",
    ),
    Mutant(
        "bertjax/data/value_masking.py",
        "np.minimum(np.maximum(numbers, 1), observed",
        "np.minimum(numbers, observed",
        "data tasks",
    ),
    Mutant(
        "bertjax/data/pictures.py",
        "start = (whole - size) // 2",
        "start = whole - size",
        "data data_pipelines/test_build_images.py",
    ),
    # Scores and finetuning.
    Mutant(
        "bertjax/scores/classification.py",
        "ones * (ones + 1) / 2",
        "ones * (ones - 1) / 2",
        "scores finetuning/test_values.py",
    ),
    Mutant(
        "bertjax/scores/squad.py",
        "no_answer_probabilities[q] > threshold",
        "no_answer_probabilities[q] >= threshold",
        "scores finetuning",
    ),
    Mutant(
        "bertjax/finetuning/spans.py",
        "np.nonzero((lengths >= 1) & (lengths <= max_answer_length))",
        "np.nonzero((lengths >= 1) & (lengths < max_answer_length))",
        "finetuning",
    ),
    Mutant(
        "bertjax/finetuning/tags.py",
        'NOT_SCORED) * batch["example_weights"][:, None]',
        'NOT_SCORED) * (batch["example_weights"][:, None] >= 0)',
        "finetuning",
    ),
    Mutant(
        "bertjax/finetuning/squad_files.py",
        "span[1] >= self.end",
        "span[1] > self.end",
        "finetuning",
    ),
    Mutant(
        "bertjax/finetuning/embeddings.py",
        "jnp.abs(first - second)",
        "(first - second)",
        "finetuning",
    ),
    # Convert, workdirs, jobs.
    Mutant(
        "bertjax/convert/names.py",
        "names, np.split(array, len(parts))",
        "names[::-1], np.split(array, len(parts))",
        "convert",
    ),
    Mutant(
        "bertjax/workdirs/checkpoint.py",
        '(self._directory / str(step)).rename(target / f"{step}_{count}")',
        "(self._directory / str(step)).rmtree()",
        "workdirs",
    ),
    Mutant(
        "bertjax/training/time_budget.py",
        "max(1, int(it * share))",
        "max(1, int(it / share))",
        "jobs/test_automatic.py",
    ),
    # From text to records.
    Mutant(
        "data_pipelines/building/row_packing.py",
        "if fitting := rooms >> length:",
        "if fitting := rooms >> (length + 1):",
        "data_pipelines/building/test_row_packing.py",
    ),
    Mutant(
        "data_pipelines/objectives/sentence_pairs.py",
        "other += other >= block.first_document",
        "other += other > block.first_document",
        "data_pipelines/objectives data_pipelines/test_golden.py",
    ),
    Mutant(
        "data_pipelines/documents/deduplication.py",
        "np.searchsorted(run, different), len(run) - 1)",
        "np.searchsorted(run, different, side='right'), len(run) - 1)",
        "data_pipelines/documents",
    ),
    # Places that issue 54 touches: offsets, options, openers, outputs, runs.
    Mutant(
        "bertjax/tokenization/wordpiece.py",
        "tokens.append((token_id, min(starts), max(ends)))",
        "tokens.append((token_id, max(starts), max(ends)))",
        "tokenization",
    ),
    Mutant(
        "bertjax/tokenization/sentence_piece.py",
        "        start = end - len(surface.lstrip())\n",
        "",
        "tokenization",
    ),
    Mutant(
        "bertjax/tokenization/added_tokens.py",
        "if token.single_word and any(map(_is_of_word, around)):",
        "if token.single_word and all(map(_is_of_word, around)):",
        "tokenization",
    ),
    Mutant(
        "bertjax/tokenization/byte_bpe.py",
        "lstrip=token_id == self.mask_id",
        "lstrip=False",
        "tokenization convert/test_huggingface_tokenizer.py",
    ),
    Mutant(
        "bertjax/options/encoder.py",
        'lambda it: it["model.position_embedding"] == "rotary",',
        "lambda it: True,",
        "test_config.py options training",
    ),
    Mutant(
        "bertjax/options/option.py",
        "AT_LEAST_1 = at_least(1)",
        "AT_LEAST_1 = at_least(0)",
        "test_config.py options training",
    ),
    Mutant(
        "bertjax/config.py",
        r'r"writers|profile_steps|budget\.(extend_to|decisions)"',
        r'r"writers|seed|profile_steps|budget\.(extend_to|decisions)"',
        "test_config.py training workdirs",
    ),
    Mutant(
        "bertjax/files/opening.py",
        "    if not stat.S_ISREG(mode):\n",
        "    if stat.S_ISDIR(mode):\n",
        "files tokenization",
    ),
    Mutant(
        "bertjax/files/opening.py",
        "    if size > most_bytes:\n",
        "    if size > 1024 * most_bytes:\n",
        "files tokenization convert",
    ),
    Mutant(
        "bertjax/files/opening.py",
        "    if _stamp(file) != before:\n",
        "    if before is None:\n",
        "files data_pipelines/formats",
    ),
    Mutant(
        "bertjax/files/output.py",
        "        if others := directories.unlisted(self.path, self._format):\n",
        "        if others := directories.format_of(self.path) and []:\n",
        "files data_pipelines/test_partial_output.py convert",
    ),
    Mutant(
        "bertjax/files/output.py",
        "        elif not others:\n",
        "        elif kind:\n",
        "files",
    ),
    Mutant(
        "data_pipelines/partial_output.py",
        "        if before == now:\n            return True\n",
        "        if before.keys() == now.keys():\n            return True\n",
        "data_pipelines",
    ),
    Mutant(
        "bertjax/files/output.py",
        "if any(self.path.iterdir()) and not self._overwrite:",
        "if self.path.is_file() and not self._overwrite:",
        "files data_pipelines",
    ),
    Mutant(
        "bertjax/files/atomic.py",
        "        draft.unlink(missing_ok=True)\n        if error.filename",
        "        if error.filename",
        "files data",
    ),
    Mutant(
        "bertjax/data/records.py",
        "elif path.stat().length != shard.bytes:",
        "elif path.stat().length > shard.bytes:",
        "data",
    ),
    Mutant(
        "bertjax/training/warm_start.py",
        "is_random[: len(value)] = exchange.counts == 0",
        "is_random[: len(value)] = False",
        "training",
    ),
    Mutant(
        "bertjax/data/languages.py",
        'np.full_like(batch["input_ids"], number)',
        'np.zeros_like(batch["input_ids"])',
        "inference data jobs/test_languages.py",
    ),
    Mutant(
        "bertjax/tasks/mixed_rows.py",
        "dict.fromkeys(super().objectives, 1 - self.share)",
        "dict.fromkeys(super().objectives, self.share)",
        "tasks",
    ),
    Mutant(
        "bertjax/cli/command_line.py",
        "        if needed and not getattr(options, needed):\n",
        "        if needed and getattr(options, needed) is NotImplemented:\n",
        "test_command_line.py test_inference.py",
    ),
    # The traps of DeBERTa, MPNet, NomicBERT and EuroBERT.
    Mutant(
        "bertjax/models/relative_tables.py",
        "return self.norm(self.table.embedding[...])",
        "return self.table.embedding[...]",
        "models/test_relative.py",
    ),
    Mutant(
        "bertjax/models/attention.py",
        "(self.num_terms * query.shape[-1]) ** -0.5",
        "query.shape[-1] ** -0.5",
        "models/test_relative.py",
    ),
    Mutant(
        "bertjax/models/relative.py",
        "query, terms.of_key, preferred",
        "query, terms.of_key[::-1], preferred",
        "models/test_relative.py",
    ),
    Mutant(
        "bertjax/models/relative.py",
        "keys, terms.of_query[::-1], preferred",
        "keys, terms.of_query, preferred",
        "models/test_relative.py",
    ),
    Mutant(
        "bertjax/models/relative_tables.py",
        "np.ceil(steps)",
        "np.floor(steps)",
        "models/test_relative.py",
    ),
    Mutant(
        "bertjax/models/relative_tables.py",
        "(span - 1) / middle",
        "span / middle",
        "models/test_relative.py",
    ),
    Mutant(
        "bertjax/models/relative_tables.py",
        "T5_BUCKETS, T5_SPAN = 32, 128",
        "T5_BUCKETS, T5_SPAN = 32, 512",
        "models/test_relative.py",
    ),
    Mutant(
        "bertjax/models/relative_tables.py",
        "np.where(distances < 0, each, 0)",
        "np.where(distances > 0, each, 0)",
        "models/test_relative.py",
    ),
    Mutant(
        "bertjax/models/mask_decoder.py",
        "PASSES = 2",
        "PASSES = 1",
        "models/test_mask_decoder.py",
    ),
    Mutant(
        "bertjax/models/mask_decoder.py",
        "layers.taken(states, positions) + table",
        "table",
        "models/test_mask_decoder.py",
    ),
    Mutant(
        "bertjax/models/mask_decoder.py",
        "(inputs, key=key)[-2]",
        "(inputs, key=key)[-1]",
        "models/test_mask_decoder.py",
    ),
    Mutant(
        "bertjax/models/heads.py",
        "        if self.norm is not None:\n            first",
        "        if self.norm is None:\n            first",
        "models/test_mask_decoder.py models",
    ),
    Mutant(
        "bertjax/models/attention.py",
        "jnp.repeat(both[0], shared, axis=2)",
        "jnp.tile(both[0], (1, 1, shared, 1))",
        "models convert/families",
    ),
    Mutant(
        "bertjax/convert/families/nomic_bert.py",
        "float, default=1_000.0",
        "float, default=10_000.0",
        "convert/families",
    ),
    Mutant(
        "bertjax/convert/families/eurobert.py",
        "float, default=1e-5)",
        "float, default=1e-12)",
        "convert/families",
    ),
    Mutant(
        "bertjax/convert/families/eurobert.py",
        '"tie_word_embeddings": False, "pooler"',
        '"tie_word_embeddings": True, "pooler"',
        "convert/families",
    ),
    Mutant(
        "bertjax/convert/families/eurobert.py",
        '{"late": "late", "mean"',
        '{"late": "mean", "mean"',
        "convert/families",
    ),
    Mutant(
        "bertjax/convert/families/deberta_v2.py",
        "float, default=1e-7)",
        "float, default=1e-12)",
        "convert/families",
    ),
    Mutant(
        "bertjax/convert/families/deberta_v2.py",
        '"position_embedding": "none", "pooler_act": "gelu"',
        '"position_embedding": "none", "pooler_act": "tanh"',
        "convert/families interop/test_families.py",
    ),
    Mutant(
        "bertjax/convert/families/mpnet.py",
        '"position_offset": roberta.PAD_ID + 1',
        '"position_offset": 0',
        "convert/families interop/test_families.py",
    ),
]


def main(arguments: list[str]) -> int:
    """Plants the faults and prints a row for each; returns the number that no test found."""
    numbers = list(map(int, arguments)) or range(1, len(MUTANTS) + 1)
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="bertjax_mutants_") as directory:
        copy = pathlib.Path(directory) / "copy"
        copy_tracked(copy)
        for number in numbers:
            result = _planted(copy, MUTANTS[number - 1])
            survivors += result != "found"
            print(f"{number:2} {result:9} {MUTANTS[number - 1].file}", flush=True)
    return survivors


def copy_tracked(copy: pathlib.Path) -> None:
    """Copies the tracked files."""
    command = ["git", "-C", str(ROOT), "ls-files"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    for name in names:
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, copy / name)


def _planted(copy: pathlib.Path, mutant: Mutant) -> str:
    path = copy / mutant.file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if text.count(mutant.old) != 1:
        return "is gone" if mutant.old not in text else "ambiguous"
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--numprocesses=0"]
    command += map(str, _test_files(copy, mutant))
    try:
        code = subprocess.run(
            command, cwd=copy, capture_output=True, timeout=LIMIT_SECONDS, check=False
        ).returncode
    except subprocess.TimeoutExpired:
        code = 1  # a test that waits for ever has found it
    finally:
        path.write_text(text, encoding="utf-8")
    return {0: "SURVIVED", 1: "found"}.get(code, f"pytest {code}")


def _test_files(copy: pathlib.Path, mutant: Mutant) -> list[pathlib.Path]:
    """Returns the test files of a fault, those that name its module most often first."""
    name = pathlib.Path(mutant.file).stem
    paths = [copy / "tests" / it for it in mutant.tests.split()]
    files = [
        file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])
    ]
    return sorted(
        {*files}, key=lambda file: (-file.read_text(encoding="utf-8").count(name), str(file))
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
