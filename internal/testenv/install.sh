#!/usr/bin/env bash
# Installs the missing servers that the tests start. This requires Debian or Ubuntu, and root or sudo without a password. Elsewhere it
# prints what to install. The packages' services are neither started nor enabled, because tests start their own servers. Services that are
# already running continue.
set -euo pipefail

# One line per server: the binary that shows that it is installed (a name or a path pattern), its package, and the package's service.
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

missing() { # prints the lines of the missing servers
  while read -r binary package service; do
    [ -n "$binary" ] || continue
    command -v "$binary" >/dev/null || compgen -G "$binary" >/dev/null || echo "$binary $package $service"
  done <<<"$servers"
}

column() { # NUMBER: prints that column of the missing servers, in one line
  missing | cut -d' ' -f"$1" | paste -sd' '
}

give_up() { # REASON
  echo "Not installed: $(column 1) ($1)." >&2
  echo "Please install $(column 2). Until then, tests that need them are skipped, or fail if CI is set." >&2
  exit 0
}

[ -n "$(missing)" ] || exit 0
command -v apt-get >/dev/null || give_up "this system has no apt-get"
if [ "$(id -u)" != 0 ]; then
  sudo -n true 2>/dev/null || give_up "this requires root, or sudo without a password"
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
"${apt[@]}" update || true # an old list may be enough
"${apt[@]}" install -y --no-install-recommends "${packages[@]}" >/dev/null || give_up "apt-get could not install them"
for service in "${services[@]}"; do
  update-rc.d "$service" disable >/dev/null || echo "The service $service stays enabled." >&2
done
[ -z "$(missing)" ] || give_up "the packages do not contain them"
