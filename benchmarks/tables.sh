#!/usr/bin/env bash
# Tables: a finetuning from scratch, and two from pretrainings; their test scores: docs/results.md.
#
#   benchmarks/tables.sh TABLE DIR [START ...]
#
# TABLE is california or adult, DIR has TABLE.csv of `python -m benchmarks.value_tables prepare`, and
# gets the rest. START is scratch, replaced or values; all by default. The same command goes on where
# it stopped. STEPS, EPOCHS and SEEDS are those of a pretraining and of the finetunings from it; SIZE
# and TUNING are further options of the two. The heldout part selects the evaluation whose test score
# (`unseen`) counts.
set -euo pipefail

table=$1 dir=$2
shift 2
[ $# -gt 0 ] || set -- scratch replaced values
cd "$(dirname "$0")/.."
declare -A labels=([california]=price [adult]=income)

[ -e "$dir/$table/test" ] ||
  python -m data_pipelines.build_tables --input="$dir/$table.csv" --label="${labels[$table]}" \
    --part_column=part --output="$dir/$table"

for start in "$@"; do
  steps=${STEPS:-100000} recipe=$start
  # Finetuning begins with weights: from scratch with those of a single step at almost no rate.
  [ "$start" != scratch ] || steps=1 recipe="replaced --config.schedule.peak_learning_rate=1e-12"
  # shellcheck disable=SC2086
  python -m bertjax.train --config=tables:$recipe --workdir="$dir/runs/${table}_$start" \
    --config.data.train_dir="$dir/$table/train" --config.data.eval_dir="$dir/$table/heldout" \
    --config.phases.phase1.num_epochs=0 --config.phases.phase1.num_steps="$steps" ${SIZE:-}
  # shellcheck disable=SC2086
  python -m bertjax.train --config=values --workdir="$dir/runs/${table}_${start}_tuned" \
    --config.init_from="$dir/runs/${table}_$start" --config.seeds="${SEEDS:-5}" \
    --config.finetuning.train_file="$dir/$table/train" \
    --config.finetuning.eval_files="heldout=$dir/$table/heldout,unseen=$dir/$table/test" \
    --config.global_batch_size=128 --config.finetuning.num_epochs="${EPOCHS:-50}" ${TUNING:-}
  python -m benchmarks.value_tables scores "$dir/runs/${table}_${start}_tuned"
done
