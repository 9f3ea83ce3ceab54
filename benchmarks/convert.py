"""Time and memory of converting a BERT-large (336 M parameters) between all formats.

    python benchmarks/convert.py [--layers=24] [--directory=/tmp]

Makes random weights with a vocabulary, writes them once in both formats, and then runs the program,
`python -m bertjax.convert`, a process for each direction: start, imports, reading and writing are
all counted. Targets, on 2 cores: 30 seconds and 6 GB of peak memory (the process's maximum resident
set) for each direction. The disk needs room for three copies of the weights.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

from bertjax.convert import formats, pretrained
from bertjax.data import tokenizer
from bertjax.models import EncoderConfig

FORMATS = ("huggingface", "bertjax")
TARGET_SECONDS = 30.0
TARGET_GB = 6.0
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def random_model(layers: int) -> pretrained.Pretrained:
    """Returns a pretraining BERT of the width of BERT-large with random weights."""
    config = EncoderConfig(
        hidden_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=16,
        intermediate_size=4096,
    )
    rng = np.random.default_rng(0)
    params = {
        path: rng.standard_normal(shape, np.float32)
        for path, shape in pretrained.shapes(config).items()
        if pretrained.is_required(path, "pretraining")
    }
    entries = [*SPECIAL, *(f"word{i}" for i in range(config.vocab_size - len(SPECIAL)))]
    return pretrained.Pretrained(
        config=config,
        params=params,
        vocabulary=tokenizer.WordPieceTokenizer(entries),
        head="pretraining",
        labels={},
        source="benchmarks/convert.py",
    )


def convert(source: pathlib.Path, target: pathlib.Path, form: str) -> tuple[float, float]:
    """Returns the seconds and the peak GB of one run of the program.

    Raises:
      RuntimeError: if it fails.
    """
    command = [sys.executable, "-m", "bertjax.convert", f"--from={source}", f"--to={target}"]
    start = time.perf_counter()
    process = subprocess.Popen([*command, f"--format={form}"], stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)  # the memory of this child alone
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"converting {source} to {form} failed: {errors.decode()[-2000:]}")
    return time.perf_counter() - start, usage.ru_maxrss * 1024 / 1e9


def measure(directory: pathlib.Path, layers: int) -> bool:
    """Prints a line for each direction; returns whether all meet the targets."""
    model = random_model(layers)
    print(f"{model.num_parameters / 1e6:.1f} M parameters, {platform.platform()}", flush=True)
    for form in FORMATS:
        formats.write(model, directory / form, format=form)
    del model
    met = True
    print("| from | to | seconds | peak GB |\n|---|---|---|---|")
    for source, form in itertools.permutations(FORMATS, 2):
        target = directory / f"{source}_to_{form}"
        seconds, gigabytes = convert(directory / source, target, form)
        shutil.rmtree(target)
        met &= seconds <= TARGET_SECONDS and gigabytes <= TARGET_GB
        print(f"| {source} | {form} | {seconds:.1f} | {gigabytes:.2f} |", flush=True)
    print(f"target {TARGET_SECONDS:.0f} s, {TARGET_GB:.0f} GB: {'met' if met else 'MISSED'}")
    return met


def main() -> None:
    """Reads the options and measures."""
    parser = argparse.ArgumentParser(description="Seconds and memory of each direction.")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--directory", default=None, help="where a scratch directory is made")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        sys.exit(0 if measure(pathlib.Path(directory), options.layers) else 1)


if __name__ == "__main__":
    main()
