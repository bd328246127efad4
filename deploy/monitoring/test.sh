#!/usr/bin/env bash
# What «make monitoring-test» runs: the rules through promtool, and a Prometheus that
# watches real nodes while things go wrong. Both programs come from PATH, or from
# Debian's package, unpacked into bin/tools. What needs neither is in check, which
# «make test» runs.
set -euo pipefail
cd "$(dirname "$0")/../.."

GO=${GO:-go}
UNPACKED=$PWD/bin/tools/prometheus

skip() { echo "not run: $1"; }

# find NAME: the path of a program, or nothing.
find_program() {
	command -v "$1" || { [[ -x $UNPACKED/usr/bin/$1 ]] && echo "$UNPACKED/usr/bin/$1"; } || true
}

# unpack needs no root, only a list of packages that is there already.
unpack() {
	command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
	echo "unpacking Debian's package prometheus into bin/tools (once)"
	rm -rf "$UNPACKED" && mkdir -p "$UNPACKED"
	(cd "$UNPACKED" && timeout 300 apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb)
}

if [[ -z $(find_program promtool) || -z $(find_program prometheus) ]]; then
	unpack || echo "Debian's package could not be had"
fi

promtool=$(find_program promtool)
if [[ -z $promtool ]]; then
	skip "the rules through promtool: it is not installed (Debian: apt-get install prometheus)"
else
	echo "== promtool: $("$promtool" --version 2>&1 | head -n 1)"
	"$promtool" check rules deploy/monitoring/rules.yaml
	"$promtool" test rules deploy/monitoring/rules_test.yaml
fi

prometheus=$(find_program prometheus)
if [[ -z $prometheus ]]; then
	skip "real faults and a real Prometheus: it is not installed (Debian: apt-get install prometheus)"
else
	echo "== real faults: $("$prometheus" --version 2>&1 | head -n 1)"
	cd deploy/monitoring/check && "$GO" test -count 1 -v -run 'TestLive$' -live "$prometheus" .
fi
