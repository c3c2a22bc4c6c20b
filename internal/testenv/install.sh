#!/usr/bin/env bash
# Installs the servers that the tests start, where one is missing and this is a Debian or Ubuntu that we may change: as root, or
# through sudo without a password. Elsewhere it says what to install. The services that come with the packages are neither started
# nor enabled, since tests start servers of their own; what runs already is left alone.
set -euo pipefail

# One line per server: the binary that shows that it is there (a name or a path pattern), its package, the service in that package.
servers='
redis-server redis-server redis-server
etcd etcd-server etcd
etcdctl etcd-client
/usr/lib/postgresql/*/bin/postgres postgresql postgresql
pgbouncer pgbouncer pgbouncer
/usr/share/java/zookeeper.jar zookeeper
/usr/share/java/curator-recipes.jar libcurator-recipes-java
javac default-jdk-headless
promtool prometheus prometheus
chromium chromium
cc gcc
ip iproute2
mvn maven
mariadbd mariadb-server-core
'

missing() { # the lines of the servers that are not there
  while read -r binary package service; do
    [ -n "$binary" ] || continue
    command -v "$binary" >/dev/null || compgen -G "$binary" >/dev/null || echo "$binary $package $service"
  done <<<"$servers"
}

column() { # NUMBER: that column of the missing servers, in one line
  missing | cut -d' ' -f"$1" | paste -sd' '
}

give_up() { # REASON
  echo "Not installed: $(column 1) ($1)." >&2
  echo "Please install $(column 2); until then the tests that need it are skipped, or fail if CI is set." >&2
  exit 0
}

[ -n "$(missing)" ] || exit 0
command -v apt-get >/dev/null || give_up "there is no apt-get here"
if [ "$(id -u)" != 0 ]; then
  sudo -n true 2>/dev/null || give_up "that takes root, or sudo without a password"
  exec sudo -n "$BASH" "$0"
fi

# Debian starts a service when it is installed, unless this program forbids it.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi

read -ra packages <<<"$(column 2)"
read -ra services <<<"$(column 3)"
echo "Installing ${packages[*]} ..."
export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -qq -o DPkg::Lock::Timeout=300)
"${apt[@]}" update || true # an old list may do
"${apt[@]}" install -y --no-install-recommends "${packages[@]}" >/dev/null || give_up "apt-get could not install it"
for service in "${services[@]}"; do
  update-rc.d "$service" disable >/dev/null || echo "The service $service stays enabled." >&2
done
[ -z "$(missing)" ] || give_up "its package does not contain it"
