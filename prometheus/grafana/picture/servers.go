package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// rateInterval replaces Grafana's variable of that name. It has ten scrapes.
const rateInterval = 10 * time.Second

// process is a server that this program has started.
type process struct{ cmd *exec.Cmd }

func start(ctx context.Context, name string, args ...string) (*process, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &process{cmd}, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// await calls ready until it succeeds, for 20 s.
func await(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func startRedis(ctx context.Context, socket string) (*process, error) {
	p, err := start(ctx, "redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--loglevel", "warning")
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	err = await(ctx, func(ctx context.Context) error {
		conn, err := d.DialContext(ctx, "unix", socket)
		if err == nil {
			conn.Close()
		}
		return err
	})
	if err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// scrapeTarget is an instance, and where its metrics are.
type scrapeTarget struct{ instance, address, path string }

type prometheusServer struct {
	*process
	url string
}

func startPrometheus(ctx context.Context, dir string, targets []scrapeTarget) (*prometheusServer, error) {
	var config strings.Builder
	config.WriteString("global: {scrape_interval: 1s}\nscrape_configs:\n- job_name: shop\n  static_configs:\n")
	for _, t := range targets {
		fmt.Fprintf(&config, "  - {targets: [%q], labels: {instance: %q, __metrics_path__: %q}}\n",
			t.address, t.instance, t.path)
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
		return nil, err
	}
	var listen net.ListenConfig
	free, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := free.Addr().String()
	_ = free.Close()
	p, err := start(ctx, "prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=error")
	if err != nil {
		return nil, err
	}
	prom := &prometheusServer{p, "http://" + address}
	if err := await(ctx, func(ctx context.Context) error { return prom.get(ctx, "/-/ready", nil) }); err != nil {
		p.stop()
		return nil, err
	}
	return prom, nil
}

// get reads an answer into result, if that is not nil.
func (p *prometheusServer) get(ctx context.Context, path string, result any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", path, response.Status)
	}
	if result == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(result)
}

// series is a line of a panel.
type series struct {
	name   string
	labels map[string]string
	points []point
}

type point struct {
	at    time.Time
	value float64 // may be NaN
}

// query evaluates a query of the dashboard once a second.
func (p *prometheusServer) query(ctx context.Context, expr string, from, to time.Time) ([]series, error) {
	expr = strings.NewReplacer("$job", ".*", "$kind", ".*", "$__rate_interval", "10s").Replace(expr)
	values := url.Values{
		"query": {expr}, "step": {"1"}, "start": {seconds(from)}, "end": {seconds(to)},
	}
	var answer struct {
		Data struct {
			Result []struct {
				Metric map[string]string
				Values [][2]any
			}
		}
	}
	if err := p.get(ctx, "/api/v1/query_range?"+values.Encode(), &answer); err != nil {
		return nil, err
	}
	var all []series
	for _, result := range answer.Data.Result {
		s := series{labels: result.Metric}
		for _, v := range result.Values {
			at, text := v[0].(float64), v[1].(string)
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return nil, err
			}
			s.points = append(s.points, point{time.UnixMilli(int64(at * 1000)), value})
		}
		all = append(all, s)
	}
	return all, nil
}

func seconds(t time.Time) string { return strconv.FormatFloat(float64(t.UnixMilli())/1000, 'f', 3, 64) }
