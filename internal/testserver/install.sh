#!/bin/sh
# Installs the server programs that the tests start: PostgreSQL, Redis (which is
# its own sentinel), PgBouncer and Sidekiq. Quick when all of them are there.
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

missing() {
	for program in postgres redis-server pgbouncer sidekiq; do
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

[ -n "$(missing)" ] || exit 0
echo "installing: $(missing)" >&2
if command -v apt-get >/dev/null 2>&1; then
	as_root apt-get update -q >&2
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends \
		postgresql redis-server pgbouncer ruby-sidekiq >&2
elif command -v brew >/dev/null 2>&1; then
	brew install postgresql@16 redis pgbouncer ruby >&2
	"$(brew --prefix ruby)/bin/gem" install sidekiq >&2
fi
if [ -n "$(missing)" ]; then
	echo "The tests need PostgreSQL (server programs), Redis 6.2 or later, PgBouncer and Sidekiq. Not found: $(missing)" >&2
	echo "Install them with your system's package tool and run this again." >&2
	exit 1
fi
