# Asks EC2's metadata service whether this machine will be taken back: prints one line, or nothing, also where the
# service cannot be reached. Speaks IMDSv2 by curl; where there is none by python3, which cloud-init needs anyway.
#   interruption SECONDS    it ends then, in seconds since 1970
#   rebalance               it may end soon
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
# https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
# $BURSTD_IMDS: the service, if not Amazon's. $BURSTD_IMDS_TOKEN: file that keeps the session's token between runs.
set -u
LC_ALL=C
export LC_ALL
umask 077
service=${BURSTD_IMDS:-http://169.254.169.254}/latest
kept=${BURSTD_IMDS_TOKEN:-/run/burstd/imds-token}
newline='
'
python='
import sys, urllib.error, urllib.request
method, url, header = sys.argv[1:]
name, _, value = header.partition(": ")
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
try:
    with opener.open(urllib.request.Request(url, method=method, headers={name: value}), timeout=2) as answer:
        sys.stdout.write(f"{answer.read().decode()}\n{answer.status}")
except urllib.error.HTTPError as error:
    sys.stdout.write(f"\n{error.code}")
'

# $1: method, $2: path, $3: header. Prints the body and, on a line of its own, the status; fails without an answer.
call() {
    if command -v curl >/dev/null; then
        curl -s --noproxy '*' -m 2 -w '\n%{http_code}' -X "$1" -H "$3" "$service/$2"
    else
        python3 -c "$python" "$1" "$service/$2" "$3"
    fi 2>/dev/null
}

# Gets a token for six hours and keeps it.
renew() {
    answer=$(call PUT api/token "X-aws-ec2-metadata-token-ttl-seconds: 21600") || return 1
    [ "${answer##*"$newline"}" = 200 ] || return 1
    token=${answer%"$newline"*}
    { mkdir -p "${kept%/*}" && printf '%s\n' "$token" >"$kept.$$" && mv -f "$kept.$$" "$kept"; } 2>/dev/null || :
}

# Sets body to what is at a path; fails where there is nothing. A token that is no good any more is renewed, once.
get() {
    for try in first second; do
        answer=$(call GET "$1" "X-aws-ec2-metadata-token: $token") || exit 0
        body=${answer%"$newline"*}
        case $try${answer##*"$newline"} in
        *200) return 0 ;;
        first401) renew || exit 0 ;;
        *) return 1 ;;
        esac
    done
}

token=$(cat "$kept" 2>/dev/null) && [ -n "$token" ] || renew || exit 0
if get meta-data/spot/instance-action; then
    at=$(printf '%s\n' "$body" | sed -n 's/.*"time" *: *"\([^"]*\)".*/\1/p')
    end=$([ -n "$at" ] && date -u -d "$at" +%s 2>/dev/null) || end=$(($(date +%s) + 120))
    echo "interruption $end"
elif get meta-data/events/recommendations/rebalance; then
    echo rebalance
fi
