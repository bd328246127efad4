#!/bin/sh
# Before the files are removed: stops the agent, the runner of databases, and the node, which gives its sid back. In an
# upgrade they run on, and the new version restarts them.
set -e

case "$1" in
upgrade | 1) exit 0 ;; # dpkg says "upgrade", rpm how many versions remain.
esac
if [ -d /run/systemd/system ]; then
	systemctl --no-reload disable --now allocator-agent.service allocator-sql.service allocator.service allocator-doctor.timer
fi
