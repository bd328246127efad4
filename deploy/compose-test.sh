#!/usr/bin/env bash
# `make compose`: deploy/compose.yaml in Docker. Callers request IDs while a node is killed, another
# is paused for longer than its lease, and all are replaced by another version and back, one by one: no
# call of the SDK fails, and no ID is there twice. The other version is the last release, built from its
# tag, or the same code under another name as long as there is none. Without a Docker daemon, root starts
# one in namespaces of its own.
set -euo pipefail
cd "$(dirname "$0")/.."

images=bin/image own=allocator:compose-test other=allocator:compose-test-other project=composetest$$ nodes="allocator-1 allocator-2 allocator-3"
daemon='' drawing=''

say() { printf '%5d s  %s\n' $SECONDS "$*"; }
die() { say "FAILED: $*"; exit 1; }
skip() { echo "$*"; exit 77; }
# until_true WHAT COMMAND...: a lease and a window may have to pass first, on a slow machine.
until_true() {
	local what=$1 end=$((SECONDS + 90))
	shift
	until "$@" >"$dir/last" 2>&1; do
		((SECONDS < end)) || die "$what: $(tail -n 3 "$dir/last")"
		sleep 0.25
	done
}

if docker compose version >/dev/null 2>&1; then compose='docker compose'; else compose=docker-compose; fi
for tool in docker ${compose%% *}; do
	command -v "$tool" >/dev/null || skip "$tool is not installed (Debian: apt-get install docker.io docker-compose)"
done
if ! docker version >/dev/null 2>&1; then
	[[ $(id -u) == 0 ]] || skip "no Docker daemon answers, and only root can start one"
	own_daemon=yes
fi
dir=$(mktemp -d)
if [[ -n ${own_daemon:-} ]]; then
	export DOCKER_HOST=unix://$dir/docker.sock
	unshare --net --mount -- sh -c 'ip link set lo up && exec dockerd "$@"' dockerd --host "$DOCKER_HOST" \
		--data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/dockerd.pid" >"$dir/dockerd.log" 2>&1 &
	daemon=$!
fi
on_compose() { $compose --project-name "$project" --file deploy/compose.yaml "$@"; }
clean_up() {
	local status=$?
	trap - EXIT
	[[ -z $drawing ]] || kill "$drawing" 2>/dev/null || true
	((status == 0 || status == 77)) || on_compose logs --tail 40 || true
	docker rm --force "$project-load" >/dev/null 2>&1 || true
	on_compose down --volumes --timeout 5 >/dev/null 2>&1 || true
	docker rmi --force "$own" "$own-docker" "$other" >/dev/null 2>&1 || true
	if [[ -n $daemon ]]; then kill "$daemon" 2>/dev/null && wait "$daemon" || true; fi
	rm -rf "$dir"
	exit $status
}
trap clean_up EXIT
for ((try = 0; try < 240; try++)); do
	docker version >/dev/null 2>&1 && break
	[[ -z $daemon ]] || kill -0 "$daemon" 2>/dev/null || try=240 # it has ended
	sleep 0.25
done
((try < 240)) || skip "no Docker daemon answers, and none can be started here: $(tail -n 1 "$dir/dockerd.log")"

pack() { # DIR IMAGE
	bin/pack pack --context "$1" --binary "$1/allocator" --file deploy/Dockerfile --tag "$2" -o "$dir/image.tar"
	docker load --quiet --input "$dir/image.tar"
}
pack "$images/allocator" $own
previous=$(git describe --tags --abbrev=0 --match 'v*' HEAD^ 2>/dev/null || true)
version=${previous:-compose-test-other} source=$PWD
[[ -z $previous ]] || { source=$dir/previous; git clone -q --branch "$previous" . "$source"; }
mkdir -p "$dir/other/data" && cp "$images"/allocator/{LICENSE,NOTICE,allocator.spdx.json} "$dir/other"
CGO_ENABLED=0 GOOS=linux go -C "$source" build -trimpath -buildvcs=false -ldflags "-X main.version=$version" -o "$dir/other/allocator" ./cmd/allocator
pack "$dir/other" $other

settings='{{json .Config.User}} {{json .Config.ExposedPorts}} {{json .Config.Entrypoint}} {{json .Config.Cmd}} {{json .Config.Healthcheck}} {{json .Config.StopSignal}}'
of() { docker inspect --format "$@"; }
[[ $(of '{{.Config.User}}' $own) == 65532:65532 ]] || die "the image runs as another user"
if docker build --quiet --file deploy/Dockerfile --tag $own-docker "$images/allocator" >"$dir/build" 2>&1; then
	[[ $(of "$settings" $own) == "$(of "$settings" $own-docker)" ]] || die "docker build makes another image of deploy/Dockerfile"
	say "docker build makes the same image"
else
	say "not compared with docker build, which does not work here: $(tail -n 1 "$dir/build")"
fi

export ALLOCATOR_IMAGE=$own ALLOCATOR_SECRETS=$dir GRPC_1='' GRPC_2='' GRPC_3='' HTTP_1='' HTTP_2='' HTTP_3='' ADMIN_1='' ADMIN_2='' ADMIN_3=''
docker run --rm $own gossip keygen >"$dir/gossip.keys"
chmod 755 "$dir" && chmod 644 "$dir/gossip.keys" # for uid 65532
on_compose up --detach 2>/dev/null
container() { on_compose ps -aq "$1"; }
in_node() { docker exec "$(container "$1")" /allocator "${@:2}"; }
until_true "a node is not alive before init" in_node allocator-1 health --live
if in_node allocator-1 health >"$dir/health" || ! grep -q STARTING "$dir/health"; then die "before init a node is $(cat "$dir/health")"; fi
on_compose run --rm init
healthy() { [[ $(of '{{.State.Health.Status}}' "$(container "$1")") == healthy ]]; }
# Nodes are ready without the member of etcd inside them, so members have to answer, too.
serving() {
	local n
	for n in $nodes; do
		until_true "$n is not healthy" healthy "$n"
		until_true "$n is not ready" in_node "$n" health
	done
	until_true "a member of etcd does not answer" in_node allocator-1 etcd status
}
serving

# The SDK, in a container; and each node is asked from that container, into a file of its own.
network=$(of '{{range $name, $n := .NetworkSettings.Networks}}{{$name}}{{end}}' "$(container allocator-1)")
CGO_ENABLED=0 go -C chaos/real build -trimpath -buildvcs=false -o "$dir/kubeload" ./kubeload
docker run --detach --name "$project-load" --network "$network" --volume "$dir/kubeload:/kubeload:ro" --entrypoint /kubeload $own \
	--target allocator-1:9000,allocator-2:9000,allocator-3:9000 --for 30m >/dev/null
draw() {
	while :; do
		for n in $nodes; do
			docker exec "$project-load" /allocator get 500 --timeout 500ms --addr "$n:9000" >>"$dir/$n.ids" 2>/dev/null || true
		done
	done
}
draw &
drawing=$!
drawn() { local before; before=$(wc -l <"$dir/$1.ids" 2>/dev/null || echo 0); until_true "$1 answers no call" sh -c "[ \$(wc -l <$dir/$1.ids) -gt $before ]"; }
for n in $nodes; do drawn $n; done

say "kill -9 allocator-1"
docker kill "$(container allocator-1)" >/dev/null
drawn allocator-2
docker start "$(container allocator-1)" >/dev/null
serving
drawn allocator-1
say "pause allocator-2 for longer than its lease"
docker pause "$(container allocator-2)" >/dev/null
sleep 18
drawn allocator-3
docker unpause "$(container allocator-2)" >/dev/null
serving
drawn allocator-2
for to in $other $own; do
	for n in $nodes; do
		say "$n from $to"
		ALLOCATOR_IMAGE=$to on_compose up --detach --no-deps "$n" >/dev/null 2>&1
		serving
		drawn "$n"
		is=$(in_node "$n" version)
		[[ $to == "$own" ]] && ran_other=no || ran_other=yes
		[[ $(grep -qF "$version" <<<"$is" && echo yes || echo no) == "$ran_other" ]] || die "$n from $to says it is $is"
	done
done
docker kill --signal INT "$project-load" >/dev/null
ended=$(docker wait "$project-load")
kill $drawing && wait $drawing || true
drawing=''
docker logs "$project-load" 2>/dev/null | tee "$dir/summary"
[[ $ended == 0 ]] && grep -q '"failed":0,"duplicates":0,"unchecked":0,"disorder":0,' "$dir/summary" ||
	die "callers of the SDK saw failures, or wrong IDs"

say "kill -9 all nodes at once, and their members with them"
for what in kill start; do
	for n in $nodes; do docker $what "$(container "$n")" >/dev/null; done
done
serving
say "stop: each node ends by itself, and the next start waits for nothing"
on_compose stop $nodes 2>/dev/null
for n in $nodes; do
	[[ $(of '{{.State.ExitCode}}' "$(container "$n")") == 0 ]] || die "$n did not end by itself"
	docker logs "$(container "$n")" 2>&1 | tail -n 20 | grep -q msg=stopped || die "$n does not log that it stopped"
done
on_compose start $nodes 2>/dev/null
serving
for n in $nodes; do in_node "$n" get 1000 >>"$dir/$n.ids"; done
"$images/allocator/allocator" audit --order file "$dir"/*.ids
say "passed"
