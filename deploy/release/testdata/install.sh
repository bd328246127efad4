#!/bin/sh
# Installs, starts, upgrades, removes and purges the packages. It runs in a copy of the
# machine's files that is thrown away, without systemd:
#
#   install.sh DEB VERSION NEWER-DEB NEWER-VERSION RPM ETCD PORT
#
# PORT is the first of five that are free. It prints a line for each thing that it found as it
# has to be, and fails at the first that is not.
set -eu
deb=$1 version=$2 newer=$3 newer_version=$4 rpm=$5 etcd=$6 port=$7

fail() {
	echo "FAILED: $*"
	exit 1
}
is() { # is WHAT GOT WANT
	[ "$2" = "$3" ] || fail "$1: got \"$2\", want \"$3\""
	echo "ok: $1: $2"
}
gone() {
	for file in "$@"; do
		[ ! -e "$file" ] || fail "$file is still there"
	done
	echo "ok: gone: $*"
}
as_allocator() { setpriv --reuid allocator --regid allocator --init-groups "$@"; }
status() { dpkg-query -W -f '${db:Status-Status} ${Version}' allocator 2>/dev/null || echo none; }
mode() { stat -c '%U:%G %a' "$1"; }
start() { # starts what the unit starts, as the user of the unit, and waits until it answers
	is "user of the unit" "$(sed -n 's/^User=//p' /usr/lib/systemd/system/allocator.service)" allocator
	# The command has no quotes. It is started without a function, so that $! is its own process.
	setpriv --reuid allocator --regid allocator --init-groups \
		$(sed -n 's/^ExecStart=//p' /usr/lib/systemd/system/allocator.service) >/tmp/node.log 2>&1 &
	node=$!
	for _ in $(seq 150); do
		allocator health --config /etc/allocator/allocator.yaml >/dev/null 2>&1 && return
		kill -0 $node 2>/dev/null || break
		sleep 0.2
	done
	cat /tmp/node.log
	fail "the node does not serve"
}
stop() {
	kill $node
	wait $node || fail "the node ended with an error: $(cat /tmp/node.log)"
}

! getent passwd allocator >/dev/null || fail "this machine has a user allocator: the test cannot show that the package makes it"

echo "== install $version"
dpkg --install "$deb" >/tmp/dpkg.log 2>&1 || fail "$(cat /tmp/dpkg.log)"
is "package" "$(status)" "installed $version"
is "shell of the user" "$(getent passwd allocator | cut -d: -f7)" /usr/sbin/nologin
[ "$(id -u allocator)" -lt 1000 ] || fail "the user is no system user: $(id allocator)"
is "program" "$(mode /usr/bin/allocator)" "root:root 755"
is "settings" "$(mode /etc/allocator/allocator.yaml)" "root:allocator 640"
is "their directory" "$(mode /etc/allocator)" "root:allocator 750"
as_allocator test -r /etc/allocator/allocator.yaml || fail "the user cannot read its settings"
is "units" "$(cd /usr/lib/systemd/system && echo allocator*)" "allocator-agent.service allocator-doctor.service allocator-doctor.timer allocator-sql.service allocator.service"
is "program of the agent" "$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' /usr/lib/systemd/system/allocator-agent.service)" /usr/bin/allocator
[ ! -e /etc/systemd/system/multi-user.target.wants/allocator.service ] || fail "the unit is enabled before there are settings"
[ -s /usr/share/doc/allocator/copyright ] && [ -s /usr/share/doc/allocator/NOTICE ] || fail "no license or no NOTICE"

echo "== a node that issues"
mkdir /tmp/etcd
"$etcd" --data-dir /tmp/etcd --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
	--listen-peer-urls "http://127.0.0.1:$((port + 1))" --log-level error >/tmp/etcd.log 2>&1 &
allocator gossip keygen >/etc/allocator/gossip.keys
chown root:allocator /etc/allocator/gossip.keys
chmod 640 /etc/allocator/gossip.keys
cat >/etc/allocator/allocator.yaml <<END
# edited by an operator
etcd:
  endpoints: ["http://127.0.0.1:$port"]
listen:
  grpc: "127.0.0.1:$((port + 2))"
  http: ""
  admin: "127.0.0.1:$((port + 3))"
  gossip: "127.0.0.1:$((port + 4))"
gossip:
  key-file: /etc/allocator/gossip.keys
END
as_allocator allocator init --fresh --config /etc/allocator/allocator.yaml >/tmp/init.log 2>&1 || fail "$(cat /tmp/init.log /tmp/etcd.log)"
start
first=$(allocator get --addr "127.0.0.1:$((port + 2))")
echo "ok: an ID: $first"

echo "== upgrade to $newer_version"
stop
dpkg --force-confold --install "$newer" >/tmp/dpkg.log 2>&1 || fail "$(cat /tmp/dpkg.log)"
is "package" "$(status)" "installed $newer_version"
is "settings" "$(mode /etc/allocator/allocator.yaml) $(head -1 /etc/allocator/allocator.yaml)" "root:allocator 640 # edited by an operator"
start
second=$(allocator get --addr "127.0.0.1:$((port + 2))")
is "IDs go on" "$(printf '%s\n%s\n' "$second" "$first" | sort | head -1)" "$first"
[ "$first" != "$second" ] || fail "the same ID twice: $first"

echo "== remove"
stop
dpkg --remove allocator >/tmp/dpkg.log 2>&1 || fail "$(cat /tmp/dpkg.log)"
gone /usr/bin/allocator /usr/lib/systemd/system/allocator.service /usr/lib/systemd/system/allocator-agent.service /usr/lib/systemd/system/allocator-sql.service /usr/lib/sysusers.d/allocator.conf
is "package" "$(status)" "config-files $newer_version"
is "settings" "$(mode /etc/allocator/allocator.yaml)" "root:allocator 640"
is "secrets" "$(mode /etc/allocator/gossip.keys)" "root:allocator 640"

echo "== purge"
dpkg --purge allocator >/tmp/dpkg.log 2>&1 || fail "$(cat /tmp/dpkg.log)"
gone /etc/allocator /usr/share/doc/allocator
case $(status) in
none | "not-installed ") echo "ok: package: gone" ;;
*) fail "the package is still known: $(status)" ;;
esac
# Files elsewhere may be the user's, so it stays.
is "user" "$(id -un "$(id -u allocator)")" allocator

if ! command -v rpm >/dev/null; then
	echo "== skipped: the rpm: rpm is not installed (Debian: apt-get install rpm)"
	exit 0
fi
echo "== rpm"
rpm --install --nodeps --ignorearch "$rpm" >/tmp/rpm.log 2>&1 || fail "$(cat /tmp/rpm.log)"
is "program" "$(mode /usr/bin/allocator)" "root:root 755"
is "settings" "$(mode /etc/allocator/allocator.yaml)" "root:allocator 640"
is "their directory" "$(mode /etc/allocator)" "root:allocator 750"
echo "# edited" >>/etc/allocator/allocator.yaml
rpm --erase --nodeps allocator >/tmp/rpm.log 2>&1 || fail "$(cat /tmp/rpm.log)"
gone /usr/bin/allocator /usr/lib/systemd/system/allocator.service
is "settings that were edited" "$(tail -1 /etc/allocator/allocator.yaml.rpmsave)" "# edited"
echo "== done"
