#!/usr/bin/env bash
# PatchTST on ETTh1: pretraining without labels, and a linear probe of five horizons, on the test part.
#
#   benchmarks/etth1.sh DATA OUT
#
# DATA has ETTh1.csv (zhouhaoyi/ETDataset, ETT-small). The same command goes on where it stopped.
# PRETRAINING and PROBE are further options of each training, HORIZONS those to probe. A third of it:
#   PRETRAINING="--config.phases.phase1.num_epochs=3 --config.schedule.warmup_steps=114"
set -euo pipefail

data=$1 out=$2
cd "$(dirname "$0")/.."
horizons=${HORIZONS:-24 48 168 336 720}

for horizon in $horizons; do
  [ -d "$out/records/$horizon/test" ] || python -m data_pipelines.build_series --input="$data/ETTh1.csv" \
    --time_column=date --output="$out/records/$horizon" --window=512 --patch=12 --horizon="$horizon" \
    --season=24 --parts=8640,2880,2880
done

# The windows of the shortest horizon, as the authors pretrain on: 8,105 of 7 channels.
first=$out/records/${horizons%% *}
python -m bertjax.train --config=patchtst:base --workdir="$out/pretrained" \
  --config.data.train_dir="$first/train" --config.data.eval_dir="$first/heldout" ${PRETRAINING:-}

# A linear head on the frozen encoder, in batches of 64 windows; the held-out part selects its epoch.
for horizon in $horizons; do
  records=$out/records/$horizon
  # shellcheck disable=SC2086
  python -m bertjax.train --config=values --workdir="$out/probe_$horizon" \
    --config.init_from="$out/pretrained" --config.optimizer.frozen="('encoder\..*',)" \
    --config.finetuning.train_file="$records/train" --config.finetuning.eval_file="$records/heldout" \
    --config.finetuning.num_epochs=6 --config.global_batch_size=448 \
    --config.evaluation.global_batch_size=448 --config.evaluation.every_steps=127 \
    --config.checkpoint.keep_best=1 ${PROBE:-}
  python -m bertjax.evaluate --checkpoint="$out/probe_$horizon" --step=best \
    --data="$records/test" | tee "$out/test_$horizon.txt"
done
