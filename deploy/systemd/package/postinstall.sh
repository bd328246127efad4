#!/bin/sh
# After the files of a deb or an rpm are in place: makes the user, gives it its directory, and
# restarts a node, an agent and a runner that run. It starts none: all need settings first, and a node a
# space that `allocator init` has begun.
set -e

if command -v systemd-sysusers >/dev/null 2>&1; then
	systemd-sysusers allocator.conf
fi
# Containers and other init systems have no systemd-sysusers.
if ! getent group allocator >/dev/null; then
	groupadd --system allocator
fi
if ! getent passwd allocator >/dev/null; then
	useradd --system --gid allocator --home-dir / --no-create-home --shell /usr/sbin/nologin allocator
fi

# Nodes read secrets in here: nobody else may.
chown root:allocator /etc/allocator
chmod 750 /etc/allocator
if [ -e /etc/allocator/allocator.yaml ]; then
	chown root:allocator /etc/allocator/allocator.yaml
	chmod 640 /etc/allocator/allocator.yaml
fi

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart allocator.service allocator-agent.service allocator-sql.service
fi
