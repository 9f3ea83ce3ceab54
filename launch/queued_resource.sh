#!/usr/bin/env bash
# Trains on a spot slice that waits in the queue, and starts over each time it is taken away:
#   launch/queued_resource.sh NAME ZONE TYPE CONFIG WORKDIR [option of bertjax.train ...]
# The workdir and the records must be gs://, for the hosts and their disks do not come back. Leave it
# running in a terminal that lasts (tmux). It deletes the slice when training ends, well or badly.
set -euo pipefail

if [[ $# -lt 5 || $5 != gs://* ]]; then
  sed -n '2,5s/^# //p' "$0" >&2
  exit 2
fi
name=$1 zone=$2 type=$3
here=$(dirname "$0")

queue() { gcloud compute tpus queued-resources "$@" --zone="$zone"; }
state() { # of the request; UNKNOWN where the question itself fails
  local found
  found=$(queue list --filter="name ~ /$name\$" --format='value(state.state)') || found=UNKNOWN
  echo "${found:-NONE}"
}
remove() { [[ $(state) == NONE ]] || queue delete "$name" --force --quiet; }
trap remove EXIT

case $type in
  v6e-*) runtime=v2-alpha-tpuv6e ;;
  v5p-*) runtime=v2-alpha-tpuv5 ;;
  v5litepod-*) runtime=v2-alpha-tpuv5-lite ;;
  *) runtime=tpu-ubuntu2204-base ;;
esac

while true; do
  [[ $(state) != NONE ]] ||
    queue create "$name" --node-id="$name" --accelerator-type="$type" \
      --runtime-version="$runtime" --spot --async
  until [[ $(state) == ACTIVE ]]; do
    case $(state) in
      FAILED | SUSPENDED) remove && continue 2 ;;
    esac
    echo "$(date +%T) $name: $(state)"
    sleep 60
  done
  TPU_VM_MUST_EXIST=1 "$here/tpu_vm.sh" "$@" && exit 0 || status=$?
  sleep 60 # The queue learns of a preemption a little later than the connection.
  # 75: saved after a notice; 69: gone before training began. With any other code and the slice
  # still there, the command is wrong.
  [[ $status -eq 75 || $status -eq 69 || $(state) != ACTIVE ]] || exit "$status"
  echo "$(date +%T) $name was taken away; back to the queue"
  remove
done
