r"""Text to records like `build`, as an Apache Beam pipeline, for corpora larger than one machine.

    python -m data_pipelines.beam --runner=DirectRunner --input='corpus/*.txt' \
        --vocabulary=DIR_OR_VOCAB_TXT --output=DIR --max_seq_length=128

The options are those of `data_pipelines.build`, and so are the records, byte for byte; what is
neither is passed on to Beam. Input, output and `--scratch` must be places that all workers reach.
"""

from __future__ import annotations

import sys

try:
    from data_pipelines.beam import program
except ModuleNotFoundError as error:
    sys.exit(f"bertjax: {error}")

if __name__ == "__main__":
    program.start()
