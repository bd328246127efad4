#!/bin/sh
# Create the etcd role and user for one space: read and write on its keys, nothing else.
#
#   ETCDCTL_ENDPOINTS=https://10.0.0.1:2379 ETCDCTL_CACERT=ca.pem ETCDCTL_USER=root:… \
#       deploy/etcd/role.sh --password-file /etc/allocator/etcd-password
#
# It can be run again: it does not change what exists, including passwords. It does not
# enable authentication, because that affects all clients of this etcd. Until you run
# `etcdctl auth enable`, roles have no effect.
set -eu

root=allocator space=default role='' user='' password_file='' no_password=''

usage() {
	cat >&2 <<-END
		usage: role.sh [--root NAME] [--space NAME] [--role NAME] [--user NAME] --password-file FILE | --no-password

		  --root, --space   as in the settings of the nodes (default $root and $space)
		  --role            default: allocator-SPACE
		  --user            default: the role's name; etcd.username of the nodes
		  --password-file   the password of a new user, one word; etcd.password-file of the nodes
		  --no-password     the user authenticates with a client certificate whose common name is its name

		The connection is configured as for etcdctl: ETCDCTL_ENDPOINTS, ETCDCTL_CACERT, ETCDCTL_USER and so on.
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
	# With a slash, or empty, the prefix would include keys of other spaces.
	case $name in
	'' | [!a-z0-9]* | *[!a-z0-9._-]*) echo "role.sh: invalid root or space \"$name\": use a-z, 0-9, dot, dash and underscore" >&2; exit 2 ;;
	esac
done
prefix=/$root/$space/

password=''
if [ -n "$password_file" ]; then
	password=$(cat "$password_file")
	case $password in
	# etcdctl reads up to the first whitespace, but the nodes read the whole file.
	'' | *[[:space:]]*) echo "role.sh: invalid password in $password_file: it is empty or contains whitespace; write one word" >&2; exit 1 ;;
	esac
fi

command -v etcdctl >/dev/null || { echo "role.sh: etcdctl is not in the PATH; install it" >&2; exit 1; }
# Everything below fails without etcd; fail here once.
etcdctl user list >/dev/null

if etcdctl role get "$role" >/dev/null 2>&1; then
	echo "role $role: exists"
else
	etcdctl role add "$role" >/dev/null
	echo "role $role: created"
fi
etcdctl role grant-permission "$role" readwrite "$prefix" --prefix=true >/dev/null
echo "role $role: may read and write keys that begin with $prefix"

if etcdctl user get "$user" >/dev/null 2>&1; then
	echo "user $user: exists; its password is unchanged"
elif [ -n "$no_password" ]; then
	etcdctl user add "$user" --no-password >/dev/null
	echo "user $user: created; it authenticates with its client certificate"
else
	# On stdin, because arguments are visible in process lists.
	printf '%s\n' "$password" | etcdctl user add "$user" --interactive=false >/dev/null
	echo "user $user: created"
fi
etcdctl user grant-role "$user" "$role" >/dev/null
echo "user $user: has the role"

# A role or user that existed before may have more permissions.
more=$(etcdctl role get "$role" | grep '[[({]' | grep -v -F "(prefix $prefix)" || :)
roles=$(etcdctl user get "$user" | sed -n 's/^Roles: *//p')
if [ -n "$more" ] || [ "$roles" != "$role" ]; then
	echo "role.sh: more permissions than nodes need: role $role also has: ${more:-nothing}; user $user has the roles: $roles; remove the others" >&2
	exit 1
fi
etcdctl auth status 2>/dev/null | grep -q 'Authentication Status: true' ||
	echo "Authentication is off, or this user may not see its status; enable it with: etcdctl user add root; etcdctl user grant-role root root; etcdctl auth enable"
