#!/usr/bin/env bash
# `make release DO=…`: docs/RELEASING.md has the order.
#
#   snapshot    all files of a release, reproducible, in bin/release: archives, packages, images, chart, clients, site; 10 minutes
#   test        install, start, upgrade, remove and purge the packages, run what is for arm64, push and pull images and chart; 3 minutes
#   evidence    what tests show of the images, as in-toto statements on their digest: 9 minutes, FOR=1h
#   ready       whether the change log, the chart and testdata/released are those of VERSION
#   notes       the section of the change log for VERSION
#   push        copies the images and the chart to REGISTRY, such as registry.example.org/flakelease
#
# A snapshot has the version of the chart, which is that of the next release; at a tag the version is the tag's.
set -euo pipefail
cd "$(dirname "$0")/../.."
release=bin/release do=${1:-}
fail() { echo "release $do: $*"; exit 1; }
needs() { [ -n "${!1:-}" ] || fail "$1 is not set"; }
clean() { [ -z "$(git status --porcelain)" ] || fail "there are uncommitted changes: commit first"; }
pack() { go -C deploy build -o "$PWD/bin/pack-release" ./release && bin/pack-release "$@"; }

case $do in
snapshot)
	tag=$(git describe --exact-match --tags --match 'v*' 2>/dev/null || true)
	chart=$(sed -n 's/^version: //p' deploy/helm/allocator/Chart.yaml)
	export VERSION=${VERSION:-${tag:+${tag#v}}} && VERSION=${VERSION:-$chart-snapshot} IMAGE=allocator
	work=bin/release-work && rm -rf "$release" "$work" && mkdir -p "$work"
	for arch in amd64 arm64; do IMAGE_ARCH=$arch IMAGES=$work/linux-$arch deploy/image/build.sh; done
	IMAGE_OS=darwin IMAGE_ARCH=arm64 IMAGES=$work/darwin-arm64 deploy/image/build.sh programs
	if ! command -v npm >/dev/null; then echo "no site: npm is not installed"
	elif ! make --no-print-directory bin/site/installed; then echo "no site: npm cannot get its packages"
	else make --no-print-directory docs && cp -R bin/docs "$work/site"; fi
	time=() && [ ! -e .git ] || time=(--time "$(git show -s --format=%cI HEAD)")
	pack pack --version "$VERSION" --work "$work" --out "$release" "${time[@]}"
	echo "$release has the files of version $VERSION"
	;;
test) go -C deploy test -count 1 -timeout 30m -v ./release -dir "$PWD/$release" ;;
evidence)
	# The suites run on a commit without changes, and what they leave is kept under its name: what is stated of a
	# commit was seen of it. BUGS, a regular expression of planted bugs, and a longer FOR show more.
	[ -e $release/images.json ] || fail "there is no $release: run make release DO=snapshot"
	clean
	commit=$(git rev-parse HEAD) && seen=$PWD/bin/evidence/$commit && mkdir -p "$seen"
	[ -e "$seen/chaos/results.json" ] || { go -C chaos/real build -o "$PWD/bin/chaos" . && bin/chaos run --for "${FOR:-60s}" --dir "$seen/chaos"; } || true
	[ -e "$seen/sim-campaign.json" ] || make --no-print-directory sim FOR="${FOR:-60s}" BIN="$seen" || true
	[ -e "$seen/model.log" ] || ! command -v spin >/dev/null || { chaos/model/run.sh short >"$seen/model.new" || true; mv "$seen/model.new" "$seen/model.log"; }
	[ -e "$seen/planted-bugs.md" ] || go run ./chaos/planted -bugs "${BUGS:-^ceiling-is|^guard-off}" -write "$seen/planted-bugs.md" || true
	given=()
	for f in chaos=chaos/results.json sim=sim-campaign.json model=model.log bugs=planted-bugs.md; do
		[ ! -e "$seen/${f#*=}" ] || given+=("--${f%%=*}" "$seen/${f#*=}")
	done
	pack evidence --dir $release --commit "$commit" "${given[@]}"
	;;
ready)
	needs VERSION
	grep -q "^## \[$VERSION\] - [0-9][0-9-]*\$" CHANGELOG.md || fail "CHANGELOG.md has no section [$VERSION] with a date"
	grep -q "^version: $VERSION\$" deploy/helm/allocator/Chart.yaml && grep -q "^appVersion: \"$VERSION\"\$" deploy/helm/allocator/Chart.yaml ||
		fail "deploy/helm/allocator/Chart.yaml has another version"
	[ -e "testdata/released/$VERSION/records.txt" ] || fail "there is no testdata/released/$VERSION: docs/RELEASING.md says what writes it"
	clean
	echo "the change log, the chart and the stored forms are those of $VERSION"
	;;
notes)
	needs VERSION
	awk -v head="## [$VERSION]" '/^## \[/ { on = index($0, head) == 1; found = found || on; next } on; END { exit !found }' CHANGELOG.md ||
		fail "CHANGELOG.md has no section of version $VERSION" ;;
push) needs REGISTRY && pack push --dir $release "$REGISTRY" ;;
*) echo "release: there is no DO=$do: use snapshot, test, evidence, ready, notes or push"; exit 2 ;;
esac
