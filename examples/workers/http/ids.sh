#!/bin/sh
# Prints IDs of Twitter's layout, with a worker number from the HTTP API:
# ./ids.sh 10 http://127.0.0.1:8080
set -eu
count=${1:-10}
node=${2:-http://127.0.0.1:8080}
epoch=1288834974657

call() { curl --silent --show-error --fail-with-body --max-time 5 ${TOKEN:+--oauth2-bearer "$TOKEN"} "$@"; }
number() { printf %s "$answer" | sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p"; }
text() { printf %s "$answer" | sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p"; }

# A secret of our own: if the answer is lost, the same call finds the same worker.
secret=$(od -An -N 16 -t x1 /dev/urandom | tr -d ' \n')
sent=$(date +%s%3N)
answer=$(call -X POST "$node/v1/workers" -H 'Content-Type: application/json' \
	-d "{\"name\":\"example-http\",\"secret\":\"$secret\"}")
last=$(date +%s%3N)
id=$(text id)
handle=$(text handle)
worker=$(number worker)
not_before=$(number not_before_unix_ms)
not_after=$(number not_after_unix_ms)
extend_at=$(number extend_at_unix_ms)

used_until=$not_before
release() { call -X DELETE "$node/v1/workers/$id?used_until_unix_ms=$used_until" -H "Worker-Handle: $handle" >&2; }
trap release EXIT

# The node's clock was read between these two. With clock_unix_ms the node would compare ours with
# its own, and take the time on the way for an error of our clock.
now=$(number now_unix_ms)
if [ "$now" -lt $((sent - 250)) ] || [ "$now" -gt $((last + 250)) ]; then
	echo "the clock is wrong: it read $sent and $last before and after the node's read $now" >&2
	exit 1
fi

sequence=0
while [ "$count" -gt 0 ]; do
	ms=$(date +%s%3N)
	# This happens rarely: the interval lasts a minute. Where the call fails, IDs go on
	# until the interval ends.
	if [ "$ms" -ge "$extend_at" ]; then
		if answer=$(call -X POST "$node/v1/workers/$id:extend" -H "Worker-Handle: $handle" \
			-H 'Content-Type: application/json' -d "{\"not_after_unix_ms\":$not_after}"); then
			if [ "$(number not_before_unix_ms)" != "$not_before" ]; then
				echo "the answer is about another worker: acquire anew" >&2
				exit 1
			fi
			not_after=$(number not_after_unix_ms)
			extend_at=$(number extend_at_unix_ms)
		else
			extend_at=$((ms + 1000))
		fi
	fi
	if [ "$ms" -lt "$last" ]; then
		echo "the clock went back by $((last - ms)) ms" >&2
		exit 1
	elif [ "$ms" -eq "$last" ]; then
		sequence=$((sequence + 1))
		if [ "$sequence" -ge 4096 ]; then
			echo "the clock does not advance: the next ID of this millisecond would be another worker's" >&2
			exit 1
		fi
	else
		sequence=0
	fi
	last=$ms
	new=$(((ms - epoch) << 22 | worker << 12 | sequence))
	if [ "$ms" -lt "$not_before" ] || [ "$ms" -ge "$not_after" ]; then
		echo "the worker number is not ours at $ms" >&2
		exit 1
	fi
	used_until=$((ms + 1))
	echo "$new"
	count=$((count - 1))
done
