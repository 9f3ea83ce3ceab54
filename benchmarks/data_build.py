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
import importlib
import json
import os
import pathlib
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence

import psutil

from bertjax.data import records

HERE = pathlib.Path(__file__).parent
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
    options = parser.parse_args(argv)
    if options.timed_build:
        print(json.dumps(timed_build(options, *options.timed_build)))
        return 0
    print(f"python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}")
    with tempfile.TemporaryDirectory() as folder:
        if options.gigabytes:
            measure_memory(options, pathlib.Path(folder))
        else:
            measure_speed(options, pathlib.Path(folder))
    return 0


def timed_build(
    options: argparse.Namespace, text: str, algorithm: str, num_workers: str
) -> dict[str, float]:
    """Builds once in this process and returns the seconds after all imports."""
    # The last two are imported when a build ends; like the script's own imports, they do not count.
    from data_pipelines import build, workers
    from data_pipelines.building import blocks
    from data_pipelines.building.options import Options

    records.import_tensorflow()
    importlib.import_module("tensorflow_datasets")

    with tempfile.TemporaryDirectory() as folder:
        chosen = Options(
            input=text,
            vocabulary=options.vocabulary,
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
        vocabulary = blocks.Vocabulary.of(options.vocabulary, None)
        with workers.Pool(chosen.num_workers, vocabulary.load) as pool:
            list(pool.map(int, [0] * chosen.num_workers))
        start = time.perf_counter()
        manifest = build.build(chosen)
        return {
            "seconds": time.perf_counter() - start,
            "start_of_processes": start - begin,
            "examples": manifest.num_examples,
        }


def measure_speed(options: argparse.Namespace, folder: pathlib.Path) -> None:
    """Prints the seconds per MB of every program and their ratios to the released script."""
    text = head(options.input, options.megabytes, folder / "text.txt")
    workers = os.cpu_count() or 1
    programs = {
        "fast, 1 process": ours(options, text, "fast", 1),
        f"fast, {workers} processes": ours(options, text, "fast", workers),
        "exact": ours(options, text, "exact", 1),
    }
    if options.released:
        programs["released"] = released(options, text, folder)
    megabytes = text.stat().st_size / 1e6
    found: dict[str, list[float]] = {name: [] for name in programs}
    starts: list[float] = []
    for turn in range(options.rounds):
        for name, command in programs.items():
            output = output_of(command)
            seconds = output["seconds"] / megabytes
            found[name].append(seconds)
            if name == f"fast, {workers} processes":
                starts.append(output["start_of_processes"] / megabytes)
            print(f"turn {turn + 1}, {name}: {seconds:.3f} s/MB", flush=True)
    medians = {name: statistics.median(values) for name, values in found.items()}
    for name, values in found.items():
        line = f"{name:20} {medians[name]:.3f} s/MB ({min(values):.3f} to {max(values):.3f})"
        if options.released and name != "released":
            line += f", {medians['released'] / medians[name]:.1f} times the released script"
            line += f" (target {TARGETS[name.split(',')[0]]:g})"
        print(line)
    many, one = medians[f"fast, {workers} processes"], medians["fast, 1 process"]
    start = statistics.median(starts)
    print(
        f"{workers} processes against one: {one / many:.2f} times; {one / (many - start):.2f} "
        f"times without the {start:.3f} s/MB in which they start (target {CORES_TARGET} on 2)"
    )


def measure_memory(options: argparse.Namespace, folder: pathlib.Path) -> None:
    """Prints the peak memory of a build from a text of the given size."""
    text = repeated(options.input, options.gigabytes, folder / "text.txt")
    command = ours(options, text, "fast", os.cpu_count() or 1)
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peaks = Peaks(process.pid)
    output, _ = process.communicate()
    peaks.stop()
    if process.returncode:
        raise RuntimeError(f"{command} failed with {process.returncode}")
    found = json.loads(output.splitlines()[-1])
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


def ours(
    options: argparse.Namespace, text: pathlib.Path, algorithm: str, workers: int
) -> list[str]:
    """Returns the command of one of our builds."""
    common = [f"--input={options.input}", f"--vocabulary={options.vocabulary}"]
    timed = ["--timed_build", str(text), algorithm, str(workers)]
    return [sys.executable, str(HERE / "data_build.py"), *common, *timed]


def released(options: argparse.Namespace, text: pathlib.Path, folder: pathlib.Path) -> list[str]:
    """Returns the command of the released script."""
    return [
        *(sys.executable, str(HERE / "released_data.py"), options.released),
        *(f"--input_file={text}", f"--output_file={folder / 'released.tfrecord'}"),
        *(f"--vocab_file={options.vocabulary}", "--do_lower_case=True"),
        *(f"--max_seq_length={LENGTH}", f"--max_predictions_per_seq={PREDICTIONS}"),
        *(f"--dupe_factor={PASSES}", f"--random_seed={SEED}"),
    ]


def output_of(command: list[str]) -> dict[str, float]:
    """Runs a command and returns the JSON of its last line."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


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
