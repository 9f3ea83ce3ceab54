"""Opens exports of every family and kind with the libraries that read them.

    python -m tests.readers --directory=DIR [--environments=transformers-5,onnx]

writes DIR/exports with our outputs, makes DIR/NAME of requirements-NAME.txt for each
environment that is not there yet, runs `reader.py` in it, and prints a table, which DIR/table.md
holds, too. An environment has 1 GB, that of PyLate 5.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess

import numpy as np

from bertjax import encode, inference, predict
from bertjax.convert import families, formats, pretrained
from bertjax.models import sentence_vectors
from tests import environments
from tests.interop import exports

HERE = pathlib.Path(__file__).parent
SENTENCE_READERS = {
    "SentenceTransformer": "vectors/*",
    "CrossEncoder": "rerankers/*",
    "SparseEncoder": "heads/*/masked_lm",
}
# Environment -> its readers, and the exports that each opens.
ENVIRONMENTS = {
    "transformers-4.48": {"transformers": "heads*/*/*"},
    "transformers-4.57": {"transformers": "heads*/*/*"},
    "transformers-5": {"transformers": "heads*/*/*"},
    "sentence-transformers-5": SENTENCE_READERS,
    "sentence-transformers-6": SENTENCE_READERS | {"MultiVectorEncoder": "heads/*/none"},
    "pylate": {"PyLate": "heads/*/none"},
    "gliner": {"GLiNER": "heads/*/none"},
    "onnx": {"optimum": "heads/*/*"},
    "euroeval": {"EuroEval": "heads/*/*"},
}
HEAD = (
    "| reader | versions | equal and silent | without a class | the others |\n"
    "|---|---|---|---|---|\n"
)
TEXTS = ["w1 w2 w3", "w5", "w7 w8 w9 w1 w4", " ".join(f"w{n}" for n in range(60)), "w3 w2 w1"]
PLAIN = {"language_embeddings": 0}  # no reader but transformers is given a language
PAIRS = [["w1 w2 w3", "w4"], ["w5", "w6 w7"]]


def heads():
    """Yields the folder of all families with all heads, and their models.

    In a folder of their own are those that few readers can use: the sides of a hybrid model, and
    languages, which a reader has to be given.
    """
    for family in exports.FAMILIES:
        for head in family.architectures:
            yield f"heads/{family.name}/{head}", exports.make(family, head, **PLAIN)
    modernbert, xlm = (families.named(name) for name in ("modernbert", "xlm"))
    hybrid = dataclasses.replace(exports.make(modernbert, "masked_lm"), is_shifted=True)
    for head in ("masked_lm", "causal_lm"):
        yield f"heads_of_kinds/hybrid/{head}", pretrained.select(hybrid, head)
    for head in xlm.architectures:
        yield f"heads_of_kinds/xlm/{head}", exports.make(xlm, head)


def write_heads(directory: pathlib.Path) -> None:
    """Writes the models of transformers."""
    for folder, model in heads():
        formats.write(model, directory / folder, format="huggingface")
        exports.write_facts(model, directory / folder)


def our_vectors(model, workdir: pathlib.Path):
    """Returns the vectors of TEXTS."""
    formats.write(model, workdir, format="bertjax")
    return encode.encode(inference.load(workdir), TEXTS, truncate=True)["features"]


def our_numbers(model, workdir: pathlib.Path):
    """Returns a reranker's numbers for PAIRS."""
    formats.write(model, workdir, format="bertjax")
    records = [dict(zip(("text", "text_pair"), pair, strict=True)) for pair in PAIRS]
    answers = predict.predict(inference.load_finetuned(workdir), records)
    return [answer["prediction"] for answer in answers]


def make_embedder(family):
    """Returns a model for vectors with a Dense."""
    sentence = sentence_vectors.SentenceVectors(
        pooling="last" if family.traits.get("left_to_right") else "mean",
        normalize=True,
        max_seq_length=24,
        projections=sentence_vectors.projections_of([(8, "tanh")]),
    )
    return exports.make_for_vectors(family, sentence)


def make_reranker(family):
    """Returns a classifier of one number."""
    made = exports.make(family, "sequence_classification", **PLAIN)
    ends = {path: made.params[path][..., :1] for path in ("classifier.kernel", "classifier.bias")}
    params = {**made.params, **ends}
    return dataclasses.replace(made, params=params, labels={0: "LABEL_0"}, is_regression=True)


# Folder -> the head that a family needs for it; the model, the texts, and what ours gives for them.
SENTENCES = {
    "vectors": ("none", make_embedder, TEXTS, our_vectors),
    "rerankers": ("sequence_classification", make_reranker, PAIRS, our_numbers),
}


def write_sentences(directory: pathlib.Path) -> None:
    """Writes models of all families that give a vector or a number for a text."""
    for kind, (head, make, texts, compute) in SENTENCES.items():
        for family in exports.FAMILIES:
            if head not in family.architectures:
                continue
            target, model = directory / kind / family.model_type, make(family)
            formats.write(model, target, format="huggingface")
            vectors = compute(model, directory.parent / "workdirs" / kind / family.model_type)
            facts = {"texts": texts, "vectors": np.asarray(vectors).tolist()}
            (target / "expected.json").write_text(json.dumps(facts))


def programs_of(name: str, directory: pathlib.Path) -> pathlib.Path:
    """Returns the programs of an environment, which is made if it is not there."""
    if not directory.exists():
        environments.make(directory)
        environments.install(directory / "bin", "-r", HERE / f"requirements-{name}.txt")
    return directory / "bin"


def rows_of(name: str, directory: pathlib.Path):
    """Yields a row of the table for each reader of an environment."""
    programs = programs_of(name, directory / name)
    for reader, pattern in ENVIRONMENTS[name].items():
        command = [programs / "python", HERE / "reader.py", reader, directory / "exports", pattern]
        done = subprocess.run(command, capture_output=True, text=True, env=environments.variables())
        (directory / f"{name}.{reader}.log").write_text(done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
        versions = lines.pop(0)["versions"] if lines else "no start"
        faults = [
            f"{it['export']}: {'; '.join(it['complaints'])}" for it in lines if it["complaints"]
        ]
        if done.returncode:
            faults.append(f"ended with {done.returncode}: {done.stderr.strip().splitlines()[-1]}")
        with_class = sum(it["has_class"] for it in lines)
        counts = f"{with_class - len(faults)} of {with_class} | {len(lines) - with_class}"
        yield f"| {reader} | {versions} | {counts} | {'<br>'.join(faults) or 'none'} |"


def main() -> None:
    """Writes what is not there, and prints the table."""
    parser = argparse.ArgumentParser(description="See the head of this file.")
    parser.add_argument("--directory", type=pathlib.Path, required=True)
    parser.add_argument("--environments", default=",".join(ENVIRONMENTS))
    options = parser.parse_args()
    names = options.environments.split(",")
    if unknown := set(names) - set(ENVIRONMENTS):
        parser.error(f"--environments has {', '.join(unknown)}; known: {', '.join(ENVIRONMENTS)}")
    if not (options.directory / "exports").exists():
        write_heads(options.directory / "exports")
        write_sentences(options.directory / "exports")
    table = options.directory / "table.md"
    table.write_text(HEAD)
    for name in names:
        for row in rows_of(name, options.directory):
            print(row, flush=True)
            with table.open("a") as file:
                file.write(row + "\n")


if __name__ == "__main__":
    main()
