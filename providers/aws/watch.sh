# Asks EC2's metadata service (IMDSv2) whether this spot machine will be taken back: prints one line, or nothing.
#   interruption SECONDS    it ends then, in seconds since 1970
#   rebalance               it may end soon
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
set -u
base=${BURSTD_IMDS:-http://169.254.169.254}
keep=${BURSTD_IMDS_TOKEN:-/run/burstd/imds-token}
life=21600
umask 077

# $1: method, $2: path, $3: header. Prints the body; fails where the answer is not 200.
ask() {
    if command -v curl >/dev/null 2>&1; then
        curl --silent --fail --noproxy '*' --max-time 2 --request "$1" --header "$3" "$base$2"
    elif command -v python3 >/dev/null 2>&1; then
        python3 - "$1" "$base$2" "$3" <<'END'
import sys
import urllib.request

method, url, header = sys.argv[1:]
name, _, value = header.partition(": ")
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    with opener.open(urllib.request.Request(url, method=method, headers={name: value}), timeout=2) as answer:
        sys.stdout.write(answer.read().decode())
except OSError:
    sys.exit(1)
END
    else
        wget --quiet --no-proxy --tries=1 --timeout=2 --method="$1" --header="$3" --output-document=- "$base$2"
    fi
}

# A token is good for six hours and is kept for three.
token() {
    if [ -z "$(find "$keep" -mmin -180 2>/dev/null)" ]; then
        new=$(ask PUT /latest/api/token "X-aws-ec2-metadata-token-ttl-seconds: $life") || return 1
        mkdir -p "${keep%/*}" && printf %s "$new" >"$keep.$$" && mv "$keep.$$" "$keep" || return 1
    fi
    cat "$keep"
}

get() { ask GET "/latest/meta-data/$1" "X-aws-ec2-metadata-token: $token"; }

token=$(token) && [ -n "$token" ] || exit 0
if action=$(get spot/instance-action); then
    ends=$(printf %s "$action" | sed -n 's/.*"time" *: *"\([^"]*\)".*/\1/p')
    if seconds=$(date -u -d "$ends" +%s 2>/dev/null) && [ -n "$ends" ]; then
        echo "interruption $seconds"
        exit 0
    fi
    echo "interruption $(($(date +%s) + 120))"
elif get events/recommendations/rebalance >/dev/null; then
    echo rebalance
elif ! get instance-id >/dev/null; then
    # Not even its own name: the token is no good any more.
    rm -f "$keep"
fi
