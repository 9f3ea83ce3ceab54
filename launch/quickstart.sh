#!/usr/bin/env bash
# From nothing to a trained encoder in ten minutes on two CPU cores: a corpus from the documentation
# of the installed Python packages, a vocabulary, records, pretraining, a score, some filled masks.
#
#   bash launch/quickstart.sh
#
# It needs bertjax, installed or in this folder, and no other file of the checkout. QUICKSTART_DIR
# (default: quickstart, here) takes everything that is written. A second call continues.
# QUICKSTART_OPTIONS are more options of bertjax.train: "--config.phases.phase1.num_steps=100".
set -euo pipefail
dir=${QUICKSTART_DIR:-quickstart}
export TF_CPP_MIN_LOG_LEVEL=2

# Prints a command, then runs it.
step() {
  printf '\n$'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}

mkdir -p "$dir"
if [ ! -d "$dir/vocabulary" ]; then
  step python -m data_pipelines.train_vocabulary --input=documentation \
    --output="$dir/vocabulary" --size=8192 --normalization=bert_uncased
fi
for split in train heldout; do
  if [ ! -d "$dir/$split" ]; then
    step python -m data_pipelines.build --input=documentation --split=$split \
      --vocabulary="$dir/vocabulary" --output="$dir/$split" --max_seq_length=32 --dupe_factor=3
  fi
done

# shellcheck disable=SC2086
step python -m bertjax.train --config=quickstart --workdir="$dir/run" \
  --config.data.train_dir="$dir/train" --config.data.eval_dir="$dir/heldout" ${QUICKSTART_OPTIONS:-}

step python -m bertjax.evaluate --checkpoint="$dir/run" --data="$dir/heldout"

step python -m bertjax.fill_mask --checkpoint="$dir/run" \
  "Returns a new array of the same [MASK] and type as the input." \
  "See the documentation for more [MASK]." \
  "The default [MASK] is None."
