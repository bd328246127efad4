#!/bin/sh
# After the files are removed. `apt-get purge` removes the settings and the secrets beside
# them too. The user stays, as files elsewhere may be its own and its number must not become
# somebody else's.
set -e

if [ "$1" = purge ]; then
	rm -rf /etc/allocator
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
