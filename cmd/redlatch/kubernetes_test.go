//go:build unix

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/redlatch/redlatch/internal/test/redistest"
)

// manifests is the folder of the example for Kubernetes.
const manifests = "../../examples/kubernetes/"

type pod struct {
	Spec struct {
		TerminationGracePeriodSeconds int `yaml:"terminationGracePeriodSeconds"`
		Containers                    []struct {
			Command   []string
			Lifecycle struct {
				PreStop struct {
					Sleep struct{ Seconds int }
				} `yaml:"preStop"`
			}
		}
	}
}

type manifest struct {
	Kind string
	Spec struct {
		Replicas int
		Selector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		}
		Template    podTemplate
		JobTemplate struct { // of a CronJob
			Spec struct {
				BackoffLimit int `yaml:"backoffLimit"`
				Template     podTemplate
			}
		} `yaml:"jobTemplate"`
	}
}

type podTemplate struct {
	Metadata struct{ Labels map[string]string }
	pod      `yaml:",inline"`
}

// Close returns within its own bound and one command timeout: C18 of the contract.
const (
	closeBound     = 20 * time.Second // in the code of the page
	commandTimeout = 5 * time.Second  // the default
)

func TestManifestsGiveTimeToClose(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(manifests + "README.md")
	require.NoError(t, err)
	require.Contains(t, string(page), "context.WithTimeout(context.Background(), 20*time.Second)")
	files, err := filepath.Glob(manifests + "*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 3)
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			m := parseManifest(t, name)
			require.Contains(t, string(page), "("+name+")")
			if m.Kind == "Deployment" {
				require.Equal(t, 3, m.Spec.Replicas)
				require.Equal(t, m.Spec.Selector.MatchLabels, m.Spec.Template.Metadata.Labels)
			}
			container := m.Spec.Template.Spec.Containers[0]
			preStop := time.Duration(container.Lifecycle.PreStop.Sleep.Seconds) * time.Second
			grace := time.Duration(m.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
			require.Equal(t, preStop+closeBound+commandTimeout+5*time.Second, grace, "as the page says")
		})
	}
}

// The command of each container runs, with another program in the place of the image's.
func TestCommandsOfTheManifestsRun(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Miniredis(t).Addr()
	for _, file := range []string{"leader.yaml", "migration.yaml", "cronjob.yaml"} {
		command := parseManifest(t, file).Spec.Template.Spec.Containers[0].Command
		end := slices.Index(command, "--")
		require.Positive(t, end)
		require.Equal(t, "redlatch", command[0])
		p := start(t, url, append(command[1:end:end], childArgs(t, "env")...)...)
		require.Contains(t, p.line(), "REDLATCH_NAME", file)
		require.Zero(t, p.wait(), "%s: %s", file, p.errs)
	}
}

// A job that has failed keeps its lock for the minimum hold. A second pod would exit with 0, and
// Kubernetes would take the job for done: so the manifest allows no second pod.
func TestFailedCronJobIsNotHidden(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.Miniredis(t).Addr()
	m := parseManifest(t, "cronjob.yaml")
	command := m.Spec.Template.Spec.Containers[0].Command
	run := command[1 : slices.Index(command, "--")+1]
	require.Equal(t, 7, start(t, url, append(slices.Clone(run), "sh", "-c", "exit 7")...).wait())
	require.Zero(t, start(t, url, append(slices.Clone(run), "sh", "-c", "exit 7")...).wait(), "it did not run")
	require.Zero(t, m.Spec.JobTemplate.Spec.BackoffLimit)
}

// The lines for an operator call the command as it is, from a pod or from his machine.
func TestLinesForOperatorsOnKubernetes(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(manifests + "README.md")
	require.NoError(t, err)
	s := redistest.Miniredis(t)
	lines := regexp.MustCompile(`(?m)^kubectl .*(?: -- redlatch| --| go run \S+/cmd/redlatch@latest) (ls.*)$`).
		FindAllStringSubmatch(string(page), -1)
	require.Len(t, lines, 3)
	for _, line := range lines {
		args := strings.Fields(strings.ReplaceAll(line[1], "redis://localhost:6379", "redis://"+s.Addr()))
		require.Zero(t, start(t, "redis://"+s.Addr(), args...).wait(), line[0])
	}
	release, err := os.ReadFile("../../.goreleaser.yaml")
	require.NoError(t, err)
	image := regexp.MustCompile(`--image=(\S+)`).FindStringSubmatch(string(page))
	require.Contains(t, string(release), "images: ["+image[1]+"]", "the image of a release")
}

func parseManifest(t *testing.T, file string) (m manifest) {
	t.Helper()
	text, err := os.ReadFile(manifests + file)
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &m))
	if m.Kind == "CronJob" {
		m.Spec.Template = m.Spec.JobTemplate.Spec.Template
	}
	require.Len(t, m.Spec.Template.Spec.Containers, 1)
	return m
}
