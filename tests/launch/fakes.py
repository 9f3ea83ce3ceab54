"""Programs that stand for the clouds': they keep their machines in files, and fail on purpose.

A fake writes each of its calls to the file `calls`. A file `fails_VERB` has a line for each of the
next calls of that verb: the code that it ends with. A line of `trainings` is what the next training
does: the codes of its hosts, and "taken" if its machines are taken away meanwhile.
"""

import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).parents[2]

HEAD = """#!/usr/bin/env bash
cd "$CLOUD"
echo "${0##*/} $*" >> calls
fate() {
  [ -s "fails_$1" ] || return 0
  read -r code < "fails_$1"
  sed -i 1d "fails_$1"
  [ "$code" = 0 ] || exit "$code"
}
next() { head -n 1 "$1"; sed -i 1d "$1"; }
"""

# `vm` is the state of a slice on demand, `queue` that of the request; `states` are the next ones.
GCLOUD_TPU = """
there() { [[ $(cat vm queue 2>/dev/null) =~ READY|ACTIVE ]]; }
case "$*" in
  *"tpu-vm list"*) fate list; cat vm 2>/dev/null || true ;;
  *"tpu-vm create"*) fate create; echo READY > vm ;;
  *"tpu-vm delete"*) fate delete; rm vm ;;
  *"queued-resources list"*)
    fate list
    grep -qsE "WAITING|PROVISIONING" queue && next states > queue
    cat queue 2>/dev/null || true ;;
  *"queued-resources create"*)
    fate create
    [ ! -e queue ] || exit 1
    if [ -s states ]; then next states > queue; else echo ACTIVE > queue; fi ;;
  *"queued-resources delete"*) fate delete; rm queue ;;
  *"queued-resources describe"*) echo "quota exceeded" ;;
  *"tpu-vm scp"*) there || exit 1; fate scp ;;
  *"tpu-vm ssh bert-1"*) there || exit 1; case "$*" in *code) echo 0 ;; esac ;;
  *"tpu-vm ssh"*setup) there || exit 1; fate setup ;;
  *"tpu-vm ssh"*start*) there || exit 1; fate start ;;
  *"tpu-vm ssh"*follow)
    there || exit 1
    fate follow
    [ -s trainings ] || { echo "step 10"; exec /bin/sleep 30; }
    next trainings > training
    [[ $(cat training) = *taken ]] || exit 0
    [ ! -e vm ] || echo PREEMPTED > vm
    [ ! -e queue ] || echo SUSPENDED > queue ;;
  *"tpu-vm ssh"*code) there || exit 1; sed 's/ *taken//' training | tr ' ' '\\n' ;;
  *"tpu-vm ssh"*stop) ;;
  *) exit 2 ;;
esac
"""

# A file in `pools` is a pool of nodes.
GCLOUD_GKE = """
mkdir -p pools
case "$*" in
  *"node-pools list"*)
    fate list
    all="$*"
    name=${all##*--filter=name=}
    ls pools | grep -x "${name%% *}" || true ;;
  *"node-pools create"*) fate create; touch "pools/$4" ;;
  *"node-pools delete"*) fate delete; rm "pools/$4" ;;
  *) exit 2 ;;
esac
"""
# The JobSet controller, which starts hosts again; here it says how the JobSet ended.
KUBECTL = """
case "$*" in
  *apply*) fate apply; cat > "$(cat applied_to 2>/dev/null || echo jobset)" ;;
  *logs*) fate logs; echo "step 10" ;;
  *"get jobset"*) fate get; [ ! -e jobset ] || echo "JobSet $(next states)" ;;
  *"delete jobset"*) rm -f jobset ;;
  *) exit 2 ;;
esac
"""
GIT = "#!/bin/sh\necho 1a2b3c4\n"  # a commit; an sdist has none
DOCKER = """
[ "$1" != build ] || cat > image.tar
fate "$1"
"""

# `job` is the state of the job that sbatch runs, again where scontrol puts it back into the queue.
SBATCH = """
fate sbatch
for script; do shift; [[ $script == --config=* ]] && set -- "$script" "$@" && break; done
echo RUNNING > job
(
  while true; do
    rm -f again
    status=0
    SLURM_JOB_ID=7 bash "$BERTJAX_JOB/launch/slurm.sh" "$@" > job.log 2>&1 || status=$?
    [ -e again ] || break
  done
  echo "$status" > status
  rm job
) > /dev/null & # has the stderr of the script, whose end `launch` awaits
echo 7
"""
SRUN = """
read -r code fate <<< "$(next trainings)"
[ "$fate" != cancelled ] || echo COMPLETING > job
exit "$code"
"""
SQUEUE = "cat job 2>/dev/null\n"
SCONTROL = """
case "$*" in
  requeue*) fate requeue; touch again ;;
  show*)
    code=$(cat status)
    [ "$code" = 0 ] && state=COMPLETED || state=FAILED
    echo "JobId=7 JobName=bert JobState=$state Reason=None ExitCode=$code:0" ;;
esac
"""

SKY = """
case "$*" in
  "jobs launch"*) fate launch ;;
  "jobs logs"*) fate logs ;;
  *) exit 2 ;;
esac
"""


def install(folder, **programs):
    """Returns an environment with these `programs`, which keep their state in `folder`."""
    (folder / "bin").mkdir()
    for name, text in programs.items():
        path = folder / "bin" / name
        path.write_text(text if text.startswith("#!") else HEAD + text)
        path.chmod(0o755)
    (folder / "calls").touch()
    return os.environ | {"CLOUD": str(folder), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


def launch(environment, script, *arguments, **variables):
    """Returns the finished run of a script of launch/, after the jobs that it leaves."""
    return subprocess.run(
        [ROOT / "launch" / script, *arguments],
        env=environment | {name: str(value) for name, value in variables.items()},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def calls(folder, *words):
    """Returns the calls that have all of `words`."""
    lines = (folder / "calls").read_text().splitlines()
    return [line for line in lines if all(word in line for word in words)]
