"""Vectors of texts by sentence-transformers: the peer of `encoding.py`.

`encoding.py` starts this file in an environment with torch and sentence-transformers, and asks
for one pass over the texts with each line of standard input; the answer is its seconds. The vectors
of the last pass are written to `--vectors`.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from importlib import metadata


def main() -> None:
    """Encodes a file of lines as often as it is asked to."""
    parser = argparse.ArgumentParser(description="See the head of this file.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--texts", required=True, type=pathlib.Path)
    parser.add_argument("--vectors", required=True, type=pathlib.Path)
    parser.add_argument("--batch_size", required=True, type=int)
    options = parser.parse_args()

    import numpy as np
    import sentence_transformers
    import torch

    texts = options.texts.read_text().split("\n")[:-1]
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


if __name__ == "__main__":
    main()
