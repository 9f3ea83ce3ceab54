"""Runs the released create_pretraining_data.py and prints the seconds of its main function.

    python benchmarks/released_data.py FOLDER OPTIONS_OF_THE_SCRIPT

FOLDER is a checkout of google-research/bert. The script was written for TensorFlow 1, whose names
TensorFlow 2 keeps in `tensorflow.compat.v1`; imports are not timed. `data_build.py` calls this.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# TensorFlow makes this module when it is imported, and the environment comes first.
import tensorflow.compat.v1 as tensorflow_1  # noqa: E402  # pyright: ignore[reportMissingImports]


def main() -> None:
    """Imports the script with TensorFlow 1's names in place, and times its main."""
    folder, *arguments = sys.argv[1:]
    sys.modules["tensorflow"] = tensorflow_1
    sys.path.insert(0, folder)
    import create_pretraining_data  # pyright: ignore[reportMissingImports]

    flags = tensorflow_1.flags.FLAGS
    flags([sys.argv[0], *arguments])
    tensorflow_1.logging.set_verbosity(tensorflow_1.logging.ERROR)
    begin = time.perf_counter()
    create_pretraining_data.main(None)
    seconds = time.perf_counter() - begin
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
