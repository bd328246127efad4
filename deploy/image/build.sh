#!/usr/bin/env bash
# `make image` and the programs of a release. No Docker is needed: deploy/image packs what Go builds. The commit is
# stamped into the allocator, whatever GOFLAGS says, but not into etcd, whose image has the allocator too: it starts
# members.
#
#   build.sh            builds three images, their SBOMs and licenses in IMAGES
#   build.sh twice      and again in another directory with an empty cache: the bytes have to be the same; 4 minutes
#   build.sh programs   builds only the allocator for the system IMAGE_OS
#
# IMAGE names the images, IMAGE_ARCH is their machine's, VERSION that of a release.
set -euo pipefail
cd "$(dirname "$0")/../.."
image=${IMAGE:-allocator} arch=${IMAGE_ARCH:-$(go env GOARCH)} images=${IMAGES:-bin/image} os=${IMAGE_OS:-linux}
stamp=false && [ ! -e .git ] || stamp=true
version=() v=() flags=()
if [ -n "${VERSION:-}" ]; then version=(--version "$VERSION") v=(--version "v$VERSION") flags=(-ldflags "-X main.version=v$VERSION"); fi

build() { (export CGO_ENABLED=0 GOOS=$os GOARCH=$arch && go "$@"); }
notice() { # DIR PROGRAM…
	bin/pack notice "${@:2}" >"$1/NOTICE"
	{ printf '\nuPlot 1.6.32, in the pages for operators\n\n'; cat internal/server/console/static/uplot.LICENSE; echo; } >>"$1/NOTICE"
}
programs() {
	go -C deploy build -o "$PWD/bin/pack" ./image
	mkdir -p "$images/allocator" && cp LICENSE "$images/allocator"
	build build -trimpath -buildvcs=$stamp "${flags[@]}" -o "$images/allocator/allocator" ./cmd/allocator
	bin/pack sbom "${v[@]}" "$images/allocator/allocator" >"$images/allocator/allocator.spdx.json"
	notice "$images/allocator" "$images/allocator/allocator"
}
images() {
	echo "building images in $images: some minutes the first time"
	programs
	mkdir -p "$images"/{etcd/data,allocator/data,dev}
	cp LICENSE "$images/etcd" && cp -R "$images/allocator/." "$images/dev"
	build -C chaos/real build -trimpath -buildvcs=false -o "$(realpath "$images")/etcd/etcd" ./etcd
	build -C chaos/real build -trimpath -buildvcs=false -o "$(realpath "$images")/etcd/etcdctl" go.etcd.io/etcd/etcdctl/v3
	for b in etcd etcdctl; do bin/pack sbom "$images/etcd/$b" >"$images/etcd/$b.spdx.json"; done
	cp "$images"/allocator/allocator{,.spdx.json} "$images/etcd"
	notice "$images/etcd" "$images"/etcd/{etcd,etcdctl,allocator}
	bin/pack pack --file deploy/Dockerfile --context "$images/allocator" --binary "$images/allocator/allocator" "${version[@]}" --tag "$image:latest" -o "$images/allocator.tar"
	bin/pack pack --file deploy/dev/Dockerfile --context "$images/dev" --binary "$images/dev/allocator" "${version[@]}" --tag "$image:dev" -o "$images/dev.tar"
	bin/pack pack --file deploy/etcd/Dockerfile --context "$images/etcd" --binary "$images/etcd/etcd" \
		--version "$(go -C chaos/real list -m -f '{{.Version}}' go.etcd.io/etcd/server/v3)" --tag "$image-etcd:latest" -o "$images/etcd.tar"
}

case ${1:-} in
'') images ;;
programs) programs ;;
twice)
	[ -z "$(git status --porcelain)" ] || { echo "image: there are uncommitted changes, which are part of the version: commit first"; exit 1; }
	images
	dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
	git clone -q . "$dir/elsewhere" && GOCACHE="$dir/cache" "$dir/elsewhere/deploy/image/build.sh"
	for i in allocator etcd; do cmp "$images/$i.tar" "$dir/elsewhere/bin/image/$i.tar" && echo "$i: same bytes twice"; done
	;;
*) echo "image: there is no $1: DO is empty or twice"; exit 2 ;;
esac
