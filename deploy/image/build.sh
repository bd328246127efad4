#!/usr/bin/env bash
# `make image` and the programs of a release. No Docker is needed: deploy/image packs what Go builds. The commit is
# stamped into the program, whatever GOFLAGS says.
#
#   build.sh            builds two images, their SBOMs and licenses in IMAGES
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
programs() {
	go -C deploy build -o "$PWD/bin/pack" ./image
	mkdir -p "$images/allocator" && cp LICENSE "$images/allocator"
	build build -trimpath -buildvcs=$stamp "${flags[@]}" -o "$images/allocator/allocator" ./cmd/allocator
	bin/pack sbom "${v[@]}" "$images/allocator/allocator" >"$images/allocator/allocator.spdx.json"
	{
		bin/pack notice "$images/allocator/allocator"
		printf '\nuPlot 1.6.32, in the pages for operators\n\n'
		cat internal/server/console/static/uplot.LICENSE
		echo
	} >"$images/allocator/NOTICE"
}
images() {
	echo "building images in $images: some minutes the first time"
	programs
	mkdir -p "$images"/{allocator/data,dev}
	cp -R "$images/allocator/." "$images/dev"
	bin/pack pack --file deploy/Dockerfile --context "$images/allocator" --binary "$images/allocator/allocator" "${version[@]}" --tag "$image:latest" -o "$images/allocator.tar"
	bin/pack pack --file deploy/dev/Dockerfile --context "$images/dev" --binary "$images/dev/allocator" "${version[@]}" --tag "$image:dev" -o "$images/dev.tar"
}

case ${1:-} in
'') images ;;
programs) programs ;;
twice)
	[ -z "$(git status --porcelain)" ] || { echo "image: there are uncommitted changes, which are part of the version: commit first"; exit 1; }
	images
	dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
	git clone -q . "$dir/elsewhere" && GOCACHE="$dir/cache" "$dir/elsewhere/deploy/image/build.sh"
	cmp "$images/allocator.tar" "$dir/elsewhere/bin/image/allocator.tar" && echo "allocator: same bytes twice"
	;;
*) echo "image: there is no $1: DO is empty or twice"; exit 2 ;;
esac
