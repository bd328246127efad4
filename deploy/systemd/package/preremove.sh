#!/bin/sh
# Before the files are removed: stops the node, which gives its sid back. In an upgrade the
# node runs on, and the new version restarts it.
set -e

case "$1" in
upgrade | 1) exit 0 ;; # dpkg says "upgrade", rpm how many versions remain.
esac
if [ -d /run/systemd/system ]; then
	systemctl --no-reload disable --now allocator.service allocator-doctor.timer
fi
