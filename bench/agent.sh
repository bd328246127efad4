#!/usr/bin/env bash
# `make bench WHAT=agent`: an agent on a Unix socket beside a node over TCP on loopback and Redis INCR on a
# Unix socket, in turn, by redis-benchmark. It starts all of them, and prints for each round the rate
# and the p50 and p99 in milliseconds; then those of calls from PHP-FPM and Python, by callers.py.
set -euo pipefail
cd "$(dirname "$0")/.."
ROUNDS=${ROUNDS:-5} REQUESTS=${REQUESTS:-200000} CONNECTIONS=${CONNECTIONS:-16}
for tool in redis-server redis-benchmark redis-cli; do
	command -v $tool >/dev/null || { echo "not run: $tool is not installed (Debian: apt-get install redis)"; exit 0; }
done
work=$(mktemp -d) pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
${GO:-go} build -o "$work/allocator" ./cmd/allocator
"$work/allocator" dev --resp >"$work/dev.log" 2>&1 & pids+=($!)
redis-server --port 0 --unixsocket "$work/redis.sock" --save '' --appendonly no >"$work/redis.log" 2>&1 & pids+=($!)
"$work/allocator" agent --addr 127.0.0.1:9000,127.0.0.1:9010,127.0.0.1:9020 --listen.resp "unix:$work/agent.sock" \
	--listen.admin 127.0.0.1:0 >"$work/agent.log" 2>&1 & pids+=($!)
for _ in $(seq 300); do
	redis-cli -e -s "$work/agent.sock" ID.NEXT >/dev/null 2>&1 && redis-cli -e -s "$work/redis.sock" PING >/dev/null 2>&1 && break
	sleep 0.1
done
redis-cli -e -s "$work/agent.sock" ID.NEXT >/dev/null || { cat "$work/agent.log" "$work/dev.log"; exit 1; }

# one NAME DEPTH ARGS… prints a line.
one() {
	local name=$1 depth=$2 rps avg min p50 p95 p99
	shift 2
	IFS=, read -r _ rps avg min p50 p95 p99 _ < <(redis-benchmark -c "$CONNECTIONS" -n $((REQUESTS * (depth > 1 ? 4 : 1))) \
		-P "$depth" --csv "$@" 2>/dev/null | tail -1 | tr -d '"')
	printf '%-28s depth %-3s %10.0f a second  p50 %s  p99 %s\n' "$name" "$depth" "$rps" "$p50" "$p99"
}
for round in $(seq "$ROUNDS"); do
	echo "round $round, load $(cut -d ' ' -f 1 /proc/loadavg), $CONNECTIONS connections"
	for depth in 1 16; do
		one "agent, Unix socket" $depth -s "$work/agent.sock" ID.NEXT
		one "Redis INCR, Unix socket" $depth -s "$work/redis.sock" INCR id
		one "node, TCP on loopback" $depth -p 6380 ID.NEXT
	done
done

python=/usr/bin/python3 # Debian's, which has its packages
if $python -c 'import redis' 2>/dev/null; then
	ROUNDS=$ROUNDS $python bench/callers.py "$work/agent.sock" "$work/redis.sock" 127.0.0.1:6380
else
	echo "not run: python3-redis is not installed (Debian: apt-get install python3-redis)"
fi
