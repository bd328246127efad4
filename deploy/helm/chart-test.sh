#!/usr/bin/env bash
# `make chart`: checks of the chart with Helm and other programs, each built once
# from the Go module proxy into bin/tools/chart. Checks that need no program are in
# charttest, which `make check` runs. If a program cannot be built, its step is reported
# as skipped; every other failure is an error.
set -euo pipefail
cd "$(dirname "$0")/../.."

GO=${GO:-go}
CHART=deploy/helm/allocator
TOOLS=$PWD/bin/tools/chart
WORK=$PWD/bin/chart
HELM3=v3.22.0 HELM4=v4.3.1 KUBERNETES=v1.36.3

failed=0 began=$SECONDS summary=()
pass() { summary+=("  passed   $1"); }
skip() { summary+=("  skipped  $1: $2"); echo "not run: $1: $2"; }
bad() { summary+=("  FAILED   $1"); echo "FAILED: $1"; failed=1; }
step() { printf '\n== %s\n' "$*"; }

# tool NAME DIR PACKAGE@VERSION prints the path of a program, and builds it if needed.
tool() {
	local dir=$TOOLS/$2
	if ! [[ -x $dir/$1 ]]; then
		echo "building $3 (once)" >&2
		(cd / && GOFLAGS=-trimpath GOBIN=$dir nice $GO install "$3" >&2) || return 1
	fi
	echo "$dir/$1"
}

# Use a copy, so that nothing is written into the working tree.
rm -rf "$WORK" && mkdir -p "$WORK/out" && cp -r $CHART "$WORK/allocator"

for version in $HELM3 $HELM4; do
	step "helm $version"
	major=${version%%.*}
	if ! helm=$(tool helm "helm-$version" "helm.sh/helm/$major/cmd/helm@$version"); then
		skip "helm $version" "it could not be built"
		continue
	fi
	mkdir -p "$WORK/out/$major"
	ok=1
	for values in "$WORK"/allocator/ci/*-values.yaml; do
		name=$(basename "$values" -values.yaml)
		# A Helm built without its Makefile assumes Kubernetes 1.20.
		"$helm" lint --strict --quiet "$WORK/allocator" --kube-version "${KUBERNETES#v}" --values "$values" || ok=0
		"$helm" template ids "$WORK/allocator" --namespace prod --kube-version "${KUBERNETES#v}" --values "$values" >"$WORK/out/$major/$name.yaml" || ok=0
		"$helm" template ids "$WORK/allocator" --namespace prod --kube-version "${KUBERNETES#v}" --values "$values" --is-upgrade >"$WORK/out/$major/$name.upgrade.yaml" || ok=0
		echo "$name: $(grep -c '^kind:' "$WORK/out/$major/$name.yaml") objects, $(grep -c '^kind:' "$WORK/out/$major/$name.upgrade.yaml") at an upgrade"
	done
	if "$helm" template ids "$WORK/allocator" --kube-version "${KUBERNETES#v}" >/dev/null 2>"$WORK/out/$major/no-values.txt" || ! grep -q 'etcd.endpoints is empty' "$WORK/out/$major/no-values.txt"; then
		echo "rendering without values does not report what is missing"
		ok=0
	fi
	if "$helm" template ids "$WORK/allocator" --kube-version 1.29.0 --values "$WORK/allocator/ci/external-values.yaml" >/dev/null 2>&1; then
		echo "rendering for Kubernetes 1.29 succeeds"
		ok=0
	fi
	"$helm" package "$WORK/allocator" --destination "$WORK/out/$major" >/dev/null || ok=0
	tar tzf "$WORK/out/$major"/allocator-*.tgz | sort >"$WORK/out/$major/package.txt"
	for f in values.schema.json README.md UPGRADING.md files/rules.yaml files/dashboard.json templates/tests/draw.yaml; do
		grep -qx "allocator/$f" "$WORK/out/$major/package.txt" || { echo "the package has no $f"; ok=0; }
	done
	if grep -E '^allocator/ci/' "$WORK/out/$major/package.txt"; then
		echo "the package contains these files, which it should not"
		ok=0
	fi
	((ok)) && pass "helm $version: lint --strict, template, package" || bad "helm $version: lint --strict, template, package"
done

if [[ -d $WORK/out/v3 && -d $WORK/out/v4 ]]; then
	step "both versions of Helm render the same"
	ok=1
	for f in "$WORK"/out/v3/*.yaml; do
		diff -BZ <(sed 's/--fresh-until=.*//' "$f") <(sed 's/--fresh-until=.*//' "$WORK/out/v4/$(basename "$f")") || ok=0
	done
	((ok)) && pass "both versions of Helm render the same" || bad "both versions of Helm render the same"
fi

printf '\nchart, %d s\n' $((SECONDS - began))
printf '%s\n' "${summary[@]}"
if [[ ${summary[*]} != *passed* ]]; then
	echo "nothing was checked: check that Go is installed and the Go module proxy reachable"
	exit 1
fi
exit $failed
