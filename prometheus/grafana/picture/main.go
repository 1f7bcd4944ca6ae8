// Command picture draws doc/dashboard.svg: the panels of the dashboard, fed by a real run.
//
//	go run ./grafana/picture -out ../doc/dashboard.svg
//
// It starts a redis-server and a prometheus, which must be on the PATH, and runs a workload with faults in
// two clients. Prometheus scrapes them, and evaluates the queries of the dashboard. Only the drawing is not
// Grafana's.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"time"
)

// dashboard is the part of a dashboard that a picture needs.
type dashboard struct {
	Panels []panel
}

type panel struct {
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct {
		Defaults struct {
			Unit   string
			Custom struct {
				DrawStyle         string
				ScaleDistribution struct{ Type string }
			}
		}
	}
	Targets []struct{ Expr, LegendFormat string }

	series []series
}

func main() {
	out := flag.String("out", "dashboard.svg", "the picture")
	file := flag.String("dashboard", "grafana/dashboard.json", "the dashboard")
	length := flag.Duration("for", 4*time.Minute, "how long the workload runs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := draw(ctx, *file, *out, *length); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func draw(ctx context.Context, file, out string, length time.Duration) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var d dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "picture")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	redisServer, err := startRedis(ctx, filepath.Join(dir, "redis.sock"))
	if err != nil {
		return err
	}
	defer redisServer.stop()
	shop, err := openShop(ctx, filepath.Join(dir, "redis.sock"))
	if err != nil {
		return err
	}
	defer shop.close()
	prom, err := startPrometheus(ctx, dir, shop.targets())
	if err != nil {
		return err
	}
	defer prom.stop()

	began := time.Now()
	faults := shop.run(ctx, length)
	ended := time.Now()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// The rates of the first seconds have too few samples.
	began = began.Add(rateInterval)
	for i := range d.Panels {
		p := &d.Panels[i]
		for _, target := range p.Targets {
			found, err := prom.query(ctx, target.Expr, began, ended)
			if err != nil {
				return fmt.Errorf("%s: %w", p.Title, err)
			}
			for j := range found {
				found[j].name = legend(target.LegendFormat, found[j].labels)
			}
			p.series = append(p.series, found...)
		}
	}
	return os.WriteFile(out, []byte(picture(d.Panels, began, ended, faults)), 0o644) //nolint:gosec // for everybody
}

// legend fills in a legend's format, such as "{{kind}}".
func legend(format string, labels map[string]string) string {
	for label, value := range labels {
		format = strings.ReplaceAll(format, "{{"+label+"}}", value)
	}
	return format
}
