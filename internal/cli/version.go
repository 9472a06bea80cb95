package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// release is the version; "" if it is that of the build.
var release string

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.stdout, version())
			return err
		},
	}
}

// version describes the build.
func version() string {
	name, revision, changed := build()
	if revision != "" {
		revision = ", commit " + revision
	}
	if changed {
		revision += " with changes"
	}
	return fmt.Sprintf("relay %s%s, %s %s/%s", name, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// shortVersion is the release, or the commit of a build that is none.
func shortVersion() string {
	name, revision, changed := build()
	if release == "" && revision != "" {
		name = revision
	}
	if changed {
		name += "+"
	}
	return name
}

// build returns the release, the commit, and whether files were changed since.
func build() (name, revision string, changed bool) {
	name = release
	if info, ok := debug.ReadBuildInfo(); ok {
		if name == "" {
			name = info.Main.Version
		}
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				revision = s.Value[:min(12, len(s.Value))]
			case "vcs.modified":
				changed = s.Value == "true"
			}
		}
	}
	return cmp.Or(strings.Trim(name, "()"), "devel"), revision, changed // Go writes (devel)
}
