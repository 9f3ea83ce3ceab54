"""Writes tests/golden/before: what the programs of commit 3717693 made and answered.

    git worktree add /tmp/before 3717693
    PYTHONPATH=/tmp/before:. JAX_PLATFORMS=cpu python tests/golden/make_before.py

The code that runs is that of /tmp/before; this file and tests/programs.py are from here. It was run
once. Do not run it again to make a test pass: the files are the past, and tests/test_compatibility
holds that later code continues it. All paths in them are relative, since this works in a folder of
its own. The machine that made them is in made_with.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import platform
import shutil
import tarfile
import tempfile

import jax
import numpy as np

from bertjax import checkpoint
from tests import programs, small_datasets

HERE = pathlib.Path(__file__).resolve().parent
BEFORE = HERE / "before"
CODE = pathlib.Path(checkpoint.__file__).resolve().parents[1]

SYLLABLES = ["ka", "lo", "mi", "ren", "tus", "vor", "pe", "sha", "dim", "gol"]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"

BUILD = (
    "--input=corpus.txt", "--vocabulary=vocab.txt", "--max_seq_length=32", "--dupe_factor=2",
    "--num_shards=2", "--num_workers=1",
)  # fmt: skip
TRAIN = (
    "--config.data.source=records", "--config.model.vocab_size=0", "--config.model.hidden_size=16",
    "--config.model.num_attention_heads=2", "--config.model.intermediate_size=32",
    # Wide enough for answers that depend on every token.
    "--config.model.initializer_range=0.3", "--config.model.max_position_embeddings=64",
    "--config.global_batch_size=8",
    "--config.phases.phase1.num_steps=10", "--config.phases.phase1.max_seq_length=32",
    "--config.schedule.peak_learning_rate=0.01", "--config.schedule.warmup_steps=2",
    "--config.checkpoint.save_every_steps=6", "--config.checkpoint.keep_last=2",
    "--config.checkpoint.keep_best=0", "--config.evaluation.every_steps=5",
    "--config.evaluation.global_batch_size=16", "--config.evaluation.max_batches=3",
    "--config.log_every_steps=1",
)  # fmt: skip
# Name -> how its records are built and how it is trained.
PRETRAINING = {
    "pretraining": ((), ()),
    "dynamic": (
        ("--mask=none", "--pair_objective=sop"),
        ("--config.pretraining.masking=dynamic", "--config.pretraining.mask_strategy=whole_word",
         "--config.pretraining.pair_loss=sop"),
    ),
}  # fmt: skip

FINETUNE = (
    "--config.init_from=pretraining", "--config.finetuning.max_seq_length=32",
    "--config.global_batch_size=8", "--config.evaluation.global_batch_size=8",
    "--config.schedule.peak_learning_rate=0.005", "--config.finetuning.num_epochs=2",
    "--config.log_every_steps=1",
)  # fmt: skip
LORA = ("--config.finetuning.lora_rank=2", "--config.optimizer.head_multiplier=2.0")
# Name -> the recipe, the files of small_datasets, and more options.
FINETUNED = {
    "classification": ("glue.py:rte", "glue", ()),
    "regression": ("glue.py:stsb", "regression", ()),
    "table": ("classification.py", "table", ()),
    "mean": ("classification.py", "table", ("--config.finetuning.pooling=mean",)),
    "spans": ("squad.py:v2", "squad_v2", ()),
    "tags": ("conll.py", "conll", ()),
    "feature_based": ("conll.py:feature_based", "conll", ()),
    "choices": ("swag.py", "swag", ()),
    "lora": ("glue.py:rte", "glue", LORA),
}
PAIRS = [
    {"sentence1": "w0 w12 w13", "sentence2": "w14", "id": 7},
    {"sentence1": "w1", "sentence2": " ".join(f"w{number}" for number in range(20, 60))},
]
TEXTS = [{"text": "w0 w31 w32 w33"}, {"text": "w1 kalo ren."}, {"text": "w2"}]
CONTEXT = "w20 w21 w0 w1 " + " ".join(f"w{number}" for number in range(22, 60))
TAGGED = [
    {"words": ["w10", "w0", "w1", "w11"]},
    {"words": ["w2", "Kalo", "w30"]},
    {"words": [f"w{number}" for number in range(60, 82)]},
]
# Name -> the lines that it answers.
QUESTIONS = {
    "classification": PAIRS,
    "regression": PAIRS,
    "table": TEXTS,
    "mean": TEXTS,
    "spans": [
        {"question": "w7 w6", "context": CONTEXT},
        {"question": "w9 w8", "context": "W30, (w31) w32. Kalo w33"},
        {"question": "w7 w6", "context": "w33 w0 w1 w34"},
        {"question": "kalo w41", "context": "w9 w40, w41 (w42) w43"},
    ],
    "tags": TAGGED,
    "feature_based": TAGGED,
    "choices": [
        {"context": "w10 w11", "endings": ["w0 w1", "w3 w7", "w4 w7", "w5 w7 w8"]},
        {"context": "w12", "endings": ["w2 w7", "w3 w7", "w0 w1", "w5"]},
    ],
    "lora": PAIRS,
}
STOPPED = {"table_stopped": "table", "spans_stopped": "spans"}
LONGER = (
    "--config.finetuning.num_epochs=4", "--config.checkpoint.save_every_steps=5",
    "--config.checkpoint.keep_last=2",
)  # fmt: skip
MASKED = ("w1 [MASK] w3 [MASK].", "kalo [MASK]")
ENCODED = ("kalo miren.", "", "w1 w2 w3 w4 w5 shapegol")
ENCODINGS = {
    "last_cls": ("--layers=last", "--pooling=cls"),
    "last_mean": ("--layers=last", "--pooling=mean"),
    "last_none": ("--layers=last", "--pooling=none"),
}
CONVERTED = ("pretraining", "sequence_classification", "token_classification")


def main() -> None:
    """Writes everything anew."""
    shutil.rmtree(BEFORE, ignore_errors=True)
    BEFORE.mkdir()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        write_texts()
        for name in PRETRAINING:
            pretrain(name)
        write_json("answers", answers())
        for name in FINETUNED:
            finetune(name)
        for name in STOPPED:
            finetune_halfway(name)
        write_json("converted", {name: convert(name) for name in CONVERTED})
    facts = {"jax": jax.__version__, "python": platform.python_version(), "cpu": cpu()}
    write_json("made_with", facts)


def write_texts() -> None:
    """Writes a corpus and a vocabulary of 168 entries."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(SYLLABLES, size=rng.integers(1, 4))) for _ in range(60)]
    words += [f"w{number}" for number in range(90)]

    def sentence() -> str:
        return " ".join(rng.choice(words, size=rng.integers(3, 12))).capitalize() + "."

    documents = [
        "\n".join(" ".join(sentence() for _ in range(rng.integers(1, 5))) for _ in range(3))
        for _ in range(25)
    ]
    pieces = [*SYLLABLES, *LETTERS]
    entries = [*SPECIALS, ".", *(f"w{number}" for number in range(90)), *pieces]
    entries += [f"##{piece}" for piece in pieces]
    for name, lines in (("corpus.txt", "\n\n".join(documents)), ("vocab.txt", "\n".join(entries))):
        pathlib.Path(name).write_text(lines + "\n", encoding="utf-8")
        shutil.copy(name, BEFORE)


def pretrain(name: str) -> None:
    """Builds records, trains ten steps, and leaves the run as one killed after step 8 would be."""
    records, (build, train) = f"{name}_records", PRETRAINING[name]
    programs.succeed("data_pipelines.build", *BUILD, *build, f"--output={records}")
    shards = sorted(pathlib.Path(records).glob("*.tfrecord*"))
    data = (f"--config.data.train_dir={records}", f"--config.data.eval_dir={records}")
    workdir, options = f"--workdir={name}", (*TRAIN, *train)
    recipe = f"--config={CODE}/configs/smoke.py"
    programs.succeed("bertjax.train", recipe, workdir, *options, *data)
    facts = {
        "build": [*BUILD, *build],
        "shards": {path.name: sha256(path) for path in shards},
        "config": "configs/smoke.py",
        "train": options,
        "metrics": metrics(name),
    }
    write_json(name, facts)
    export(name)
    shutil.copy(f"{name}_exported/model.safetensors", BEFORE / f"{name}.safetensors")
    kept = shutil.copytree(name, f"{name}_whole")
    stop(name, step=6, last_line=8)
    pack(name, records)
    shutil.rmtree(name)
    pathlib.Path(kept).rename(name)


def answers() -> dict:
    """Returns what the other programs say of the stopped run of pretraining."""
    with tarfile.open(BEFORE / "pretraining.tar.xz") as archive:
        archive.extractall("stopped", filter="data")
    model = "--checkpoint=stopped/pretraining"
    filled = programs.succeed("bertjax.fill_mask", model, "--json", *MASKED)
    data = "--data=stopped/pretraining_records"
    scores = programs.succeed("bertjax.evaluate", model, "--json", data, "--batch_size=16")
    encoded = {}
    for name, options in ENCODINGS.items():
        done = programs.succeed("bertjax.encode", model, *options, lines=ENCODED)
        (BEFORE / f"encoded_{name}.npz").write_bytes(done.output)
        encoded[name] = options
    return {
        "fill_mask": {"texts": MASKED, "answers": filled.lines},
        "evaluate": scores.lines[0],
        "encode": {"lines": ENCODED, "options": encoded},
    }


def finetune(name: str) -> None:
    """Finetunes for two epochs, answers some lines, and exports."""
    options = run_finetuning(name, FINETUNED[name])
    if name in ("tags", "feature_based"):
        replace_tagger(name)
    lines = tuple(json.dumps(line) for line in QUESTIONS[name])
    answered = programs.succeed("bertjax.predict", f"--checkpoint={name}", lines=lines)
    facts = {"train": options, "lines": lines, "answers": answered.lines, "export": export(name)}
    write_json(name, facts)
    if name == "lora":  # The product of its factors is rounded, and no copy.
        shutil.copy(f"{name}_exported/model.safetensors", BEFORE / f"{name}.safetensors")
    pack(name)


def finetune_halfway(name: str) -> None:
    """Finetunes for four epochs, and leaves the run as one killed after step 6 would be."""
    recipe, kind, options = FINETUNED[STOPPED[name]]
    train = run_finetuning(name, (recipe, kind, (*options, *LONGER)))
    predictions = pathlib.Path(name, "predictions")
    files = sorted(path for path in predictions.rglob("*") if path.is_file())
    facts = {
        "config": f"configs/{recipe}",
        "train": train,
        "metrics": metrics(name),
        "predictions": {str(path.relative_to(predictions)): path.read_text() for path in files},
        "export": export(name),
    }
    write_json(name, facts)
    shutil.copy(f"{name}_exported/model.safetensors", BEFORE / f"{name}.safetensors")
    stop(name, step=5, last_line=6)
    shutil.rmtree(predictions)
    pack(name, f"data/{name}")


def run_finetuning(name: str, case: tuple[str, str, tuple[str, ...]]) -> list[str]:
    """Finetunes in a workdir of that name, and returns the options that were given."""
    recipe, kind, more = case
    directory = pathlib.Path("data", name)
    directory.mkdir(parents=True)
    files = small_datasets.WRITERS[kind](directory)
    given = [f"--config.finetuning.{key}={value}" for key, value in files.items()]
    options = [*FINETUNE, *given, *more]
    recipe = f"--config={CODE}/configs/{recipe}"
    programs.succeed("bertjax.train", recipe, f"--workdir={name}", *options)
    return options


def replace_tagger(name: str) -> None:
    """Writes the workdir's checkpoint again without an optimizer, with another classifier.

    After a few steps a tagger says O of every word; a random classifier has answers that differ.
    The BiLSTM has 19 million parameters whatever the encoder's size, so its arrays become small
    blocks that repeat and take no place in an archive; larger, for what it says depends on words.
    """
    params, meta, _ = checkpoint.load_params(name)
    rng = np.random.default_rng(0)

    def repeated(leaf: np.ndarray) -> np.ndarray:
        leaf = np.asarray(leaf)
        if leaf.size < 50_000:
            return leaf
        block = leaf[tuple(slice(0, 48) for _ in leaf.shape)]
        times = [-(-size // of) for size, of in zip(leaf.shape, block.shape, strict=True)]
        return np.tile(10 * block, times)[tuple(slice(0, size) for size in leaf.shape)]

    params = jax.tree.map(repeated, params)
    for key, leaf in params["classifier"].items():
        params["classifier"][key] = rng.normal(0.0, 0.5, leaf.shape).astype(np.float32)
    shutil.rmtree(pathlib.Path(name, checkpoint.DIRECTORY))
    with checkpoint.Checkpointer(name, checkpoint.RetentionOptions()) as checkpointer:
        checkpointer.save_params(params, meta)


def convert(name: str) -> dict:
    """Makes a workdir of a model of transformers, and exports it again."""
    programs.succeed(
        "bertjax.convert", f"--from={HERE / name}", f"--to=converted_{name}", "--format=bertjax"
    )
    # Where the weights came from is told in the checkpoint; it is a path of this machine.
    replace_in_meta(f"converted_{name}", str(HERE), "tests/golden")
    pack(f"converted_{name}")
    return export(f"converted_{name}")


def export(name: str) -> dict:
    """Returns the config and the sha256 of the files that a workdir is exported to."""
    target = pathlib.Path(f"{name}_exported")
    done = programs.run("bertjax.convert", f"--from={name}", f"--to={target}")
    if done.error:
        return {"error": done.error}
    names = ("model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json")
    return {
        "config": json.loads((target / "config.json").read_text()),
        "sha256": {it: sha256(target / it) for it in names if (target / it).exists()},
    }


def metrics(name: str) -> list[dict]:
    """Returns the lines of a run without what depends on the clock."""
    lines = pathlib.Path(name, "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith("perf/")}
        for line in lines
    ]


def stop(name: str, *, step: int, last_line: int) -> None:
    """Makes a finished run one that was killed after `last_line`, saved at `step`."""
    workdir = pathlib.Path(name)
    for directory in (workdir / checkpoint.DIRECTORY).iterdir():
        if directory.is_dir() and directory.name.isdigit() and int(directory.name) > step:
            shutil.rmtree(directory)
    lines = (workdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["step"] <= last_line]
    (workdir / "metrics.jsonl").write_text("".join(kept))


def pack(name: str, *others: str) -> None:
    """Archives a workdir and other directories, without pictures and the name of this machine."""

    scratch = str(pathlib.Path.cwd())
    for path in pathlib.Path(name).rglob("commit_success.txt"):
        path.write_text(path.read_text().replace(scratch, "/scratch"))

    def anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if member.name.endswith(("tensorboard", ".png", ".html")):
            return None
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(BEFORE / f"{name}.tar.xz", "w:xz", preset=9) as archive:
        for directory in (name, *others):
            archive.add(directory, filter=anonymous)


def replace_in_meta(name: str, old: str, new: str) -> None:
    """Replaces a text in the meta item of a workdir's only checkpoint."""
    (path,) = pathlib.Path(name, checkpoint.DIRECTORY).glob("*/meta/metadata")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def cpu() -> str:
    """Returns what this machine's processor calls itself."""
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))


def sha256(path: pathlib.Path) -> str:
    """Returns the checksum of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_json(name: str, values: dict) -> None:
    """Writes a file of the folder."""
    text = json.dumps(values, indent=1, ensure_ascii=False)
    (BEFORE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
