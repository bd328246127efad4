#!/usr/bin/env bash
# `make chart`: promtool checks and tests the rules, and a Prometheus scrapes
# real nodes while faults are injected. Both programs come from PATH, or from Debian's
# package, unpacked into bin/tools; without both it exits 77. Tests that need neither are
# in check, which `make check` runs.
set -euo pipefail
cd "$(dirname "$0")/../.."

GO=${GO:-go}
UNPACKED=$PWD/bin/tools/prometheus

ran=
skip() { echo "not run: $1"; }

# find_program NAME prints the path of a program, or nothing.
find_program() {
	command -v "$1" || { [[ -x $UNPACKED/usr/bin/$1 ]] && echo "$UNPACKED/usr/bin/$1"; } || true
}

# unpack needs no root, only an existing list of packages.
unpack() {
	command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
	echo "unpacking Debian's package prometheus into bin/tools (once)"
	rm -rf "$UNPACKED" && mkdir -p "$UNPACKED"
	(cd "$UNPACKED" && timeout 300 apt-get download -q prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb)
}

if [[ -z $(find_program promtool) || -z $(find_program prometheus) ]]; then
	unpack || echo "could not get Debian's package prometheus"
fi

promtool=$(find_program promtool)
if [[ -z $promtool ]]; then
	skip "promtool is not installed (Debian: apt-get install prometheus)"
else
	ran=1
	echo "== promtool: $("$promtool" --version 2>&1 | head -n 1)"
	"$promtool" check rules deploy/monitoring/rules.yaml
	"$promtool" test rules deploy/monitoring/rules_test.yaml
fi

prometheus=$(find_program prometheus)
if [[ -z $prometheus ]]; then
	skip "faults in front of a real Prometheus: it is not installed (Debian: apt-get install prometheus)"
else
	ran=1
	echo "== faults: $("$prometheus" --version 2>&1 | head -n 1)"
	cd deploy/monitoring/check && "$GO" test -count 1 -v -run 'TestLive$' -live "$prometheus" .
fi
[[ $ran ]] || exit 77
