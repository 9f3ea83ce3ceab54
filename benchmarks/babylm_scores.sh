#!/usr/bin/env bash
# Scores of a hybrid run of babylm.sh, and its export for the package: docs/results.md.
#
#   benchmarks/babylm_scores.sh SOURCES RUN SCORES
#
# SOURCES has blimp/pairs.jsonl.xz, glue/ (official folders) and ner/wnut17_*.conll. SCORES
# gets a file for each score; what is there is kept, so the same command goes on where it stopped.
set -euo pipefail

sources=$1 run=$2 scores=$3
cd "$(dirname "$0")/.."
mkdir -p "$scores"

# result FILE COMMAND: the file is there when the command has ended well.
result() {
  [ -e "$1" ] || { "${@:2}" > "$1.part" && mv "$1.part" "$1"; }
}

# The first 100 pairs of each paradigm, which stand together by the thousand.
result "$scores/blimp.jsonl" bash -c "xzcat '$sources/blimp/pairs.jsonl.xz' | awk '(NR - 1) % 1000 < 100'"
steps=$(python -c "
from bertjax.workdirs import checkpoint
print(*(f'{mark}:{step}' for mark, step in checkpoint.read_meta('$run')[0]['word_marks']), 'end:newest')")
for reading in masked causal fused; do
  for mark in $steps; do
    result "$scores/blimp_${reading}_${mark%:*}.json" python -m bertjax.evaluate --json \
      --checkpoint="$run" --step="${mark#*:}" --pairs="$scores/blimp.jsonl" --reading="$reading"
  done
done

for task in cola rte stsb wnli sst2; do
  seeds=3
  [ "$task" = sst2 ] && seeds=1
  python -m bertjax.train --config="configs/glue.py:$task" --config.init_from="$run" \
    --workdir="$scores/glue/$task" --config.finetuning.data_dir="$sources/glue" \
    --config.finetuning.protocol=sane --config.seeds="$seeds" --config.finetuning.pooling=mean
done
python -m bertjax.train --config=configs/conll.py --config.init_from="$run" \
  --workdir="$scores/wnut" --config.seeds=3 \
  --config.schedule.peak_learning_rate=5e-5 --config.finetuning.num_epochs=3 \
  --config.finetuning.train_file="$sources/ner/wnut17_train.conll" \
  --config.finetuning.eval_file="$sources/ner/wnut17_dev.conll" \
  --config.finetuning.test_file="$sources/ner/wnut17_test.conll"

[ -e "$scores/babylm-mini" ] || python -m bertjax.convert --from="$run" --to="$scores/babylm-mini" \
  --dtype=float16 --license=apache-2.0
