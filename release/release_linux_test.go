//go:build release

// Package release_test builds a release and installs it.
package release_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

var dist = flag.String("release.dist", "", "files of release/build.sh for all platforms, to check and to compare with a second build")

const version = "v1.2.3-rc.1"

// run runs a program and returns its output.
func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), args[0], args[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// asRoot runs a program as root: chroot, dpkg and rpm need that.
func asRoot(t *testing.T, args ...string) string {
	t.Helper()
	if os.Getuid() != 0 {
		args = append([]string{"sudo", "-n"}, args...)
	}
	return run(t, "", args...)
}

// commit returns a repository whose one commit has the files of this working tree.
func commit(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	run(t, "..", "sh", "-c", `git ls-files -co --exclude-standard -z | xargs -0 sh -c 'for f; do [ ! -e "$f" ] || echo "$f"; done' sh | tar -cf - -T - | tar -xf - -C "$0"`, dir)
	run(t, dir, "git", "init", "-q")
	run(t, dir, "git", "add", "-A")
	run(t, dir, "git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false", "commit", "-q", "-m", "all")
	return dir
}

// build clones a repository to a path and returns the files that it builds.
func build(t *testing.T, repository, name string, env ...string) string {
	t.Helper()
	base := t.TempDir()
	checkout, out := filepath.Join(base, name), filepath.Join(base, "dist")
	run(t, base, "git", "clone", "-q", repository, checkout)
	run(t, checkout, slices.Concat([]string{"env"}, env, []string{"release/build.sh", version, out})...)
	return out
}

// files are the files of a folder by name.
func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if found[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// same checks that two builds have the same files.
func same(t *testing.T, a, b string) {
	t.Helper()
	first, second := files(t, a), files(t, b)
	if len(first) != len(second) || len(first) == 0 {
		t.Errorf("the builds have %d and %d files", len(first), len(second))
	}
	for name, data := range first {
		if other := second[name]; !bytes.Equal(data, other) {
			at := 0
			for at < min(len(data), len(other)) && data[at] == other[at] {
				at++
			}
			t.Errorf("%s differs between two builds of one commit: %d and %d bytes, from byte %d", name, len(data), len(other), at)
		}
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	repository, platform := commit(t), "PLATFORMS=linux/"+runtime.GOARCH
	out := build(t, repository, "a", platform)
	run(t, out, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	testArchive(t, out, "relay")
	testArchive(t, out, "relay-slim")
	// MB of an image as a registry stores it.
	testImage(t, filepath.Join(out, "relay_1.2.3-rc.1_image.tar"), 50)
	testImage(t, filepath.Join(out, "relay-slim_1.2.3-rc.1_image.tar"), 30)
	testPackage(t, filepath.Join(out, "relay_1.2.3-rc.1_"+runtime.GOARCH+".deb"))
	testRPM(t, filepath.Join(out, "relay_1.2.3-rc.1_"+runtime.GOARCH+".rpm"))
	testChart(t, filepath.Join(out, "relay-1.2.3-rc.1.tgz"), "1.2.3-rc.1")
	same(t, out, build(t, repository, "a-path-of-another-length", platform))
}

// `make release` runs this test on what it built. The second build has an empty cache.
func TestDist(t *testing.T) {
	t.Parallel()
	if *dist == "" {
		return
	}
	path, err := filepath.Abs(*dist)
	if err != nil {
		t.Fatal(err)
	}
	formulas, packages := glob(t, path, "relay.rb"), glob(t, path, "relay_*_"+runtime.GOARCH+".rpm")
	run(t, "", "ruby", "-c", formulas)
	testRPM(t, packages)
	testChart(t, glob(t, path, "relay-*.tgz"), strings.TrimSuffix(strings.TrimPrefix(filepath.Base(packages), "relay_"), "_"+runtime.GOARCH+".rpm"))
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	checkout, out := filepath.Join(t.TempDir(), "again"), t.TempDir()
	run(t, "", "git", "clone", "-q", root, checkout)
	name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(packages), "relay_"), "_"+runtime.GOARCH+".rpm")
	run(t, checkout, "env", "GOCACHE="+t.TempDir(), "release/build.sh", "v"+name, out)
	same(t, path, out)
}

// glob returns the one file that a pattern matches.
func glob(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s has %d files %s, expected 1: %v", dir, len(found), pattern, err)
	}
	return found[0]
}

// testArchive compares the SBOM and the licences of a program with what the linker wrote into it.
func testArchive(t *testing.T, out, name string) {
	t.Helper()
	archive := glob(t, out, name+"_*_linux_"+runtime.GOARCH+".tar.gz")
	dir := t.TempDir()
	run(t, dir, "tar", "--strip-components=1", "-xzf", archive)
	info, err := buildinfo.ReadFile(filepath.Join(dir, "relay"))
	if err != nil {
		t.Fatal(err)
	}
	licences, err := os.ReadFile(filepath.Join(dir, "LICENSES.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"pkg:golang/std@" + info.GoVersion}
	for _, m := range info.Deps {
		if !bytes.Contains(licences, []byte("\n======== "+m.Path+"@"+m.Version+": ")) {
			t.Errorf("LICENSES.txt has no licence of %s %s", m.Path, m.Version)
		}
		want = append(want, "pkg:golang/"+m.Path+"@"+m.Version)
	}
	data, err := os.ReadFile(strings.TrimSuffix(archive, ".tar.gz") + ".cdx.json")
	if err != nil {
		t.Fatal(err)
	}
	var bom struct{ Components []struct{ PURL string } }
	if err := json.Unmarshal(data, &bom); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range bom.Components {
		purl, _, _ := strings.Cut(c.PURL, "?")
		got = append(got, purl)
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the SBOM of %s has the components\n%q\nexpected\n%q", name, got, want)
	}
}

// shellRoot is a root file system with a shell for the scripts of a package and nothing else.
func shellRoot(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	t.Cleanup(func() { asRoot(t, "rm", "-rf", root) })
	run(t, "", "sh", "-c", `set -e
mkdir -p "$0/bin" "$0/dev" "$0/proc" "$0/tmp" "$0/var/lib/dpkg/updates" "$0/var/lib/dpkg/info"
touch "$0/dev/null" "$0/var/lib/dpkg/status"
cp /bin/sh "$0/bin/sh"
for lib in $(ldd /bin/sh | grep -o '/[^ ]*'); do mkdir -p "$0$(dirname $lib)"; cp -L "$lib" "$0$lib"; done`, root)
	return root
}

// tree lists the files of a root, and folders named relay, except those of the package manager. rpm leaves folders that the package does not own.
func tree(t *testing.T, root string) string {
	t.Helper()
	return asRoot(t, "sh", "-c", `cd "$0" && find . -path ./var -prune -o '(' ! -type d -o -name relay ')' -print | sort`, root)
}

// inRoot runs a program of a root. /proc and /dev/null are mounted for this program only.
func inRoot(t *testing.T, root string, args ...string) string {
	t.Helper()
	return asRoot(t, append([]string{"unshare", "--mount", "sh", "-c", `mount -t proc proc "$0/proc" && mount --bind /dev/null "$0/dev/null" && exec chroot "$0" "$@"`, root}, args...)...)
}

// testInstalled runs the program of a package in the root where it was installed.
func testInstalled(t *testing.T, root string) {
	t.Helper()
	for _, path := range []string{
		"usr/bin/relay", "etc/relay/relay.yaml", "etc/relay/grants.sql", "usr/lib/systemd/system/relay.service",
		"usr/lib/systemd/system/relay-migrate.service", "usr/share/bash-completion/completions/relay", "usr/share/man/man1/relay.1.gz",
	} {
		if info, err := os.Stat(filepath.Join(root, path)); err != nil || info.Size() == 0 {
			t.Errorf("the package did not install %s: %v", path, err)
		}
	}
	unit, err := os.ReadFile(filepath.Join(root, "usr/lib/systemd/system/relay.service"))
	if err != nil || !strings.Contains(string(unit), "\nExecStart=/usr/bin/relay run ") {
		t.Errorf("the unit does not start the package's program: %v\n%s", err, unit)
	}
	got := inRoot(t, root, "/usr/bin/relay", "version")
	if !strings.HasPrefix(got, "relay v") || !strings.Contains(got, ", commit ") || strings.Contains(got, "changes") || !strings.Contains(got, runtime.Version()) {
		t.Errorf("relay version printed %q", got)
	}
	inRoot(t, root, "/usr/bin/relay", "check", "/etc/relay/relay.yaml")
	if got := inRoot(t, root, "/usr/bin/relay", "demo", "--events", "20", "--no-console"); !strings.Contains(got, "missing 0, duplicates 0, phantom 0") {
		t.Errorf("relay demo printed %s", got)
	}
}

func testPackage(t *testing.T, deb string) {
	t.Helper()
	root := shellRoot(t)
	before := tree(t, root)
	asRoot(t, "dpkg", "--root="+root, "-i", deb)
	testInstalled(t, root)
	asRoot(t, "dpkg", "--root="+root, "--purge", "relay")
	if after := tree(t, root); after != before {
		t.Errorf("the root differs after the removal:\n%s\nbefore:\n%s", after, before)
	}
}

func testRPM(t *testing.T, file string) {
	t.Helper()
	root := shellRoot(t)
	before := tree(t, root)
	// The shell of this root belongs to no package, which --nodeps allows.
	asRoot(t, "rpm", "--root="+root, "--dbpath=/var/lib/rpm", "--nodeps", "--nosignature", "-i", file)
	testInstalled(t, root)
	asRoot(t, "rpm", "--root="+root, "--dbpath=/var/lib/rpm", "--nodeps", "-e", "relay")
	if after := tree(t, root); after != before {
		t.Errorf("the root differs after the removal:\n%s\nbefore:\n%s", after, before)
	}
}

// testChart renders the packaged chart with Helm's own modules, as the tests of the chart do. The chart runs the image of the release.
func testChart(t *testing.T, file, version string) {
	t.Helper()
	run(t, "../tools/manifests", "go", "test", "-count=1", "-run", "^TestChart_", ".", "-chart", file)
	about := run(t, "", "tar", "-xzOf", file, "relay/Chart.yaml")
	for _, line := range []string{"\nversion: " + version + "\n", "\nappVersion: " + version + "\n"} {
		if !strings.Contains(about, line) {
			t.Errorf("%s has not the line %q:\n%s", file, line, about)
		}
	}
	if kept := run(t, "", "tar", "-tzf", file); !strings.Contains(kept, "relay/templates/deployment.yaml\n") || !strings.Contains(kept, "relay/values.schema.json\n") {
		t.Errorf("%s has the files\n%s", file, kept)
	}
}

// testImage checks the digests and the size of an image, in MB as a registry stores it, and runs its program.
func testImage(t *testing.T, path string, limit float64) {
	t.Helper()
	archive, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	blobs := map[string][]byte{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name, isBlob := strings.CutPrefix(h.Name, "blobs/sha256/")
		if sum := sha256.Sum256(data); isBlob && hex.EncodeToString(sum[:]) != name {
			t.Errorf("%s: a blob has another digest than its name", path)
		}
		blobs["sha256:"+name] = data
	}
	type node struct {
		Manifests, Layers []struct{ Digest string }
	}
	read := func(data []byte) (n node) {
		if err := json.Unmarshal(data, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	list := read(blobs[read(blobs["sha256:index.json"]).Manifests[0].Digest])
	layer := blobs[read(blobs[list.Manifests[0].Digest]).Layers[0].Digest]
	z, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		t.Fatal(err)
	}
	unpacked, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	size := float64(len(layer)) / 1e6
	t.Logf("%s: %.1f MB in a registry, %.1f MB unpacked", filepath.Base(path), size, float64(len(unpacked))/1e6)
	if size > limit {
		t.Errorf("the image has %.1f MB; expected at most %.0f", size, limit)
	}
	root, file := t.TempDir(), filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(file, unpacked, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, root, "tar", "--no-same-owner", "-xf", file)
	if got := asRoot(t, "chroot", root, "/relay", "version"); !strings.HasPrefix(got, "relay "+version) {
		t.Errorf("relay version printed %q", got)
	}
}
