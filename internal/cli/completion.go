package cli

import (
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) completionCommand() *cobra.Command {
	const described = true
	scripts := map[string]func(root *cobra.Command, w io.Writer) error{
		"bash":       func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, described) },
		"zsh":        (*cobra.Command).GenZshCompletion,
		"fish":       func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, described) },
		"powershell": (*cobra.Command).GenPowerShellCompletionWithDesc,
	}
	shells := slices.Sorted(maps.Keys(scripts))
	return &cobra.Command{
		Use:   "completion " + strings.Join(shells, "|"),
		Short: "Print a shell completion script",
		Example: `  relay completion bash > /etc/bash_completion.d/relay
  relay completion zsh > "${fpath[1]}/_relay"
  relay completion fish > ~/.config/fish/completions/relay.fish`,
		ValidArgs: shells,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 || scripts[args[0]] == nil {
				return usage("the shell is %q; expected one of %s", strings.Join(args, " "), strings.Join(shells, ", "))
			}
			return scripts[args[0]](c.Root(), a.stdout)
		},
	}
}
