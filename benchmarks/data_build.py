"""The speed from text to records, compared with the released create_pretraining_data.py.

    python benchmarks/data_build.py --input=TEXT --vocabulary=vocab.txt --released=CHECKOUT

CHECKOUT is a folder with the two scripts of github.com/google-research/bert (tokenization.py and
create_pretraining_data.py). TEXT is in its format: one sentence per line, blank lines between
documents. Every program makes the examples of BERT's first phase (128 tokens, 20 predictions, ten
passes) of the first `--megabytes` of the text; programs take turns, and the medians are compared.
Start-up (imports) is excluded on both sides. The released script takes some 10 seconds and 400 MB
of memory for each MB.

    python benchmarks/data_build.py --input=TEXT --vocabulary=vocab.txt --gigabytes=1

repeats the text (words of each copy shuffled among themselves, so that copies differ) to that size
and measures the peak memory of a build with all cores: of all processes together, mapped pages of
files included once.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import pathlib
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

import peer
import psutil
import report

from bertjax.data import records

LENGTH, PREDICTIONS, PASSES, SEED = 128, 20, 10, 12345
TARGETS = {"fast": 20.0, "exact": 2.0}
CORES_TARGET = 1.7
MEMORY_TARGET = 2e9


def main(argv: Sequence[str] | None = None) -> int:
    """Measures speed or memory and prints it with the target."""
    parser = argparse.ArgumentParser(description="Seconds and memory from text to records.")
    parser.add_argument("--input", required=True, help="a text file, one sentence per line")
    parser.add_argument("--vocabulary", required=True, help="a vocab.txt")
    parser.add_argument("--released", help="a folder with the released scripts")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every program")
    parser.add_argument("--megabytes", type=float, default=20, help="how much of it to use")
    parser.add_argument("--gigabytes", type=float, help="measure the memory of so large a build")
    parser.add_argument("--timed_build", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--timed_script", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.timed_build:
        timed_build(options.vocabulary, *options.timed_build)
        return 0
    if options.timed_script:
        timed_script(options.released, options.vocabulary, *options.timed_script)
        return 0
    print(report.machine())
    with tempfile.TemporaryDirectory() as folder:
        measure = measure_memory if options.gigabytes else measure_speed
        measure(options, pathlib.Path(folder))
    return 0


def timed_build(vocabulary: str, text: str, algorithm: str, num_workers: str) -> None:
    """Builds once in this process and tells the seconds after all imports."""
    # The last two are imported when a build ends; like the script's own imports, they do not count.
    from data_pipelines import build, workers
    from data_pipelines.building import blocks
    from data_pipelines.building.options import Options

    records.import_tensorflow()
    importlib.import_module("tensorflow_datasets")

    with tempfile.TemporaryDirectory() as folder:
        chosen = Options(
            input=text,
            vocabulary=vocabulary,
            output=f"{folder}/records",
            max_seq_length=LENGTH,
            max_predictions_per_seq=PREDICTIONS,
            dupe_factor=PASSES,
            random_seed=SEED,
            algorithm=algorithm,
            sentence_splitter="lines",
            num_workers=int(num_workers),
        )
        begin = time.perf_counter()
        loaded = blocks.Vocabulary.of(vocabulary, None)
        with workers.Pool(chosen.num_workers, loaded.load) as pool:
            list(pool.map(int, [0] * chosen.num_workers))
        start = time.perf_counter()
        manifest = build.build(chosen)
        end = time.perf_counter()
    begun = {"seconds": end - start, "start_of_processes": start - begin}
    peer.tell(**begun, examples=manifest.num_examples)


def timed_script(folder: str, vocabulary: str, text: str, output: str) -> None:
    """Runs the released script and tells the seconds of its main function, without imports.

    It was written for TensorFlow 1, whose names TensorFlow 2 keeps in `tensorflow.compat.v1`.
    """
    import tensorflow.compat.v1 as tensorflow_1  # pyright: ignore[reportMissingImports]

    sys.modules["tensorflow"] = tensorflow_1
    sys.path.insert(0, folder)
    import create_pretraining_data  # pyright: ignore[reportMissingImports]

    given = {"input_file": text, "output_file": output, "vocab_file": vocabulary}
    given |= {"do_lower_case": True, "max_seq_length": LENGTH, "dupe_factor": PASSES}
    given |= {"max_predictions_per_seq": PREDICTIONS, "random_seed": SEED}
    flags = [f"--{name}={value}" for name, value in given.items()]
    tensorflow_1.flags.FLAGS([sys.argv[0], *flags])
    tensorflow_1.logging.set_verbosity(tensorflow_1.logging.ERROR)
    begin = time.perf_counter()
    create_pretraining_data.main(None)
    peer.tell(seconds=time.perf_counter() - begin)


def command(options: argparse.Namespace, program: str, *arguments: object) -> list[str]:
    """Returns what runs one of the two functions above in a process."""
    flags = [f"--input={options.input}", f"--vocabulary={options.vocabulary}"]
    flags += [f"--released={options.released}"] if options.released else []
    return [sys.executable, __file__, *flags, f"--{program}", *map(str, arguments)]


def measure_speed(options: argparse.Namespace, folder: pathlib.Path) -> None:
    """Prints the seconds per MB of every program and their ratios to the released script."""
    text = head(options.input, options.megabytes, folder / "text.txt")
    workers = os.cpu_count() or 1
    one, many = "fast, 1 process", f"fast, {workers} processes"
    builds = {one: ("fast", 1), many: ("fast", workers), "exact": ("exact", 1)}
    programs = {name: command(options, "timed_build", text, *of) for name, of in builds.items()}
    if options.released:
        output = folder / "released.tfrecord"
        programs["released"] = command(options, "timed_script", text, output)
    megabytes = text.stat().st_size / 1e6

    def timed(name: str) -> dict[str, Any]:
        (told,) = peer.answers(programs[name])
        print(f"{name}: {told['seconds'] / megabytes:.3f} s/MB", flush=True)
        return told

    turns = {name: functools.partial(timed, name) for name in programs}
    found = report.take_turns(turns, options.rounds)
    seconds = {name: [it["seconds"] / megabytes for it in told] for name, told in found.items()}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name, values in seconds.items():
        line = f"{name}: median {report.median(values, '.3f')} s/MB"
        if options.released and name != "released":
            line += f", {medians['released'] / medians[name]:.1f} times the released script"
            line += f" (target {TARGETS[name.split(',')[0]]:g})"
        print(line)
    starts = [it["start_of_processes"] / megabytes for it in found[many]]
    start = statistics.median(starts)
    print(
        f"{workers} processes against one: {medians[one] / medians[many]:.2f} times; "
        f"{medians[one] / (medians[many] - start):.2f} times without the {start:.3f} s/MB in which "
        f"they start (target {CORES_TARGET} on 2)"
    )


def measure_memory(options: argparse.Namespace, folder: pathlib.Path) -> None:
    """Prints the peak memory of a build from a text of the given size."""
    text = repeated(options.input, options.gigabytes, folder / "text.txt")
    begin = time.perf_counter()
    build = command(options, "timed_build", text, "fast", os.cpu_count() or 1)
    with peer.Peer(build) as process:
        peaks = Peaks(process.pid)
        found = process.answer()
    peaks.stop()
    print(
        f"{text.stat().st_size / 1e9:.2f} GB of text, {found['examples']:,} examples, "
        f"{time.perf_counter() - begin:.0f} s"
    )
    print(
        f"peak memory of all processes: {peaks.proportional / 1e9:.2f} GB with mapped files, "
        f"{peaks.private / 1e9:.2f} GB without (target {MEMORY_TARGET / 1e9:g} GB)"
    )


class Peaks:
    """The largest memory of a process and its children, looked at twice a second until `stop`.

    `proportional`: a page that several processes share is divided among them; `private`: pages
    that no file stands behind.
    """

    def __init__(self, pid: int):
        self.proportional = self.private = 0
        self._process = psutil.Process(pid)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        """Ends the watching."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(0.5):
            proportional = private = 0
            try:
                everyone = [self._process, *self._process.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            for one in everyone:
                try:
                    full = one.memory_full_info()
                except (psutil.NoSuchProcess, psutil.ZombieProcess):
                    continue
                proportional += full.pss
                private += full.rss - full.shared
            self.proportional = max(self.proportional, proportional)
            self.private = max(self.private, private)


def head(path: str, megabytes: float, output: pathlib.Path) -> pathlib.Path:
    """Writes the first whole lines of a text, about `megabytes` of them."""
    written = 0
    with open(path, "rb") as source, output.open("wb") as target:
        for line in source:
            if written >= megabytes * 1e6:
                break
            target.write(line)
            written += len(line)
    return output


def repeated(path: str, gigabytes: float, output: pathlib.Path) -> pathlib.Path:
    """Writes copies of a text until it has the size; each but the first with its words shuffled."""
    rng = random.Random(SEED)
    lines = pathlib.Path(path).read_text(encoding="utf-8").split("\n")
    with output.open("w", encoding="utf-8") as target:
        while target.tell() < gigabytes * 1e9:
            target.write("\n".join(lines) + "\n\n")
            lines = [" ".join(rng.sample(words, len(words))) for words in map(str.split, lines)]
    return output


if __name__ == "__main__":
    sys.exit(main())
