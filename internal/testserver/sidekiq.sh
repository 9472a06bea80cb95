#!/bin/sh
# Installs a release of Sidekiq that the system's own Debian does not have, as the command
# sidekiqRELEASE: sidekiq.sh 7 (of Debian 13) or sidekiq.sh 8 (of Debian's development
# version), with the Ruby of Debian 13. All of it is unpacked into one directory and uses
# the C library there, so that the system's own packages stay as they are.
set -eu

release=$1
case $release in
7) suite=trixie ;;
8) suite=sid ;;
*) echo "sidekiq.sh: release $release; expected 7 or 8" >&2 && exit 2 ;;
esac
root=/usr/local/lib/relay-sidekiq/$release
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs"
for each in trixie $suite; do
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $each main"
done | sort -u >"$work/list"
apt() {
	command apt-get -q -o Dir::Etc::sourcelist="$work/list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists" \
		-o Dir::Cache="$work/cache" -o APT::Sandbox::User=root "$@"
}
apt update
(
	cd "$work/debs"
	apt download ruby3.3/trixie libruby3.3/trixie libc6/trixie libgcc-s1/trixie libgmp10/trixie zlib1g/trixie \
		libcrypt1/trixie libssl3t64/trixie libffi8/trixie libyaml-0-2/trixie libzstd1/trixie ruby-concurrent/trixie \
		"ruby-sidekiq/$suite" "ruby-redis-client/$suite" "ruby-connection-pool/$suite"
)
rm -rf "$root" && mkdir -p "$root"
for deb in "$work"/debs/*.deb; do
	dpkg-deb -x "$deb" "$root"
done

set -- "$root"/usr/lib/*-linux-gnu
libraries=$1
set -- "$root"/usr/lib*/ld-linux*.so.* "$root"/usr/lib64/ld-linux*.so.*
loader=$1
path=$root/usr/lib/ruby/3.3.0:$libraries/ruby/3.3.0:$root/usr/lib/ruby/vendor_ruby
for lib in "$root"/usr/share/rubygems-integration/all/gems/*/lib "$root"/usr/share/rubygems-integration/all/gems/concurrent-ruby-[0-9]*/lib/concurrent-ruby; do
	path=$lib:$path
done
set -- "$root"/usr/share/rubygems-integration/all/gems/sidekiq-*/bin/sidekiq
cat >"/usr/local/bin/sidekiq$release" <<WRAPPER
#!/bin/sh
RUBYLIB=$path exec $loader --library-path $libraries $root/usr/bin/ruby3.3 $1 "\$@"
WRAPPER
chmod 755 "/usr/local/bin/sidekiq$release"
"/usr/local/bin/sidekiq$release" --version
