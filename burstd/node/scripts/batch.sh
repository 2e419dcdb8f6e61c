# Says whether Slurm has begun the batch script of a job here: 'begun' or 'none'. $1: the job's number.
# slurmd's Prolog, which may come before it, has the number in its environment as well as the script.
job=$1
for command in /proc/[0-9]*/cmdline; do
    case $(tr '\0' ' ' <"$command" 2>/dev/null) in
    "slurmstepd: [$job.batch]"*) echo begun; exit ;;
    esac
done
if grep -qzsx "SLURM_JOB_ID=$job" /proc/[0-9]*/environ; then echo begun; else echo none; fi
