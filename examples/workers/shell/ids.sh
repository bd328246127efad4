#!/bin/sh
# Prints IDs of Twitter's layout: allocator worker run -- ./ids.sh 10
set -eu
count=${1:-10}
epoch=1288834974657
file=${ALLOCATOR_WORKER_FILE:?is not set: start this with allocator worker run -- ./ids.sh}

field() { od -An -t d8 -j "$1" -N 8 "$file" | tr -d ' '; }

not_before=$(field 24)
last=0
sequence=0
while [ "$count" -gt 0 ]; do
	ms=$(date +%s%3N)
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
	id=$(((ms - epoch) << 22 | ALLOCATOR_WORKER << 12 | sequence))
	# After the ID was made: only then does it show that nobody else can have it.
	if [ "$ms" -lt "$not_before" ] || [ "$ms" -ge "$(field 32)" ]; then
		echo "the worker number is not ours at $ms" >&2
		exit 1
	fi
	echo "$id"
	count=$((count - 1))
done
