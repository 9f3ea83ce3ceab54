#!/usr/bin/env bash
# From nothing to a trained encoder in ten minutes on two CPU cores: a corpus from the documentation
# of the installed Python packages, a vocabulary, records, pretraining, a score, some filled masks.
#
#   bash launch/quickstart.sh
#
# It needs bertjax, installed or in this folder, and no other file of the checkout. QUICKSTART_DIR
# (default: quickstart, here) takes everything that is written. A second call continues.
# QUICKSTART_OPTIONS are more options of bertjax.start: "--config.phases.phase1.num_steps=100".
set -euo pipefail
dir=${QUICKSTART_DIR:-quickstart}
export TF_CPP_MIN_LOG_LEVEL=2

# shellcheck disable=SC2086
python -m bertjax.start --config=quickstart --input=documentation --output="$dir" \
  --normalization=bert_uncased --vocabulary_size=8192 ${QUICKSTART_OPTIONS:-} \
  --build_options=--dupe_factor=3

python -m bertjax.fill_mask --checkpoint="$dir/run" \
  "Returns a new array of the same [MASK] and type as the input." \
  "See the documentation for more [MASK]." \
  "The default [MASK] is None."
