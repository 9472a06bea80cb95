#!/bin/sh
# Builds the files of a release from the commit that is checked out:
#
#   release/build.sh v1.2.3 dist
#
# Two builds of one commit have the same bytes, wherever they run. The image is the same if the
# certificate authorities of the machine are. PLATFORMS selects the platforms; the default is all.
# It needs Linux, git, GNU tar and the modules of go.mod and tools/release/go.mod.
set -eu
version=$1
mkdir -p "$2"
dist=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."
platforms=${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}

failed() {
	echo "release/build.sh: $1" >&2
	exit 1
}

echo "$version" | grep -Eq '^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$' || failed "the version is $version; expected v1.2.3 or v1.2.3-rc.1"
[ -z "$(git status --porcelain)" ] || failed "files were changed; commit them, because the program names the commit"
[ -z "$(ls -A "$dist")" ] || failed "$dist is not empty"

# All that changes the bytes of a build, but for the toolchain's version: that is the Dockerfile's.
export LC_ALL=C TZ=UTC GOFLAGS=-buildvcs=true CGO_ENABLED=0 GOEXPERIMENT= GOFIPS140=off GOAMD64=v1 GOARM64=v8.0 GOWORK=off
GOTOOLCHAIN=go$(sed -n 's/^FROM .* golang:\([0-9.]*\) AS build$/\1/p' Dockerfile)
# nfpm reads it too.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export GOTOOLCHAIN SOURCE_DATE_EPOCH VERSION="${version#v}"
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
GOOS='' GOARCH='' go build -modfile=tools/release/go.mod -o "$work/" \
	github.com/goreleaser/nfpm/v2/cmd/nfpm github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
# The completions and the manual page come from the program itself, built for this machine.
go build -trimpath -tags slim -ldflags "-X main.release=$version" -o "$work/relay" ./cmd/relay

shared=$work/shared
mkdir -p "$shared/completions" "$shared/units"
"$work/relay" completion bash >"$shared/completions/relay.bash"
"$work/relay" completion zsh >"$shared/completions/_relay"
"$work/relay" completion fish >"$shared/completions/relay.fish"
"$work/relay" help | awk -v version="$version" -v date="$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%d)" -f release/man.awk >"$shared/relay.1"
for unit in deploy/systemd/*.service; do
	sed 's|/usr/local/bin/relay|/usr/bin/relay|' "$unit" >"$shared/units/$(basename "$unit")"
done
gzip -9nc "$shared/relay.1" >"$shared/relay.1.gz"
{
	echo "relay ($VERSION) stable; urgency=medium"
	printf '\n  * See https://github.com/outboxrelay/relay/blob/%s/CHANGELOG.md\n\n' "$version"
	echo " -- Relay <relay@outboxrelay.example>  $(date -u -R -d "@$SOURCE_DATE_EPOCH")"
} | gzip -9nc >"$shared/changelog.gz"

for platform in $platforms; do
	os=${platform%/*} arch=${platform#*/}
	for tags in '' slim; do
		name=relay${tags:+-$tags}_${VERSION}_${os}_$arch
		out=$work/$name
		mkdir "$out"
		GOOS=$os GOARCH=$arch go build -trimpath -tags "timetzdata $tags" -ldflags "-s -w -X main.release=$version" -o "$out/relay" ./cmd/relay
		cp LICENSE THIRD_PARTY.md CHANGELOG.md "$shared/relay.1" "$out"
		cp -r "$shared/completions" "$out"
		chmod 644 "$out"/*.md "$out/LICENSE"
		tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$work" -cf - "$name" |
			gzip -9n >"$dist/$name.tar.gz"
		"$work/cyclonedx-gomod" bin -json -std -noserial -notimestamp -version "$version" -output "$dist/$name.cdx.json" "$out/relay"
	done
	if [ "$os" = linux ]; then
		export ARCH="$arch" BINARY="$work/relay_${VERSION}_${os}_$arch/relay" SHARED="$shared"
		for packager in deb rpm; do
			"$work/nfpm" package --config release/nfpm.yaml --packager $packager --target "$dist/relay_${VERSION}_$arch.$packager" >/dev/null
		done
	fi
done

for tags in '' slim; do
	go run ./release/image -version "$version" -revision "$(git rev-parse HEAD)" -time "$SOURCE_DATE_EPOCH" \
		-out "$dist/relay${tags:+-$tags}_${VERSION}_image.tar" $(ls -d "$work/relay${tags:+-$tags}_${VERSION}"_linux_*)
done

(cd "$dist" && sha256sum relay*_darwin_*.tar.gz relay*_linux_*.tar.gz 2>/dev/null || true) >"$work/archives"
sum() { sed -n "s|^\([0-9a-f]*\)  relay_${VERSION}_$1\.tar\.gz$|\1|p" "$work/archives"; }
if [ "$(grep -c ' relay_' "$work/archives")" = 4 ]; then
	sed -e "s|@VERSION@|$VERSION|g" -e "s|@DARWIN_AMD64@|$(sum darwin_amd64)|" -e "s|@DARWIN_ARM64@|$(sum darwin_arm64)|" \
		-e "s|@LINUX_AMD64@|$(sum linux_amd64)|" -e "s|@LINUX_ARM64@|$(sum linux_arm64)|" release/relay.rb.in >"$dist/relay.rb"
fi
(cd "$dist" && sha256sum relay* >SHA256SUMS)
