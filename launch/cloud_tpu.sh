# shellcheck shell=bash
# What tpu_vm.sh and queued_resource.sh share: one loop around slices that may be taken away.
#
# The script that sources this says how it has slices:
#   nodes    the name of each of them
#   state    prints NONE, WAITING, READY, GONE (taken away), FAILED (never made) or UNKNOWN
#   create   asks for them
#   deletion the command that gives them back
# then it calls train_to_the_end.
# shellcheck disable=SC2154 # nodes, deletion
source "$(dirname "${BASH_SOURCE[0]}")/steps.sh"

[[ $# -ge 5 && $5 == gs://* ]] || usage
name=$1 zone=$2 type=$3
training=(--config="$4" --workdir="$5" "${@:6}")
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

# shellcheck disable=SC2034 # for `create`
case $type in # of docs.cloud.google.com/tpu/docs/runtimes
  v6e-*) runtime=v2-alpha-tpuv6e ;;
  v5p-*) runtime=v2-alpha-tpuv5 ;;
  v5litepod-*) runtime=v2-alpha-tpuv5-lite ;;
  *) runtime=tpu-ubuntu2204-base ;;
esac

tries=3
no_answer=255 # of ssh

train_to_the_end() { # on as many slices as it takes; exits with the code of the training
  if [[ -n ${DRY_RUN:-} ]]; then
    create && set_up && train && run "${deletion[@]}"
    exit
  fi
  trap leave EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  local status broken=0
  while true; do
    wait_until_ready || exit
    status=0
    { set_up && train; } || status=$?
    [[ $status -ne 0 ]] || exit 0
    pause 60 # The cloud learns of a preemption a little later than the connection.
    if [[ $(state) != READY ]]; then
      note "$name was taken away; asking for it again"
    elif [[ $status -eq $AGAIN ]]; then
      note "$name saved and stopped, but is still there; starting again"
    elif [[ $status -ne $no_answer ]]; then
      note "$name ended with code $status; to run it again would repeat that"
      exit "$status"
    elif ((++broken < tries)); then
      note "a host of $name does not answer; asking for another slice"
      remove || exit
    else
      note "$tries times a host of $name did not answer"
      exit "$UNAVAILABLE"
    fi
  done
}

wait_until_ready() {
  local now failures=0
  while now=$(state) && [[ $now != READY ]]; do
    note "$name: $now"
    case $now in
      NONE)
        create || {
          note "$name was not made; the lines above say why (quota, capacity, a wrong type)"
          return "$UNAVAILABLE"
        }
        ;;
      FAILED)
        ((++failures < tries)) || {
          note "$name failed $tries times; the lines above say why"
          return "$UNAVAILABLE"
        }
        remove || return
        ;;
      GONE) remove || return ;;
    esac
    pause 20
  done
}

# Runs "$1 NODE ..." for all slices at once; returns a code other than 0 if there is one.
on_slices() {
  local node pids=() pid status=0
  for node in "${nodes[@]}"; do
    "$1" "$node" "${@:2}" &
    pids+=($!)
    [[ -z ${DRY_RUN:-} ]] || wait "$!" # in order
  done
  for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
  return "$status"
}
send() { run gcloud compute tpus tpu-vm scp "$2" "$1:bertjax.tar.gz" --worker=all --zone="$zone"; }
tell() { run gcloud compute tpus tpu-vm ssh "$1" --worker=all --zone="$zone" --command="$2"; }
everywhere() { on_slices tell "$1"; }

set_up() { # on every host; returns a code other than 0 if that failed three times
  local archive=/tmp/bertjax-$name.tar.gz status try
  run git archive --format=tar.gz --output="$archive" HEAD
  for ((try = 1; try <= tries; try++)); do
    status=0
    install_everywhere "$archive" || status=$?
    [[ $status -ne 0 ]] || break
    note "the set-up of $name failed with code $status, try $try of $tries"
    pause 30
    [[ $(state) == READY ]] || break
  done
  return "$status"
}

install_everywhere() {
  on_slices send "$1" &&
    everywhere 'mkdir -p bertjax && tar -xzf bertjax.tar.gz -C bertjax && bertjax/launch/host.sh setup'
}

train() { # shows the log until the training ends, and returns its code
  local codes try=0
  everywhere "bertjax/launch/host.sh start $(printf '%q ' "${training[@]}")" || return
  is_training=yes
  until everywhere 'bertjax/launch/host.sh follow'; do
    note "the connection to $name broke; the training goes on without it"
    pause 60
    ((++try < tries)) && [[ $(state) == READY ]] || return "$no_answer"
  done
  is_training=
  codes=$(everywhere 'bertjax/launch/host.sh code') || return "$no_answer"
  [[ -z ${DRY_RUN:-} ]] || { echo "$codes"; return 0; }
  # A host that was told to stop ends with 75, one that lost its neighbours with any code.
  ! grep -qx "$AGAIN" <<< "$codes" || return "$AGAIN"
  return "$(sort -n <<< "$codes" | tail -n 1)"
}

remove() { give_back "$name" "${deletion[*]}" delete; }
delete() { [[ $(state) == NONE ]] || "${deletion[@]}"; }

leave() { # at every end: nothing that costs stays behind without a word
  local status=$?
  trap - EXIT
  trap 'note "wait: $name is being deleted"' INT TERM
  # shellcheck disable=SC2046
  kill $(jobs -p) 2>/dev/null || true
  if [[ -n ${KEEP:-} ]]; then
    echo "$name is still up, and costing. Delete it: ${deletion[*]}" >&2
    exit "$status"
  fi
  # Stopped by hand: the training saves first.
  [[ -z ${is_training:-} ]] || everywhere 'bertjax/launch/host.sh stop' || true
  remove || [[ $status -ne 0 ]] || status=$UNAVAILABLE
  exit "$status"
}
