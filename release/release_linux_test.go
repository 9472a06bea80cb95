// Package release_test builds a release and installs it.
package release_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var dist = flag.String("release.dist", "", "files of release/build.sh for all platforms, to compare with a second build")

const version = "v1.2.3-rc.1"

// run runs a program and returns its output.
func run(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// asRoot runs a program as root: chroot and dpkg want that.
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
		if !bytes.Equal(data, second[name]) {
			t.Errorf("%s differs between two builds of one commit", name)
		}
	}
}

func TestRelease(t *testing.T) {
	t.Parallel()
	repository := commit(t)
	out := build(t, repository, "a", "PLATFORMS=linux/amd64")
	t.Run("Reproducible", func(t *testing.T) {
		t.Parallel()
		same(t, out, build(t, repository, "a-path-of-another-length", "PLATFORMS=linux/amd64"))
	})
	t.Run("Package", func(t *testing.T) { t.Parallel(); testPackage(t, filepath.Join(out, "relay_1.2.3-rc.1_amd64.deb")) })
	t.Run("Image", func(t *testing.T) {
		t.Parallel()
		testImage(t, filepath.Join(out, "relay_1.2.3-rc.1_image.tar"), 50<<20)
		testImage(t, filepath.Join(out, "relay-slim_1.2.3-rc.1_image.tar"), 30<<20)
	})
}

// Second build of all platforms with an empty cache; `make release` runs it.
func TestDist(t *testing.T) {
	t.Parallel()
	if *dist == "" {
		return
	}
	path, err := filepath.Abs(*dist)
	if err != nil {
		t.Fatal(err)
	}
	checkout, out := filepath.Join(t.TempDir(), "again"), t.TempDir()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	run(t, "", "git", "clone", "-q", root, checkout)
	archives, err := filepath.Glob(filepath.Join(path, "relay_*_linux_amd64.tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("%s has the archives %q: %v", path, archives, err)
	}
	name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(archives[0]), "relay_"), "_linux_amd64.tar.gz")
	run(t, checkout, "env", "GOCACHE="+t.TempDir(), "release/build.sh", "v"+name, out)
	same(t, path, out)
	run(t, path, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	run(t, path, "ruby", "-c", "relay.rb")
}

// shellRoot is a root file system with a shell for the package's scripts and nothing else.
func shellRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	t.Cleanup(func() { asRoot(t, "rm", "-rf", filepath.Join(root, "tmp"), filepath.Join(root, "var")) })
	run(t, "", "sh", "-c", `set -e
mkdir -p "$0/bin" "$0/tmp" "$0/var/lib/dpkg/updates" "$0/var/lib/dpkg/info"
touch "$0/var/lib/dpkg/status"
cp /bin/sh "$0/bin/sh"
for lib in $(ldd /bin/sh | grep -o '/[^ ]*'); do mkdir -p "$0$(dirname $lib)"; cp -L "$lib" "$0$lib"; done`, root)
	return root
}

// tree lists the files of a root except dpkg's own.
func tree(t *testing.T, root string) string {
	t.Helper()
	return asRoot(t, "sh", "-c", `cd "$0" && find . -path ./var -prune -o -print | sort`, root)
}

func testPackage(t *testing.T, deb string) {
	root := shellRoot(t)
	before := tree(t, root)
	asRoot(t, "dpkg", "--root="+root, "--force-not-root", "-i", deb)
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
	if got := asRoot(t, "chroot", root, "/usr/bin/relay", "version"); !strings.HasPrefix(got, "relay "+version+", commit ") || strings.Contains(got, "changes") {
		t.Errorf("relay version printed %q", got)
	}
	asRoot(t, "chroot", root, "/usr/bin/relay", "check", "/etc/relay/relay.yaml")
	asRoot(t, "chroot", root, "/usr/bin/relay", "demo", "--events", "100", "--no-console")
	asRoot(t, "dpkg", "--root="+root, "--force-not-root", "--purge", "relay")
	if after := tree(t, root); after != before {
		t.Errorf("the root differs after the removal:\n%s\nbefore:\n%s", after, before)
	}
}

// testImage unpacks an image, checks its digests and its size, and runs its program.
func testImage(t *testing.T, path string, limit int) {
	archive, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	blobs := map[string][]byte{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if err == io.EOF {
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
	t.Logf("%s: %.1f MB, %.1f MB compressed", filepath.Base(path), float64(len(unpacked))/1e6, float64(len(layer))/1e6)
	if len(unpacked) > limit {
		t.Errorf("the image has %d bytes; expected at most %d", len(unpacked), limit)
	}
	root := t.TempDir()
	file := filepath.Join(t.TempDir(), "layer.tar")
	if err := os.WriteFile(file, unpacked, 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, root, "tar", "--no-same-owner", "-xf", file)
	if got := asRoot(t, "chroot", root, "/relay", "version"); !strings.HasPrefix(got, "relay "+version) {
		t.Errorf("relay version printed %q", got)
	}
}
