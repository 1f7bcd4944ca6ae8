package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// What the servers say about themselves.

// Limits.
const (
	pings        = 20
	slowPing     = 50 * time.Millisecond
	verySlowPing = 500 * time.Millisecond
	// longestPinging ends the measurement of a slow server.
	longestPinging = 5 * time.Second
	restartedUp    = 30 // seconds
	nearlyFull     = 0.9
	manyClients    = 0.8
	laggingBytes   = 10 << 20
	skewed         = time.Second
	clockSamples   = 5
	clusterSlots   = 16384
	oldestVersion  = "7.0"
)

// What to do, where several checks say the same.
const (
	useCluster = "use --cluster, and redis.NewClusterClient in Go"
	fullDisk   = "look at the server's log, such as for a full disk"
	tooMany    = "raise maxclients, or share one primitives.Client per process"
)

// latency measures round trips. Each acquisition and each release costs one.
func latency(ctx context.Context, e *exam) ([]Result, error) {
	var took []time.Duration
	for began := time.Now(); len(took) < pings && (len(took) == 0 || time.Since(began) < longestPinging); {
		bound, cancel := e.bounded(ctx)
		start := time.Now()
		err := e.Redis.Ping(bound).Err()
		cancel()
		if err != nil && answered(err) {
			return unchecked(err), nil
		}
		if err != nil {
			return nil, err
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	median, longest := took[len(took)/2], took[len(took)-1]
	e.latency = longest
	detail := fmt.Sprintf("a round trip takes %v (median of %d; the longest %v)",
		rounded(median), len(took), rounded(longest))
	switch {
	case median > verySlowPing:
		return warn("look for what slows the server or the way to it down (SLOWLOG GET, a saturated proxy); until then keep "+
			"WithCommandTimeout and the client's ReadTimeout several times as long", "%s: the server is slow", detail), nil
	case median > slowPing:
		return warn("move the server closer: each acquisition and each release takes a round trip", "%s", detail), nil
	}
	return ok("%s", detail), nil
}

// rounded keeps three digits or so.
func rounded(d time.Duration) time.Duration {
	for unit := time.Nanosecond; ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
}

func version(_ context.Context, n *node) ([]Result, error) {
	name, number := "Redis", n.info["redis_version"]
	if number == "" {
		number = n.hello["version"]
	}
	if valkey := n.info["valkey_version"]; valkey != "" {
		return ok("Valkey %s", valkey), nil
	}
	if strings.EqualFold(n.hello["server"], "valkey") || strings.EqualFold(n.info["server_name"], "valkey") {
		return ok("Valkey, compatible with Redis %s", number), nil
	}
	switch major, _, _ := strings.Cut(number, "."); {
	case number == "":
		return warn("use Redis "+oldestVersion+" or later, or Valkey", "the server does not report its version"), nil
	case len(major) == 1 && major < oldestVersion[:1]:
		return warn("update to Redis "+oldestVersion+" or later, or to Valkey",
			"%s %s is not supported: an acquisition cannot check whether its release may publish", name, number), nil
	}
	return ok("%s %s", name, number), nil
}

func uptime(_ context.Context, n *node) ([]Result, error) {
	if n.info == nil {
		return unchecked(n.denied), nil
	}
	up, err := strconv.Atoi(n.info["uptime_in_seconds"])
	switch {
	case err != nil:
		return warn("", "the server does not report its uptime"), nil
	case up < restartedUp:
		return warn("a member of a RedLock should stay away for the TTL of the locks after a restart, "+
			"unless it has kept its data", "the server started %d s ago", up), nil
	}
	return ok("up for %v", time.Duration(up)*time.Second), nil
}

func role(_ context.Context, n *node) ([]Result, error) {
	is := n.info["role"]
	if is == "" {
		is = n.hello["role"]
	}
	switch is {
	case "master":
		return ok("the server is a master"), nil
	case "slave", "replica":
		master := ""
		if host := n.info["master_host"]; host != "" {
			master = " (" + host + ":" + n.info["master_port"] + ")"
		}
		if n.info["master_link_status"] == "down" {
			return fail("if it was a primary before, a failover has demoted it: point the clients at the new primary, with "+
				"--sentinel-master if Sentinels watch it", "the server is a replica: it refuses to write. It has no link to "+
				"its master%s, so what it tells is old", master), nil
		}
		return fail("connect to the master"+master+", with --sentinel-master if Sentinels watch it",
			"the server is a replica: it refuses to write"), nil
	}
	return warn("", "the server does not report whether it is a master"), nil
}

// clusterState looks for a client that does not fit the server.
func clusterState(ctx context.Context, e *exam) ([]Result, error) {
	ctx, cancel := e.bounded(ctx)
	defer cancel()
	n := e.nodes[0]
	if role, _ := role(ctx, n); role[0].Status == Fail {
		e.unfit = true
	}
	enabled := n.info["cluster_enabled"] == "1" || n.info["redis_mode"] == "cluster" || n.hello["mode"] == "cluster"
	if !enabled && !e.cluster {
		return e.slots(ctx)
	}
	text, err := n.rdb.ClusterInfo(ctx).Result()
	if err != nil && !answered(err) {
		return nil, err
	}
	state := map[string]string{}
	for line := range strings.Lines(text) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), ":")
		state[k] = v
	}
	if !e.cluster {
		if state["cluster_size"] == "1" {
			return warn(useCluster,
				"a cluster of one master, but the client is for a single server: it fails when the cluster grows"), nil
		}
		e.unfit = true
		return fail(useCluster, "the server is part of a cluster, but the client is for a single server: "+
			"most names are on other masters"), nil
	}
	if err != nil {
		return unchecked(err), nil
	}
	if state["cluster_state"] != "ok" {
		e.unfit = true
		return fail("look at CLUSTER NODES: a master is down, or slots have no master",
			"the cluster is in state %q, with %s of %d slots assigned", state["cluster_state"],
			state["cluster_slots_assigned"], clusterSlots), nil
	}
	return ok("%d masters, all slots have one", len(e.nodes)), nil
}

// slots finds out whether a single server enforces slots, as some proxies and services do.
func (e *exam) slots(ctx context.Context) ([]Result, error) {
	err := e.Redis.Exists(ctx, e.name+"-1", e.name+"-2", e.name+"-3").Err()
	switch {
	case err == nil:
		return ok("one server, no cluster"), nil
	case !answered(err):
		return nil, err
	case redis.HasErrorPrefix(err, "CROSSSLOT"):
		return ok("it enforces slots: names whose keys fall into two slots are refused (doc/wire.md)"), nil
	case redis.HasErrorPrefix(err, "MOVED"):
		e.unfit = true
		return fail(useCluster, "the server redirects to other masters: %s", oneLine(err)), nil
	}
	return unchecked(err), nil
}

func policy(_ context.Context, n *node) ([]Result, error) {
	if n.info == nil {
		return unchecked(n.denied), nil
	}
	const fix = "CONFIG SET maxmemory-policy noeviction; if the server is also a cache, use another one for locks"
	switch is, limit := n.info["maxmemory_policy"], n.info["maxmemory"]; {
	case is == "":
		return warn("make sure that it is noeviction", "the server does not report its maxmemory-policy"), nil
	case is == "noeviction":
		return ok("noeviction"), nil
	case limit == "0":
		return warn(fix, "%s: keys of locks may be evicted as soon as maxmemory is set (now there is no limit)", is), nil
	default:
		return fail(fix, "%s: a full server evicts keys of locks while they are held", is), nil
	}
}

func memory(_ context.Context, n *node) ([]Result, error) {
	if n.info == nil {
		return unchecked(n.denied), nil
	}
	used, _ := strconv.ParseFloat(n.info["used_memory"], 64)
	limit, err := strconv.ParseFloat(n.info["maxmemory"], 64)
	switch {
	case err != nil:
		return warn("", "the server does not report its maxmemory"), nil
	case limit == 0:
		return ok("%s used, no limit", n.info["used_memory_human"]), nil
	case used >= limit:
		return fail("free memory, or raise maxmemory", "the memory is full (%s of %s): nothing can be acquired",
			n.info["used_memory_human"], n.info["maxmemory_human"]), nil
	case used >= nearlyFull*limit:
		return warn("free memory, or raise maxmemory: a full server refuses acquisitions", "%s of %s are used",
			n.info["used_memory_human"], n.info["maxmemory_human"]), nil
	}
	return ok("%s of %s used", n.info["used_memory_human"], n.info["maxmemory_human"]), nil
}

func evictions(_ context.Context, n *node) ([]Result, error) {
	if n.info == nil {
		return unchecked(n.denied), nil
	}
	switch evicted := n.info["evicted_keys"]; evicted {
	case "":
		return warn("", "the server does not count evictions"), nil
	case "0":
		return ok("no key was evicted"), nil
	default:
		return warn("see maxmemory-policy: evicted locks were free while they were held",
			"%s keys were evicted since the server started", evicted), nil
	}
}

func persistence(_ context.Context, n *node) ([]Result, error) {
	if n.info == nil {
		return unchecked(n.denied), nil
	}
	if n.info["loading"] == "" {
		return warn("", "the server does not report how it persists its data"), nil
	}
	if n.info["rdb_last_bgsave_status"] == "err" {
		return fail(fullDisk, "the last snapshot to disk failed: Redis refuses to write (MISCONF), unless "+
			"stop-writes-on-bgsave-error is off"), nil
	}
	if n.info["aof_enabled"] == "1" {
		if n.info["aof_last_write_status"] == "err" {
			return fail(fullDisk, "the last write to the append-only file failed"), nil
		}
		return ok("append-only file; with appendfsync everysec a crash forgets the last second"), nil
	}
	return warn("set appendonly yes if that matters, above all for fencing tokens",
		"no append-only file: a crash forgets locks, semaphores, latches and fencing tokens"), nil
}

func replicas(ctx context.Context, n *node) ([]Result, error) {
	if n.info == nil {
		return unchecked(n.denied), nil
	}
	if good := n.info["min_slaves_good_slaves"]; good != "" { // min-replicas-to-write is set
		least, err := n.rdb.ConfigGet(ctx, "min-replicas-to-write").Result()
		if err != nil && !answered(err) {
			return nil, err
		}
		has, _ := strconv.Atoi(good)
		wants, _ := strconv.Atoi(least["min-replicas-to-write"])
		if has < max(wants, 1) {
			return fail("start the replicas, and look at their logs; or lower min-replicas-to-write",
				"%d replicas are connected and in time, and min-replicas-to-write is %d: Redis refuses to write (NOREPLICAS)",
				has, max(wants, 1)), nil
		}
	}
	offset, _ := strconv.ParseInt(n.info["master_repl_offset"], 10, 64)
	count, lagging := 0, ""
	for i := 0; ; i++ {
		replica := n.info["slave"+strconv.Itoa(i)]
		if replica == "" {
			break
		}
		count++
		fields := map[string]string{}
		for field := range strings.SplitSeq(replica, ",") {
			k, v, _ := strings.Cut(field, "=")
			fields[k] = v
		}
		at, _ := strconv.ParseInt(fields["offset"], 10, 64)
		if fields["state"] != "online" || offset-at > laggingBytes {
			lagging = fmt.Sprintf("%s:%s is %s, %d bytes behind", fields["ip"], fields["port"], fields["state"],
				offset-at)
		}
	}
	switch {
	case lagging != "":
		return warn("a failover to it forgets locks: look at its log", "the replica %s", lagging), nil
	case count == 0:
		return ok("no replicas: locks are unavailable while the server is down"), nil
	}
	return ok("%d in sync; a failover may forget the latest acquisitions (WithReplicas, RedLock)", count), nil
}

func clients(_ context.Context, n *node) ([]Result, error) {
	if n.info == nil {
		return unchecked(n.denied), nil
	}
	connected, err := strconv.ParseFloat(n.info["connected_clients"], 64)
	limit, _ := strconv.ParseFloat(n.info["maxclients"], 64)
	switch {
	case err != nil:
		return warn("", "the server does not count its clients"), nil
	case n.info["rejected_connections"] != "0" && n.info["rejected_connections"] != "":
		return warn(tooMany, "%s connections were rejected since the server started", n.info["rejected_connections"]), nil
	case limit > 0 && connected >= manyClients*limit:
		return warn(tooMany, "%.0f of %.0f connections are used", connected, limit), nil
	case limit > 0:
		return ok("%.0f of %.0f connections used", connected, limit), nil
	}
	return ok("%.0f connections used", connected), nil
}

func timeouts(ctx context.Context, n *node) ([]Result, error) {
	values := map[string]string{}
	for _, name := range []string{"timeout", "tcp-keepalive"} {
		got, err := n.rdb.ConfigGet(ctx, name).Result()
		if err != nil && answered(err) {
			return unchecked(err), nil
		}
		if err != nil {
			return nil, err
		}
		values[name] = got[name]
	}
	idle, _ := strconv.Atoi(values["timeout"])
	switch {
	case values["tcp-keepalive"] == "0":
		return warn("CONFIG SET tcp-keepalive 300", "tcp-keepalive is 0: connections of machines that died stay open"), nil
	case idle > 0 && idle < 30:
		return warn("CONFIG SET timeout 0, or 300 and more",
			"timeout is %d s: idle connections are opened again and again", idle), nil
	}
	return ok("timeout %s s, tcp-keepalive %s s", values["timeout"], values["tcp-keepalive"]), nil
}

// clock compares the server's clock with that of this machine. The fastest of several answers tells
// most.
func clock(ctx context.Context, e *exam) ([]Result, error) {
	ctx, cancel := e.bounded(ctx)
	defer cancel()
	var results []Result
	for _, n := range e.nodes {
		best, skew := time.Hour, time.Duration(0)
		for range clockSamples {
			start := time.Now()
			server, err := n.rdb.Time(ctx).Result()
			took := time.Since(start)
			if err != nil && answered(err) {
				return unchecked(err), nil
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", n.addr, err)
			}
			if took < best {
				best, skew = took, server.Sub(start.Add(took/2))
			}
		}
		detail := fmt.Sprintf("%s: the server's clock agrees with this machine's, within %v", n.addr, rounded(best/2))
		if skew.Abs() > best/2 {
			way := "ahead of"
			if skew < 0 {
				way = "behind"
			}
			detail = fmt.Sprintf("%s: the server's clock is %v %s this machine's, give or take %v",
				n.addr, rounded(skew.Abs()), way, rounded(best/2))
		}
		if skew.Abs()-best/2 > skewed {
			results = append(results, warn("run NTP on both. Only processes with Redisson depend on it, "+
				"in fair queues and leases of permits", "%s", detail)...)
		} else if len(results) == 0 || results[0].Status == OK {
			results = ok("%s", detail)
		}
	}
	return results, nil
}
