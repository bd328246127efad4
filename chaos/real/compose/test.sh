#!/usr/bin/env bash
# `make compose`: the images of `make image` in Docker. Nodes go from the image under test to a second one, and back:
# that of the last release, built from its tag. As long as there is none, that is the same code under another version.
set -euo pipefail
cd "$(dirname "$0")/../../.."
image=${IMAGE:-allocator} images=bin/image
build() { (export CGO_ENABLED=0 GOOS=linux && go "$@"); }
pack() { # DIRECTORY PROGRAM DOCKERFILE NAME ARCHIVE
	bin/pack pack --context "$images/$1" --binary "$images/$1/$2" --file "$3" --tag "$4" -o "$images/$5"
}
mkdir -p $images/composetest $images/upgrade/data && cp $images/allocator/{LICENSE,NOTICE,allocator.spdx.json} $images/upgrade
build -C chaos/real build -trimpath -o "$PWD/$images/composetest/composetest" ./compose
rm -rf $images/previous
previous=$(git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null || true)
if [ -n "$previous" ]; then
	echo "the other version is the last release, $previous"
	git clone -q --branch "$previous" . $images/previous
else
	echo "there is no release yet: the other version is the same code"
	ln -s "$PWD" $images/previous
fi
other=${previous:-compose-test-upgrade}
build -C $images/previous build -trimpath -buildvcs=false -ldflags "-X main.version=$other" -o "$PWD/$images/upgrade/allocator" ./cmd/allocator
pack allocator allocator deploy/Dockerfile "$image:compose-test" allocator-test.tar
pack upgrade allocator deploy/Dockerfile "$image:compose-test-upgrade" allocator-upgrade.tar
pack composetest composetest chaos/real/compose/Dockerfile "$image-composetest:compose-test" composetest.tar
$images/composetest/composetest run --images $images --other "$other"
