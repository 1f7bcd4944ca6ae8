package main

import (
	"context"

	"github.com/urfave/cli/v3"
)

// bashCompletion needs nothing but bash. The script of the cli package needs the package
// bash-completion.
const bashCompletion = `# bash completion for redlatch:  source <(redlatch completion bash)
_redlatch_completion() {
  local current="${COMP_WORDS[COMP_CWORD]}" line words=()
  local request=("${COMP_WORDS[@]:0:COMP_CWORD}")
  [[ $current == -* ]] && request+=("$current")
  while IFS= read -r line; do
    words+=("${line%%:*}")
  done < <("${request[@]}" --generate-shell-completion 2>/dev/null)
  COMPREPLY=($(compgen -W "${words[*]}" -- "$current"))
}
complete -o bashdefault -o default -F _redlatch_completion redlatch
`

// configureCompletion sets up the command that the cli package provides.
func configureCompletion(c *cli.Command) {
	c.Hidden = false
	c.Usage = "print a script that completes commands and flags in a shell"
	c.UsageText = "redlatch completion bash|zsh|fish"
	c.Description = withExamples("Evaluate the output in your shell's start-up file. For fish, write it to\n"+
		"~/.config/fish/completions/redlatch.fish.",
		"redlatch completion bash", "redlatch completion zsh", "redlatch completion fish")
	c.OnUsageError = wrongUsage
	c.Action = func(_ context.Context, c *cli.Command) error {
		if c.Args().Present() {
			return badUsage("no shell %q: bash, zsh or fish", c.Args().First())
		}
		return badUsage("which shell? bash, zsh or fish")
	}
	for _, shell := range c.Commands {
		shell.OnUsageError = wrongUsage
		shell.Usage = "print the script for " + shell.Name
		shell.Description = withExamples("Prints the script.", "redlatch completion "+shell.Name)
		shell.Before = func(ctx context.Context, c *cli.Command) (context.Context, error) {
			_, err := arguments(c)
			return ctx, err
		}
		switch shell.Name {
		case "bash":
			shell.Action = func(_ context.Context, c *cli.Command) error {
				_, err := c.Root().Writer.Write([]byte(bashCompletion))
				return err
			}
		case "pwsh":
			shell.Hidden = true
		}
	}
}
