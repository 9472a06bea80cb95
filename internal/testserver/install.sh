#!/bin/sh
# Installs the server programs that the tests start: PostgreSQL, Redis (which is
# its own sentinel), Valkey, PgBouncer, Sidekiq and Prometheus; on Linux also faketime, which makes
# the clock of a server jump, and Chromium, for the console. Quick when all of them are there.
# Redis may be old and Valkey is new, so tests see how both behave.
set -eu

# The places are those of program.go.
found() {
	command -v "$1" >/dev/null 2>&1 && return
	for place in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin \
		/opt/homebrew/bin /opt/homebrew/opt/postgresql*/bin \
		/usr/local/bin /usr/local/opt/postgresql*/bin \
		/home/linuxbrew/.linuxbrew/bin /home/linuxbrew/.linuxbrew/opt/postgresql*/bin \
		/opt/homebrew/lib/ruby/gems/*/bin /usr/local/lib/ruby/gems/*/bin /usr/sbin /usr/local/sbin; do
		[ -x "$place/$1" ] && return
	done
	return 1
}

case $(uname) in
Linux) linux='faketime chromium' ;;
*) linux= ;;
esac
if command -v apt-get >/dev/null 2>&1; then
	linux="$linux sidekiq7 sidekiq8"
fi

missing() {
	for program in postgres redis-server valkey-server pgbouncer sidekiq prometheus promtool $linux; do
		found "$program" || printf '%s ' "$program"
	done
}

as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo "$@"
	fi
}

# valkey_from_debian installs the package with the program and without the service. Valkey
# is one program, whose name says what it does.
valkey_from_debian() {
	if apt-cache policy valkey-tools | grep -q 'Candidate: [0-9]'; then
		as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends valkey-tools >&2
	else # Debian 12 has it in its backports
		suite=$(. /etc/os-release && echo "$VERSION_CODENAME-backports")
		list=$(mktemp)
		cat /etc/apt/sources.list >"$list" 2>/dev/null || true
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" >>"$list"
		as_root apt-get -o Dir::Etc::sourcelist="$list" update -q >&2
		as_root env DEBIAN_FRONTEND=noninteractive apt-get -o Dir::Etc::sourcelist="$list" \
			install -q -y --no-install-recommends -t "$suite" valkey-tools >&2
		rm "$list"
	fi
	as_root ln -sf /usr/bin/valkey-check-rdb /usr/local/bin/valkey-server
}

[ -n "$(missing)" ] || exit 0
echo "installing: $(missing)" >&2
if command -v apt-get >/dev/null 2>&1; then
	as_root apt-get update -q >&2
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
		postgresql redis-server pgbouncer ruby-sidekiq prometheus faketime chromium >&2
	found valkey-server || valkey_from_debian
	for release in 7 8; do
		found "sidekiq$release" || as_root sh "$(dirname "$0")/sidekiq.sh" "$release" >&2
	done
elif command -v brew >/dev/null 2>&1; then
	brew install postgresql@16 redis valkey pgbouncer ruby prometheus >&2
	"$(brew --prefix ruby)/bin/gem" install sidekiq >&2
fi
if [ -n "$(missing)" ]; then
	echo "The tests need PostgreSQL (server programs), Redis 6.2 or later, Valkey, PgBouncer, Sidekiq and Prometheus. Not found: $(missing)" >&2
	echo "Install them with your system's package tool and run this again." >&2
	exit 1
fi
