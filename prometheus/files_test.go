package prometheus_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/redlatch/redlatch/primitives"
	redlatchprom "github.com/redlatch/redlatch/prometheus"
)

// Tests of the files beside the code: the dashboard, the alert rules, and their page.

// metrics returns the labels of each metric, with their values.
func metrics(t *testing.T) map[string]map[string][]string {
	t.Helper()
	c := redlatchprom.NewCollector()
	c.Observe(primitives.Event{Kind: primitives.EventAcquired, Lock: "lock"})
	c.Observe(primitives.Event{Kind: primitives.EventAcquired, Lock: "fenced", Name: "leader", Election: true})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	require.NoError(t, err)
	all := map[string]map[string][]string{}
	for _, family := range families {
		labels := map[string][]string{}
		for _, m := range family.GetMetric() {
			for _, pair := range m.GetLabel() {
				labels[pair.GetName()] = append(labels[pair.GetName()], pair.GetValue())
			}
		}
		if family.GetMetric()[0].GetHistogram() == nil {
			all[family.GetName()] = labels
			continue
		}
		all[family.GetName()+"_sum"], all[family.GetName()+"_count"] = labels, labels
		all[family.GetName()+"_bucket"] = map[string][]string{"le": nil, "kind": labels["kind"]}
	}
	return all
}

var (
	selector = regexp.MustCompile(`(redlatch_\w+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	grouping = regexp.MustCompile(`\bby \(([^)]*)\)`)
	target   = []string{"job", "instance"} // labels that Prometheus adds
)

// checkQuery requires that a PromQL expression names only metrics, labels and values that exist.
func checkQuery(t *testing.T, known map[string]map[string][]string, expr string) {
	t.Helper()
	labels := slices.Clone(target)
	found := selector.FindAllStringSubmatch(expr, -1)
	require.NotEmpty(t, found, expr)
	for _, s := range found {
		require.Contains(t, known, s[1], expr)
		for label := range known[s[1]] {
			labels = append(labels, label)
		}
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			if slices.Contains(target, m[1]) {
				continue
			}
			values, ok := known[s[1]][m[1]]
			require.True(t, ok, "%s has no label %s", s[1], m[1])
			if m[1] == "outcome" || m[1] == "end" || m[1] == "reason" {
				assert.Subset(t, values, strings.Split(m[2], "|"), expr)
			}
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		assert.Subset(t, labels, strings.Split(g[1], ", "), expr)
	}
}

func TestTheDashboardNamesMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("grafana/dashboard.json")
	require.NoError(t, err)
	var dashboard struct {
		Panels []struct {
			Title, Description string
			Targets            []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Type, Definition string }
		}
	}
	require.NoError(t, json.Unmarshal(text, &dashboard))
	known := metrics(t)
	require.NotEmpty(t, dashboard.Panels)
	for _, panel := range dashboard.Panels {
		assert.NotEmpty(t, panel.Description, panel.Title)
		require.NotEmpty(t, panel.Targets, panel.Title)
		for _, target := range panel.Targets {
			checkQuery(t, known, target.Expr)
		}
	}
	for _, variable := range dashboard.Templating.List {
		if variable.Type == "query" {
			checkQuery(t, known, variable.Definition)
		}
	}
	for name := range known {
		if !strings.HasSuffix(name, "_sum") && !strings.HasSuffix(name, "_count") {
			assert.Contains(t, string(text), name, "the dashboard shows every metric")
		}
	}
}

func TestTheAlertRulesNameMetricsThatExist(t *testing.T) {
	text, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	page, err := os.ReadFile("../doc/observability.md")
	require.NoError(t, err)
	known := metrics(t)
	for _, rule := range file.Groups[0].Rules {
		checkQuery(t, known, rule.Expr)
		assert.NotEmpty(t, rule.Annotations["summary"], rule.Alert)
		assert.NotEmpty(t, rule.Labels["severity"], rule.Alert)
		assert.Contains(t, rule.Annotations["runbook_url"], "/doc/runbooks.md#", rule.Alert)
		assert.Contains(t, string(page), "`"+rule.Alert+"`", "the page explains every alert")
	}
}

// Promtool also evaluates the rules, on the series in alerts_test.yml.
func TestTheAlertRulesPassPromtool(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		t.Skip("promtool is not installed (Debian's package prometheus has it)")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		output, err := exec.CommandContext(t.Context(), promtool, args...).CombinedOutput()
		require.NoError(t, err, string(output))
	}
}

func TestThePagesListAllMetrics(t *testing.T) {
	listed := map[string]bool{}
	for _, path := range []string{"../doc/observability.md", "../doc/election.md"} {
		page, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, name := range regexp.MustCompile("`(redlatch_[a-z_]+)").FindAllStringSubmatch(string(page), -1) {
			listed[name[1]] = true
		}
	}
	want := map[string]bool{}
	for name := range metrics(t) {
		want[regexp.MustCompile(`_(sum|count|bucket)$`).ReplaceAllString(name, "")] = true
	}
	assert.Equal(t, want, listed)
}
