# Asks Google's metadata service whether this Spot VM is taken back: prints one line, or nothing, also where the service
# cannot be reached. Speaks by curl; where there is none by python3, which cloud-init needs anyway.
#   interruption SECONDS    it ends then, in seconds since 1970
# https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption
# $BURSTD_METADATA: the service, if not Google's. $BURSTD_NOTICE_S: seconds between the notice and the end.
# $BURSTD_PREEMPTED: file that keeps the end between runs.
set -u
LC_ALL=C
export LC_ALL
url=${BURSTD_METADATA:-http://169.254.169.254}/computeMetadata/v1/instance/preempted
kept=${BURSTD_PREEMPTED:-/run/burstd/preempted}
python='
import sys, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
asked = urllib.request.Request(sys.argv[1], headers={"Metadata-Flavor": "Google"})
with opener.open(asked, timeout=2) as answer:
    sys.stdout.write(answer.read().decode())
'
if command -v curl >/dev/null; then
    preempted=$(curl -sf --noproxy '*' -m 2 -H 'Metadata-Flavor: Google' "$url" 2>/dev/null) || exit 0
else
    preempted=$(python3 -c "$python" "$url" 2>/dev/null) || exit 0
fi
[ "$preempted" = TRUE ] || exit 0
# The service says no time: it is counted from the first time that the notice was seen.
end=$(cat "$kept" 2>/dev/null) || end=
if [ -z "$end" ]; then
    end=$(($(date +%s) + ${BURSTD_NOTICE_S:-30}))
    { mkdir -p "${kept%/*}" && printf '%s\n' "$end" >"$kept.$$" && mv -f "$kept.$$" "$kept"; } 2>/dev/null || :
fi
echo "interruption $end"
