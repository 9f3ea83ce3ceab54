#!/usr/bin/env bash
# Trains on nodes of a Slurm cluster, one process on each, and again when they are taken away:
#   launch/slurm.sh NAME NODES CONFIG WORKDIR [option of bertjax.train ...]
#   SBATCH_OPTIONS="--partition=gpu --gpus-per-node=8 --time=24:00:00" \
#     launch/slurm.sh bert 4 configs/bert_base.py /shared/base \
#     --config.data.train_dir=/shared/train_{max_seq_length}
# It installs this checkout, which all nodes must see, submits a job and follows its log. Before the
# time limit, or when Slurm takes the nodes, the run saves and the job queues again. Ctrl-C leaves the
# job alone; scancel ends it.
#   SBATCH_OPTIONS  of sbatch
#   EXTRA=cuda13    what is installed beside JAX: cuda13, cuda12, cpu
#   VENV=.venv      the environment; it is made if it is not there
#   DRY_RUN=1       prints the commands
set -euo pipefail

# In the job, of which Slurm runs a copy of this file.
if [[ -n ${BERTJAX_JOB:-} ]]; then
  cd "$BERTJAX_JOB"
  source launch/steps.sh
  trap : TERM # Slurm tells the processes of the step; srun itself would kill them.
  status=0
  srun --kill-on-bad-exit=0 "$VENV/bin/python" -m bertjax.train --distributed "$@" || status=$?
  # A job that was cancelled saves too, and is not to come back.
  if [[ $status -eq $AGAIN && $(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T) == RUNNING ]]; then
    note "saved; the job queues again"
    scontrol requeue "$SLURM_JOB_ID"
  fi
  exit "$status"
fi

source "$(dirname "$0")/steps.sh"
[[ $# -ge 4 ]] || usage
cd "$(dirname "$0")/.."
export BERTJAX_JOB=$PWD VENV=${VENV:-$PWD/.venv}

if [[ ! -d $VENV ]]; then
  run python3 -m venv "$VENV"
  run "$VENV/bin/pip" install --quiet -e ".[${EXTRA:-cuda13}]"
fi

# TERM goes to the processes of the steps, not to the shell, three minutes before the time limit.
# shellcheck disable=SC2206
command=(
  sbatch --parsable --job-name="$1" --nodes="$2" --ntasks-per-node=1 --requeue --signal=TERM@180
  --open-mode=append --output="$PWD/$1-%j.log" --export=ALL ${SBATCH_OPTIONS:-}
  launch/slurm.sh --config="$3" --workdir="$4" "${@:5}"
)
if [[ -n ${DRY_RUN:-} ]]; then
  run "${command[@]}"
  exit
fi
job=$("${command[@]}") || {
  note "the job was not taken; the lines above say why (quota, partition, a wrong option)"
  exit "$UNAVAILABLE"
}
job=${job%%;*} # of several clusters it is ID;CLUSTER
log=$PWD/$1-$job.log
note "job $job; its log is $log; scancel $job ends it"

# Seen to be gone twice: between an end and the next turn in the queue a job may be nowhere.
tail -n +1 --retry -F "$log" 2>/dev/null &
trap 'kill %1; note "job $job goes on; scancel $job ends it"; exit 130' INT TERM
for ((absent = 0; absent < 2; )); do
  pause 15
  if now=$(squeue --noheader --jobs="$job" --format=%T 2>/dev/null) && [[ -n $now ]]; then
    absent=0
  else
    ((++absent))
  fi
done
kill %1

found=$(scontrol show job --oneliner "$job") || found="JobState=UNKNOWN ExitCode=1:0"
[[ $found =~ JobState=([A-Z_]+) ]] && state=${BASH_REMATCH[1]}
[[ $found =~ ExitCode=([0-9]+): ]] && status=${BASH_REMATCH[1]}
note "job $job: ${state:-UNKNOWN}"
[[ ${state:-} == COMPLETED ]] || exit "$((${status:-1} ? ${status:-1} : 1))"
