#!/usr/bin/env bash
# Runs a command beside a Slurm cluster of this machine alone: `tests/launchers/slurm.sh COMMAND..`. The cluster is
# made in a folder of its own, serves the ports below, and is gone when the command ends, with everything it started.
# Needs munged, slurmctld, slurmd and srun; no service of the system is used or touched.
set -euo pipefail
for program in munged slurmctld slurmd srun scontrol; do
    PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || {
        echo "slurm.sh: $program is missing; apt-get install slurmctld slurmd slurm-client munge" >&2
        exit 1
    }
done
PATH=$PATH:/usr/sbin

folder=$(mktemp -d)
port=$((17000 + $$ % 1000 * 2))
pids=()

stop() {
    status=$?
    trap - EXIT
    # The last started first: tasks, then slurmd, slurmctld, munged.
    scancel --user="$(id -un)" 2>/dev/null || true
    for ((index = ${#pids[@]} - 1; index >= 0; index--)); do
        kill "${pids[index]}" 2>/dev/null || true
        wait "${pids[index]}" 2>/dev/null || true
    done
    if [ "$status" != 0 ]; then
        tail -n 40 "$folder"/*.log >&2 || true
    fi
    rm -rf "$folder"
    exit "$status"
}
trap stop EXIT
trap 'exit 130' INT TERM

# Munge wants its socket in a folder that all can enter, and its key in one that nobody else can.
chmod 755 "$folder"
mkdir -m 755 "$folder/socket"
mkdir -m 700 "$folder/key" "$folder/state" "$folder/spool"
head -c 1024 /dev/urandom >"$folder/key/munge"
chmod 600 "$folder/key/munge"
munged --foreground --force --key-file="$folder/key/munge" --socket="$folder/socket/munge" \
    --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" --seed-file="$folder/key/seed" &>"$folder/munged.out.log" &
pids+=($!)

export SLURM_CONF=$folder/slurm.conf
cat >"$SLURM_CONF" <<CONF
ClusterName=mkernel
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/socket/munge
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=16 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF

slurmctld -D &>"$folder/slurmctld.out.log" &
pids+=($!)
slurmd -D &>"$folder/slurmd.out.log" &
pids+=($!)
for ((try = 0; ; try++)); do
    if [[ "$(timeout 5 sinfo --noheader --format=%t 2>/dev/null)" == idle ]]; then break; fi
    if [ "$try" = 300 ]; then
        echo "slurm.sh: the node is not idle after a minute" >&2
        exit 1
    fi
    sleep 0.2
done
"$@"
