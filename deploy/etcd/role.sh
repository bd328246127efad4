#!/bin/sh
# Make the etcd role and user of one space: read and write on its keys, nothing else.
#
#   ETCDCTL_ENDPOINTS=https://10.0.0.1:2379 ETCDCTL_CACERT=ca.pem ETCDCTL_USER=root:… \
#       deploy/etcd/role.sh --password-file /etc/allocator/etcd-password
#
# Run it again whenever you like: what is there stays, passwords too. It enables no
# authentication: that concerns whoever else uses this etcd. Until «etcdctl auth
# enable», a role keeps nobody from anything.
set -eu

root=allocator space=default role='' user='' password_file='' no_password=''

usage() {
	cat >&2 <<-END
		usage: role.sh [--root NAME] [--space NAME] [--role NAME] [--user NAME] --password-file FILE | --no-password

		  --root, --space   as the nodes have them (default $root and $space)
		  --role            default: allocator-SPACE
		  --user            default: the role's name; etcd.username of the nodes
		  --password-file   the password of a user that is made, one word; etcd.password-file of the nodes
		  --no-password     the user is the common name of a client certificate

		Etcd is reached as etcdctl does: ETCDCTL_ENDPOINTS, ETCDCTL_CACERT, ETCDCTL_USER and so on.
	END
	exit 2
}

while [ $# -gt 0 ]; do
	case $1 in
	--no-password) no_password=yes; shift; continue ;;
	--root | --space | --role | --user | --password-file) [ $# -ge 2 ] || usage ;;
	*) usage ;;
	esac
	case $1 in
	--root) root=$2 ;;
	--space) space=$2 ;;
	--role) role=$2 ;;
	--user) user=$2 ;;
	--password-file) password_file=$2 ;;
	esac
	shift 2
done
role=${role:-allocator-$space}
user=${user:-$role}
[ -n "$password_file$no_password" ] && { [ -z "$password_file" ] || [ -z "$no_password" ]; } || usage
for name in "$root" "$space"; do
	# A slash or nothing would grant what is not the space's.
	case $name in
	'' | [!a-z0-9]* | *[!a-z0-9._-]*) echo "role.sh: \"$name\" is no name of a root or space: a-z, 0-9, dot, dash and underscore" >&2; exit 2 ;;
	esac
done
prefix=/$root/$space/

password=''
if [ -n "$password_file" ]; then
	password=$(cat "$password_file")
	case $password in
	# etcdctl would read up to the first of them, and the nodes all of it.
	'' | *[[:space:]]*) echo "role.sh: $password_file has to hold one word: it is empty, or has spaces or several lines" >&2; exit 1 ;;
	esac
fi

command -v etcdctl >/dev/null || { echo "role.sh: etcdctl is not on the PATH" >&2; exit 1; }
# Everything below fails if etcd does not answer; say so once.
etcdctl user list >/dev/null

if etcdctl role get "$role" >/dev/null 2>&1; then
	echo "role $role: there already"
else
	etcdctl role add "$role" >/dev/null
	echo "role $role: made"
fi
etcdctl role grant-permission "$role" readwrite "$prefix" --prefix=true >/dev/null
echo "role $role: may read and write $prefix…"

if etcdctl user get "$user" >/dev/null 2>&1; then
	echo "user $user: there already; its password stays"
elif [ -n "$no_password" ]; then
	etcdctl user add "$user" --no-password >/dev/null
	echo "user $user: made; known by its client certificate"
else
	# By stdin: a process list shows arguments.
	printf '%s\n' "$password" | etcdctl user add "$user" --interactive=false >/dev/null
	echo "user $user: made"
fi
etcdctl user grant-role "$user" "$role" >/dev/null
echo "user $user: has the role"

# A role or a user that was there may be allowed more.
more=$(etcdctl role get "$role" | grep '[[({]' | grep -v -F "(prefix $prefix)" || :)
roles=$(etcdctl user get "$user" | sed -n 's/^Roles: *//p')
if [ -n "$more" ] || [ "$roles" != "$role" ]; then
	echo "role.sh: this is more than the nodes need. Role $role also may: ${more:-nothing else}; user $user has the roles: $roles" >&2
	exit 1
fi
etcdctl auth status 2>/dev/null | grep -q 'Authentication Status: true' ||
	echo "Authentication is off, or this user may not ask: with «etcdctl user add root», «etcdctl user grant-role root root» and «etcdctl auth enable» it begins"
