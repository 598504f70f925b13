#!/usr/bin/env bash
# Start a Docker daemon of its own and import a small image, for tests that need one: no systemd, no image registry.
#
#   eval "$(scripts/ci_docker.sh)"    install what is missing, start, print the environment that finds it
#   scripts/ci_docker.sh stop         end the daemon and its containers; the image stays for the next time
#
# For root on Debian 12. Everything lies in one folder, $TURNGYM_CI_DOCKER. A second call finds the first one's daemon.
set -euo pipefail
folder=${TURNGYM_CI_DOCKER:-/var/tmp/turngym-ci-docker}
image=turngym/python:ci
export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
export DOCKER_HOST=unix://$folder/docker.sock

say() { echo "[docker] $*" >&2; }

fail() {
	say "$*"
	exit 1
}

is_up() { docker version >/dev/null 2>&1; }

stop() {
	is_up || return 0
	docker ps --all --quiet | xargs --no-run-if-empty docker rm --force >/dev/null
	kill "$(cat "$folder/dockerd.pid")"
	for _ in $(seq 100); do
		[ -e "$folder/dockerd.pid" ] || return 0
		sleep 0.1
	done
	fail "dockerd does not end; its log is $folder/dockerd.log"
}

install_packages() {
	command -v dockerd >/dev/null && command -v debootstrap >/dev/null && command -v iptables >/dev/null && return
	say "installing docker.io, debootstrap and iptables"
	apt-get update -qq >&2 || say "apt-get update failed; the lists that are there may serve"
	apt-get install -y -qq --no-install-recommends docker.io debootstrap iptables >/dev/null ||
		fail "apt-get could not install docker.io, debootstrap and iptables"
}

# $1: storage driver
start_daemon() {
	setsid dockerd --host "$DOCKER_HOST" --data-root "$folder/data" --exec-root "$folder/exec" \
		--pidfile "$folder/dockerd.pid" --storage-driver "$1" --bridge none --iptables=false --ip6tables=false \
		--ip-forward=false --ip-masq=false --exec-opt native.cgroupdriver=cgroupfs --log-driver none \
		</dev/null >"$folder/dockerd.log" 2>&1 &
	local daemon=$!
	for _ in $(seq 300); do
		is_up && return
		kill -0 "$daemon" 2>/dev/null || return 1
		sleep 0.1
	done
	kill "$daemon"
	return 1
}

import_image() {
	docker image inspect "$image" >/dev/null 2>&1 && return
	say "making the image $image"
	local tree=$folder/tree
	if [ ! -e "$tree.complete" ]; then
		rm -rf "$tree"
		local mirror # the one that apt uses here
		mirror=$(apt-get indextargets --format '$(REPO_URI)' "Created-By: Packages" "Codename: bookworm" | head -n 1)
		# Without one, debootstrap takes its own default.
		debootstrap --variant=minbase --include=python3,bash,coreutils,procps bookworm "$tree" \
			${mirror:+"$mirror"} >"$folder/debootstrap.log" 2>&1 ||
			fail "debootstrap failed: $(tail -n 3 "$folder/debootstrap.log")"
		touch "$tree.complete"
	fi
	tar --directory "$tree" --exclude=./var/cache/apt --exclude=./var/lib/apt/lists --exclude=./usr/share/doc \
		--exclude=./usr/share/locale --create . | docker import - "$image" >/dev/null
}

[ "$(id -u)" = 0 ] || fail "needs root; where Docker runs already, the tests find it by DOCKER_HOST"
if [ "${1:-}" = stop ]; then
	stop
	exit
fi
mkdir -p "$folder"
install_packages
if ! is_up; then
	say "starting dockerd in $folder"
	if ! start_daemon overlay2; then # overlay on overlay is refused; plain copies always work
		rm -rf "$folder/data"
		start_daemon vfs || fail "dockerd does not start: $(tail -n 5 "$folder/dockerd.log")"
	fi
fi
import_image
docker run --rm --network none "$image" python3 -c 'print("a container runs")' >/dev/null ||
	fail "containers do not start; the daemon's log is $folder/dockerd.log"
echo "export DOCKER_HOST=$DOCKER_HOST"
echo "export TURNGYM_DOCKER_IMAGE=$image"
