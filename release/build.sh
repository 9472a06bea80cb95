#!/bin/sh
# Builds the files of a release from the commit that is checked out:
#
#   release/build.sh v1.2.3 dist
#
# PLATFORMS selects some of the platforms and leaves out the Homebrew formula, which names all four.
# It needs Linux, git and the modules of go.mod and tools/release/go.mod.
set -eu
version=$1
mkdir -p "$2"
dist=$(cd "$2" && pwd)
cd "$(dirname "$0")/.."

failed() {
	echo "release/build.sh: $1" >&2
	exit 1
}

echo "$version" | grep -Eq '^v[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$' || failed "the version is \"$version\"; expected v1.2.3 or v1.2.3-rc.1"
[ -z "$(git status --porcelain)" ] || failed "files were changed; commit them, because the program names the commit"
[ -z "$(ls -A "$dist")" ] || failed "$dist is not empty"

# Settings that change the bytes of a build. The version of the toolchain is the Dockerfile's.
unset GOOS GOARCH
export LC_ALL=C TZ=UTC GOFLAGS=-buildvcs=true CGO_ENABLED=0 GOEXPERIMENT='' GOFIPS140=off GOAMD64=v1 GOARM64=v8.0 GOWORK=off
GOTOOLCHAIN=go$(sed -n 's/^FROM .* golang:\([0-9.]*\) AS build$/\1/p' Dockerfile)
# nfpm reads it too.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export GOTOOLCHAIN SOURCE_DATE_EPOCH VERSION="${version#v}"
umask 022

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tool() { go tool -modfile=tools/release/go.mod "$@"; }

# build PLATFORM TAGS FILE builds the program.
build() {
	GOOS=${1%/*} GOARCH=${1#*/} go build -trimpath -tags "timetzdata $2" -ldflags "-s -w -X main.release=$version" -o "$3" ./cmd/relay
}

# The completions and the manual page come from the program itself, built for this machine.
export SHARED="$work/shared"
mkdir -p "$SHARED/completions" "$SHARED/units"
build "$(go env GOHOSTOS)/$(go env GOHOSTARCH)" slim "$work/relay"
"$work/relay" version | grep -q ', commit ' || failed "the program does not name its commit; build from a clone, not from a worktree"
"$work/relay" completion bash >"$SHARED/completions/relay.bash"
"$work/relay" completion zsh >"$SHARED/completions/_relay"
"$work/relay" completion fish >"$SHARED/completions/relay.fish"
"$work/relay" help >"$work/help"
day=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%d)
awk -v version="$version" -v date="$day" -f release/man.awk "$work/help" >"$SHARED/relay.1"
gzip -9nc "$SHARED/relay.1" >"$SHARED/relay.1.gz"
for unit in deploy/systemd/*.service; do
	sed 's|/usr/local/bin/relay|/usr/bin/relay|' "$unit" >"$SHARED/units/$(basename "$unit")"
done
second=$(date -u -R -d "@$SOURCE_DATE_EPOCH")
cat >"$work/changelog" <<-END
	relay ($(echo "$VERSION" | tr - '~')-1) stable; urgency=medium

	  * See https://github.com/outboxrelay/relay/blob/$version/CHANGELOG.md

	 -- Relay <relay@outboxrelay.example>  $second
END
gzip -9nc "$work/changelog" >"$SHARED/changelog.Debian.gz"

# The licences ask that copies of the programs have their texts.
licence() {
	find "$2" -maxdepth 1 -type f -iregex '.*/\(licen[cs]e\|unlicense\|copying\|notice\)[^/]*' | sort | while read -r file; do
		printf '%s\n%s\n\n' "======== $1: ${file##*/}" "$(cat "$file")"
	done
}
for os in linux darwin; do
	GOOS=$os go list -deps -f '{{with .Module}}{{if not .Main}}{{.Path}}@{{.Version}} {{.Dir}}{{end}}{{end}}' ./cmd/relay
done >"$work/modules"
{
	licence relay .
	licence "Go ${GOTOOLCHAIN#go}" "$(go env GOROOT)"
	sort -u "$work/modules" | while read -r module dir; do licence "$module" "$dir"; done
	printf '%s\n%s\n' "======== uPlot" "$(cat internal/console/assets/uplot.LICENSE)"
} >"$SHARED/LICENSES.txt"

for platform in ${PLATFORMS:-linux/amd64 linux/arm64 darwin/amd64 darwin/arm64}; do
	os=${platform%/*} arch=${platform#*/}
	for tags in '' slim; do
		name=relay${tags:+-$tags}_${VERSION}_${os}_$arch
		out=$work/$name
		mkdir "$out"
		build "$platform" "$tags" "$out/relay"
		cp CHANGELOG.md "$SHARED/LICENSES.txt" "$SHARED/relay.1" "$out"
		cp -r "$SHARED/completions" "$out"
		chmod 644 "$out/CHANGELOG.md"
		tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$work" -cf "$work/tar" "$name"
		gzip -nc "$work/tar" >"$dist/$name.tar.gz"
		tool cyclonedx-gomod bin -json -std -noserial -notimestamp -version "$version" -output "$dist/$name.cdx.json" "$out/relay"
	done
	if [ "$os" = linux ]; then
		export ARCH="$arch" BINARY="$work/relay_${VERSION}_linux_$arch/relay"
		for packager in deb rpm; do
			tool nfpm package --config release/nfpm.yaml --packager $packager --target "$dist/relay_${VERSION}_$arch.$packager" >/dev/null
		done
	fi
done

for tags in '' slim; do
	go run ./release/image -version "$version" -revision "$(git rev-parse HEAD)" -time "$SOURCE_DATE_EPOCH" \
		-out "$dist/relay${tags:+-$tags}_${VERSION}_image.tar" "$work/relay${tags:+-$tags}_${VERSION}"_linux_*
done

# The archive that `helm package` makes, but with the same bytes each time.
mkdir "$work/chart"
cp -r deploy/helm/relay "$work/chart/relay"
sed -i -e "s/^version: .*/version: $VERSION/" -e "s/^appVersion: .*/appVersion: $VERSION/" "$work/chart/relay/Chart.yaml"
tar --sort=name --format=ustar --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$SOURCE_DATE_EPOCH" -C "$work/chart" -cf "$work/tar" relay
gzip -nc "$work/tar" >"$dist/relay-$VERSION.tgz"

sum() { sha256sum "$dist/relay_${VERSION}_$1.tar.gz" | cut -d ' ' -f 1; }
if [ -z "${PLATFORMS:-}" ]; then
	sed -e "s|@VERSION@|$VERSION|g" -e "s|@DARWIN_AMD64@|$(sum darwin_amd64)|" -e "s|@DARWIN_ARM64@|$(sum darwin_arm64)|" \
		-e "s|@LINUX_AMD64@|$(sum linux_amd64)|" -e "s|@LINUX_ARM64@|$(sum linux_arm64)|" release/relay.rb.in >"$dist/relay.rb"
fi
(cd "$dist" && sha256sum relay* >SHA256SUMS)
