#!/usr/bin/env bash
# Trains on the cheapest spot slice that SkyPilot finds, and on the next when it is taken away:
#   pip install 'skypilot[gcp]' && sky check
#   launch/skypilot.sh NAME CONFIG WORKDIR [option of bertjax.train ...]
#   launch/skypilot.sh bert configs/bert_base.py gs://BUCKET/base \
#     --config.data.train_dir=gs://BUCKET/train_{max_seq_length}
# SkyPilot's controller makes the slice, sets it up, starts again by itself and deletes it at the end,
# whether this script runs or not. The script follows the log; Ctrl-C leaves the job alone.
#   SKY_OPTIONS="--gpus=A100:8"  more options of sky jobs launch
#   DRY_RUN=1                    prints the commands
set -euo pipefail
source "$(dirname "$0")/steps.sh"

[[ $# -ge 3 && $3 == gs://* ]] || usage
cd "$(dirname "$0")/.."
options=$(printf '%q ' --config="$2" --workdir="$3" "${@:4}")

# shellcheck disable=SC2086
run sky jobs launch --yes --detach-run --name="$1" --env OPTIONS="${options% }" ${SKY_OPTIONS:-} \
  launch/skypilot.yaml || {
  note "the job was not taken; the lines above say why (quota, credentials, a wrong option)"
  exit "$UNAVAILABLE"
}
trap 'note "job $1 goes on; sky jobs cancel --name=$1 ends it"; exit 130' INT TERM
while true; do
  status=0
  run sky jobs logs --follow --name="$1" || status=$?
  case $status in # those of sky.exceptions.JobExitCode
    0) exit 0 ;;
    100) note "job $1 failed; to run it again would repeat that" && exit 1 ;;
    102 | 103) note "job $1 was cancelled, or is unknown" && exit "$UNAVAILABLE" ;;
  esac
  note "no log now (code $status): the slice starts, or was taken away"
  pause 60
done
