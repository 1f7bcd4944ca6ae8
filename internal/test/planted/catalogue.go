package main

// Defect is a mistake in the library, as a few replacements in its files.
type Defect struct {
	Name    string
	Promise string // the section of doc/contract.md that it breaks
	Edits   []Edit
	// Find are further arguments of torture that find it sooner, such as --primitives lock. Without
	// --directed they are not used.
	Find []string
	// Suite is a test that finds it where torture does not look: its package and its name. The
	// simulation must find what neither does.
	Suite [2]string
	// Unsimulated says why the simulation cannot find it; "" if it must.
	Unsimulated string
}

// Edit replaces a text that occurs exactly once in a file. If the file does not have it, the text
// has moved, and must occur exactly once in the tree.
type Edit struct{ File, Old, New string }

// asksAgain is why the simulation does not find that an ask is lost.
const asksAgain = "the waiter asks again with its next poll, so that it only waits longer"

// lateReport is why the simulation does not find that a loss is reported too late.
const lateReport = "the report must come between two steps of other goroutines, which is rare"

// Catalogue are all defects. To add one, list it here: TestDefectsApply checks it.
var Catalogue = []Defect{
	// Mistakes in the engine and the watchdog.
	{
		Name: "validity 20 ms too long", Promise: "C10",
		Edits: []Edit{{
			"internal/engine/core.go",
			"return min(margin, ttl/2)",
			"return min(margin, ttl/2) - 20*time.Millisecond",
		}},
	},
	{
		Name: "validity counted from the reply", Promise: "C10",
		Edits: []Edit{{
			"scripts/attempt.go", "return Reply{Value: c.Val(), Sent: sent}, nil",
			"_ = sent\n\treturn Reply{Value: c.Val(), Sent: time.Now()}, nil",
		}},
		Find: []string{"--faults", "slow,late-replies"},
	},
	{
		Name: "a renewal counts from its reply", Promise: "C10",
		Edits: []Edit{{
			"watchdog/schedule.go", "d.confirm(l, c.start, c.start.add(a.TTL))", "d.confirm(l, now, now.add(a.TTL))",
		}},
		Find: []string{"--faults", "late-replies,black-hole", "--primitives", "lock,fenced"},
	},
	{
		Name: "a failed renewal counts as renewed", Promise: "C10",
		Edits: []Edit{{
			"watchdog/schedule.go",
			"		state := Unknown\n		if i < len(states) {",
			"		state := Renewed\n		if i < len(states) && err == nil {",
		}},
		Find: []string{"--faults", "black-hole,dials", "--primitives", "lock,fenced"},
	},
	{
		Name: "a loss that a renewal finds is not reported", Promise: "C10",
		Edits: []Edit{{
			"internal/engine/keeper.go",
			"	if refused {\n		o.loseInBackground(o.unknownLoss())\n",
			"	if refused {\n",
		}},
		Find: []string{"--faults", "delete", "--primitives", "lock,fenced"},
	},
	{
		Name: "granted before the release is executed", Promise: "C2",
		Edits: []Edit{
			{
				"internal/engine/handoff.go", "	sent := time.Now()\n	got, err := o.r.Holds.Release(ctx, o, 0, plan.next)",
				"	sent := time.Now()\n	isOffer := plan.offered.Kind == waitq.Offer\n	if isOffer {\n" +
					"		granted := Released{Successor: Result{Granted: true, Sent: sent}}\n" +
					"		plan.queue.released(plan.offered, o, sent, granted, nil)\n" +
					"	}\n	got, err := o.r.Holds.Release(ctx, o, 0, plan.next)",
			},
			{
				"internal/engine/handoff.go",
				"	if plan.queue != nil {\n		got.Successor.streak",
				"	if plan.queue != nil && !isOffer {\n		got.Successor.streak",
			},
		},
	},
	{
		Name: "Release returns nil for a lost hold", Promise: "C11",
		Edits: []Edit{{
			"internal/engine/ownership.go",
			"	case answer == wasNotOurs, isOverwritten:\n		err = o.lose(ctx, h)\n",
			"	case answer == wasNotOurs, isOverwritten:\n		_ = o.lose(ctx, h)\n",
		}},
		Find: []string{"--faults", "delete,force", "--primitives", "lock,fenced,fair"},
	},
	{
		Name: "Release returns nil once the loss was told", Promise: "C11",
		Edits: []Edit{{
			"internal/engine/hold.go", "			h.held.Abandon(ctx)\n		}\n		return err\n	}\n	if h.group != nil {",
			"			h.held.Abandon(ctx)\n			return nil\n		}\n		return err\n	}\n	if h.group != nil {",
		}},
	},
	{
		Name: "a release without an answer is not repeated", Promise: "C11",
		Edits: []Edit{{
			"internal/engine/ownership.go",
			"	case err != nil:\n		o.writeCountLater(ctx, 0)\n		timedOut :=",
			"	case err != nil:\n		timedOut :=",
		}},
		Suite: [2]string{"./internal/engine", "Release"},
	},
	{
		Name: "a release after an Extend is repeated only to the end of the first lease", Promise: "C11",
		Edits: []Edit{{
			"internal/engine/ownership.go",
			"	o.lastsUntil(sent.Add(d))\n	until := o.r.Core.trustedUntil(sent, d)\n",
			"	until := o.r.Core.trustedUntil(sent, d)\n",
		}},
		Suite: [2]string{"./internal/engine", "TestReleaseAfterExtendIsRepeatedForTheNewLease"},
	},
	{
		Name: "nesting and release race unguarded", Promise: "C3",
		Edits: []Edit{
			{
				"internal/engine/ownership.go",
				"	if outer.state().taken {\n		o.wire.Unlock()\n		return time.Time{}, errOuterEnded\n" +
					"	}\n",
				"	o.wire.Unlock()\n	time.Sleep(time.Millisecond)\n",
			},
			{
				"internal/engine/ownership.go",
				"		o.shortLease = 0\n		o.mu.Unlock()\n		o.wire.Unlock()\n		return sent, nil",
				"		o.shortLease = 0\n		o.mu.Unlock()\n		return sent, nil",
			},
			{"internal/engine/ownership.go", "	left := o.addCount(-1)\n	o.wire.Unlock()\n", "	left := o.addCount(-1)\n"},
		},
		Find: []string{"--primitives", "nested"},
	},
	{
		Name: "siblings under one hold do not take turns", Promise: "C3",
		Edits: []Edit{{
			"internal/engine/nest.go",
			"	if r.Traits.ManyHolders {\n		hold", "	if true || r.Traits.ManyHolders {\n		hold",
		}},
		Find: []string{"--primitives", "nested"},
	},
	{
		Name: "the inner release frees the lock", Promise: "C3",
		Edits: []Edit{{"internal/engine/ownership.go", "	case remaining > 0:\n", "	case remaining > 1:\n"}},
	},
	{
		Name: "a streak of hand-offs without limit", Promise: "C21",
		Edits: []Edit{{
			"internal/engine/handoff.go",
			"	return o.streak.count >= waitq.MaxStreakCount || age >= Instant(waitq.MaxStreak)",
			"	return false && age > Instant(waitq.MaxStreak)",
		}},
		Find: []string{"--faults", "none", "--primitives", "lock,fenced"},
	},
	{
		Name: "a cohort without an end", Promise: "C24",
		Edits: []Edit{
			{"internal/turns/tenure.go", "		limit = tn.entry.terms.Cohort\n", "		return true\n"},
			{
				"internal/engine/handoff.go",
				"		return age >= Instant(o.turnTerms.Cohort)",
				"		return false && age > 0",
			},
		},
		Find:  []string{"--faults", "none", "--primitives", "cohort"},
		Suite: [2]string{"./internal/turns", "TestOtherClientsGoFirstWhenACohortIsOver"},
	},
	{
		Name: "a member of a cohort gets the token of the one before", Promise: "C14",
		Edits: []Edit{{
			"internal/turns/turn.go",
			"	return w.tenure.token + int64(w.number)",
			"	return w.tenure.token + int64(w.number)/2",
		}},
	},
	{
		Name: "a loss makes a waiter wait again that has left with its turn", Promise: "C24",
		Edits: []Edit{{
			"internal/turns/turn.go",
			"		w.waiter = nil // a loss that is reported later does not make it wait again\n", "",
		}},
		Suite:       [2]string{"./internal/turns", "TestLossIsReportedAfterAWaiterHasLeftWithItsTurn"},
		Unsimulated: lateReport,
	},
	{
		Name: "a lingering lock is not given up when its time is over", Promise: "C24",
		Edits: []Edit{{
			"internal/turns/tenure.go",
			"time.AfterFunc(limit, tn.onTimer)",
			"time.AfterFunc(time.Hour, tn.onTimer)",
		}},
	},
	{
		Name: "a lock lingers although others have asked for it", Promise: "C24",
		Edits: []Edit{
			{"internal/turns/tenure.go", "	if lingers && h.WasWanted() {\n", "	if lingers && false {\n"},
			{
				"internal/turns/tenure.go",
				"tn.lingersUntil = now.Add(limit)", "tn.lingersUntil = now.Add(20*limit)",
			},
		},
	},
	{
		Name: "an ask that comes before the grant is known is lost", Promise: "C24",
		Edits:       []Edit{{"internal/engine/linger.go", "	qs.pending[id] = q\n", ""}},
		Suite:       [2]string{"./internal/turns", "TestAskThatOvertakesTheGrantIsHeard"},
		Unsimulated: asksAgain,
	},
	{
		Name: "a lock that another client has asked for is taken again at once", Promise: "C24",
		Edits: []Edit{{
			"internal/engine/handoff.go",
			"			qs.leaveToOthers(key, now.Add(waitq.MaxTurn))\n", "",
		}},
		Suite:       [2]string{"./internal/turns", "TestLockThatWasAskedForIsLeftToOthers"},
		Unsimulated: asksAgain,
	},
	{
		Name: "Close abandons a lock that lingers", Promise: "C24",
		Edits: []Edit{{
			"internal/engine/tenure.go",
			"	taken := h.take()\n	c.Spawn(func() {\n",
			"	c.Spawn(func() {\n		taken := h.take()\n",
		}},
		Suite:       [2]string{"./internal/turns", "TestCloseFreesWhatLingers"},
		Unsimulated: "only a Close whose context has ended does that",
	},
	{
		Name: "a waiter asks for a lock that changes hands", Promise: "C30",
		Edits:       []Edit{{"internal/engine/contact.go", "	k.outdated = true\n", ""}},
		Suite:       [2]string{"./internal/presence", "TestShortHoldsAreNotAskedFor"},
		Unsimulated: "it costs a command, and breaks nothing",
	},
	{
		Name: "a hold does not hear of waiters of its own client", Promise: "C30",
		Edits: []Edit{{
			"internal/engine/wanted.go",
			"		c.notifyWanted(r.Name, func(h *Hold) bool { return h.ID() == a.Holder })\n", "",
		}},
		Suite: [2]string{"./internal/presence", "TestHoldHearsThatItIsWanted"},
	},
	{
		Name: "the minimum hold is over at once", Promise: "C28",
		Edits: []Edit{{
			"internal/engine/minhold.go",
			"	return max(m.d-time.Duration(now)+time.Duration(m.since.Load()), 0)",
			"	return 0",
		}},
	},
	{
		Name: "a release in the last millisecond leaves a lock without a TTL", Promise: "C28",
		Edits: []Edit{{
			"scripts/lib/set_count.lua",
			"  redis.call('persist', lock_hash)\n  redis.call('hset', lock_hash, field, count)\n" +
				"  redis.call('pexpire', lock_hash, math.max(ttl_ms, 1))\n",
			"  redis.call('pexpire', lock_hash, ttl_ms)\n  redis.call('hset', lock_hash, field, count)\n",
		}},
		Suite: [2]string{"./tests/contract", "TestC28ReleaseInTheLastMillisecondLeavesNothing"},
	},
	{
		Name: "WithMaxHold does not end a hold", Promise: "C13",
		Edits: []Edit{{"internal/engine/driver.go", "	return t.MaxHold\n", "	return 0\n"}},
	},
	{
		Name: "a fixed lease is renewed", Promise: "C13",
		Edits: []Edit{{
			"internal/engine/driver.go",
			"	if !t.Renew {\n		return t.TTL\n	}\n	return t.MaxHold",
			"	if !t.Renew {\n		return 3 * t.TTL\n	}\n	return t.MaxHold",
		}},
	},
	{
		Name: "a canceled acquisition leaves the lock behind", Promise: "C5",
		Edits: []Edit{{
			"internal/engine/rollback.go",
			"	if !q.MustRollback && !q.WaitRecorded {\n		return\n	}",
			"	if !q.MustRollback && !q.WaitRecorded || ctx.Err() != nil {\n		return\n	}",
		}},
	},
	{
		Name: "silence is reported as a refusal", Promise: "C7",
		Edits: []Edit{{
			"internal/engine/gaveup.go",
			"		facts = append(facts, ErrUnavailable)",
			"		facts = append(facts, ErrNotAcquired)",
		}},
		Find: []string{"--faults", "black-hole"},
	},
	{
		Name: "a refusal is reported as silence, too", Promise: "C7",
		Edits: []Edit{{
			"internal/engine/gaveup.go",
			"		facts = append(facts, ErrNotAcquired)",
			"		facts = append(facts, ErrNotAcquired, ErrUnavailable)",
		}},
	},
	{
		Name: "an acquisition emits two events", Promise: "C23",
		Edits: []Edit{{
			"internal/engine/acquire.go",
			"	Guarded(nobodyGetsIt, func() { r.Core.emit(e) })\n",
			"	r.Core.emit(e)\n	Guarded(nobodyGetsIt, func() { r.Core.emit(e) })\n",
		}},
	},
	{
		Name: "a redlock without a majority", Promise: "RedLock",
		Edits: []Edit{{
			"internal/joint/red.go",
			"l.Need = len(l.Members)/2 + 1\n",
			"l.Need = len(l.Members) / 2\n",
		}},
	},
	{
		Name: "a member that is acquired again begins its minimum hold anew", Promise: "C28",
		Edits: []Edit{{
			"internal/joint/retake.go", "	fresh.JoinAs(o.h, o.since)\n", "	fresh.JoinAs(o.h, time.Now())\n",
		}},
		Suite: [2]string{"./internal/joint", "TestMinimumHoldOfALateMemberBeganWithTheJointHold"},
	},
	{
		Name: "a takeover sends no notice", Promise: "C15",
		Edits: []Edit{{
			"internal/presence/notices.go",
			"	notices := p.notices(kind, name, ids)\n",
			"	notices := p.notices(kind, name, nil)\n",
		}},
		Find:  []string{"--faults", "force", "--primitives", "lock,fenced"},
		Suite: [2]string{"./tests/contract", "TestC15FormerHolderLearnsOfATakeoverAtOnce$/^lock$"},
	},
	{
		Name: "every loss is a limit", Promise: "C27",
		Edits: []Edit{{
			"internal/engine/loss.go",
			"var goneLoss = Loss{Reason: LossGone}",
			"var goneLoss = Loss{Reason: LossLimit}",
		}},
	},

	// Mistakes in the scripts.
	{
		Name: "a renewal ignores the owner", Promise: "C10",
		Edits: []Edit{{
			"scripts/lock/renew.lua", "kept[i] = read_count(call_typed('hash', 'hget', lock_hash, owner)) and 1 or 0",
			"kept[i] = redis.call('exists', lock_hash)",
		}},
		Find: []string{"--faults", "delete", "--primitives", "lock,fenced"},
	},
	{
		Name: "a release publishes nothing", Promise: "C21",
		Edits: []Edit{
			{"scripts/lib/notify_free.lua", "  return redis.call(publish, channel, '0') + told", "  return told"},
			{"scripts/lock/release.lua", "  return 1 + redis.call(publish, channel, '0')", "  return 1"},
		},
	},
	{
		Name: "a release publishes nothing, not even in line", Promise: "C21",
		Edits: []Edit{
			{
				"scripts/lib/notify_free.lua", "local function notify_free(keys, publish, own_place, is_line_empty)\n",
				"local function notify_free(keys, publish, own_place, is_line_empty)\n  if true then return 0 end\n",
			},
			{"scripts/lock/release.lua", "  return 1 + redis.call(publish, channel, '0')", "  return 1"},
		},
	},
	{
		Name: "a semaphore's release publishes nothing", Promise: "C21",
		Edits: []Edit{{"scripts/lib/publish_permits.lua", "  if permits >= 0 then", "  if permits >= 1000 then"}},
	},
	{
		Name: "a hand-off gives the token of the holder before", Promise: "C14",
		Edits: []Edit{{
			"scripts/lock/release.lua",
			"    last = reserve_tokens(successor_token, tokens)",
			"    last = last_token(successor_token, tokens)",
		}},
	},
	{
		Name: "a late copy of an acquisition acquires after the release", Promise: "C16",
		Edits: []Edit{
			{
				"scripts/lock/acquire.lua",
				"if redis.call('exists', lock_hash, memory_key) == 0 then",
				"if redis.call('exists', lock_hash) == 0 then",
			},
		},
		Find: []string{"--faults", "copies", "--primitives", "lock,fenced"},
	},
	{
		Name: "a repeated release of permits counts twice", Promise: "C16",
		Edits: []Edit{
			{"scripts/semaphore/release.lua", "elseif memory == '2' then\n", "elseif memory == '4' then\n"},
			{
				"scripts/semaphore/release.lua",
				"local acquired_in = memory and string.match(memory, '^1 (%d+)$')",
				"local acquired_in = memory and (memory == '2' and epoch or string.match(memory, '^1 (%d+)$'))",
			},
		},
		Find: []string{"--faults", "replies,copies", "--primitives", "semaphore"},
	},
	{
		Name: "a repeated count-down counts twice", Promise: "C16",
		Edits: []Edit{{"scripts/latch/count_down.lua", "if redis.call('exists', memory_key) == 1 then", "if false then"}},
		Find:  []string{"--faults", "replies,copies", "--primitives", "latch"},
	},
	{
		Name: "a latch that opens publishes nothing", Promise: "C21",
		Edits: []Edit{{"scripts/latch/count_down.lua", "  redis.call(publish, channel, '0')\n", ""}},
		Suite: [2]string{"./primitives", "Latch"},
	},
	{
		Name: "one release of WithOwner frees the lock of all", Promise: "C4",
		Edits: []Edit{{"scripts/lock/release_shared.lua", "if count > 1 then", "if count > 1000 then"}},
		Find:  []string{"--primitives", "owner"},
	},
	{
		Name: "Adopt leaves the former holder's count", Promise: "C15",
		Edits: []Edit{{"scripts/lock/adopt.lua", "redis.call('hdel', lock_hash, old_owner)\n", ""}},
	},
	{
		Name: "a late waiter goes first in a fair lock", Promise: "FairLock",
		Edits: []Edit{{
			"scripts/fairlock/acquire.lua",
			"redis.pcall('rpush', lock.queue, owner)",
			"redis.pcall('lpush', lock.queue, owner)",
		}},
		Find: []string{"--primitives", "fair"},
	},
	{
		Name: "readers enter beside a writer", Promise: "RWLock",
		Edits: []Edit{{
			"scripts/rwlock/read_acquire.lua",
			"  local is_written = mode ~= 'read' and is_taken",
			"  local is_written = mode ~= 'read' and mode ~= 'write' and is_taken",
		}},
		Find: []string{"--primitives", "rwlock"},
	},
	{
		Name: "a reader's release ends the leases of the others", Promise: "RWLock",
		Edits: []Edit{{
			"scripts/rwlock/read_release.lua",
			"  local is_free = not fit_ttl(lock_hash, prefix, left)",
			"  local is_free = redis.call('del', lock_hash) == 1",
		}},
		Find: []string{"--primitives", "rwlock"},
	},
	{
		Name: "a permit is not renewed", Promise: "C10",
		Edits: []Edit{{"scripts/permitsemaphore/renew.lua", "      redis.call('zadd', leases, 'xx', ends_at, id)\n", ""}},
		Find:  []string{"--primitives", "permits"},
	},
	{
		Name: "Resize counts free permits only", Promise: "PermitExpirableSemaphore",
		Edits: []Edit{{
			"scripts/permitsemaphore/resize.lua",
			"local more = free and wanted - (free + acquired)",
			"local more = free and wanted - free",
		}},
		Find: []string{"--primitives", "permits"},
	},
	{
		Name: "Drain leaves the permits", Promise: "Semaphore",
		Edits: []Edit{{"scripts/semaphore/drain.lua", "  redis.call('decrby', permits_key, left)\n", ""}},
		Find:  []string{"--primitives", "semaphore"},
	},

	// Mistakes where two features meet.
	{
		Name: "a hand-off ignores the minimum hold", Promise: "C28",
		Edits: []Edit{{
			"internal/engine/handoff.go",
			"	if o.minHoldLeft() > 0 {",
			"	if o.minHoldLeft() > 0 && !o.r.Traits.HandsOff {",
		}},
	},
	{
		Name: "a writer under which somebody reads lingers", Promise: "C24",
		Edits: []Edit{{
			"internal/engine/nest.go",
			"	if o.r.Kind != r.Kind && !o.addOtherKind(outer) {",
			"	if o.r.Kind != r.Kind && outer.state().taken {",
		}},
		Suite: [2]string{"./tests/contract", "TestC24WriterThatStillReadsIsNotPassedOn"},
	},
	{
		Name: "passing a lock on counts as a renewal", Promise: "C24",
		Edits: []Edit{{
			"internal/engine/tenure.go",
			"	isConfirmed := o.lease.ValidUntil().Sub(now) >= h.ttl/2\n",
			"	isConfirmed := true\n	o.setSchedule(&Hold{r: h.r, since: o.r.Core.Instant(now), ttl: h.ttl, renew: true})\n",
		}},
	},
	{
		Name: "a hand-off to a cohort reserves one token", Promise: "C14",
		Edits: []Edit{{
			"primitives/mutex.go",
			"call.Tokens = int64(max(successor.Tokens, 1))",
			"call.Tokens = 1",
		}},
	},
	{
		Name: "the rollback of an owner gives back a count of somebody else", Promise: "C4",
		Edits: []Edit{{
			"primitives/mutex.go",
			"MemoryTTL: d.h.c.rememberFor(o), OnlyOwn: true,",
			"MemoryTTL: d.h.c.rememberFor(o),",
		}},
	},
	{
		Name: "Unlock by name does nothing once its context has ended", Promise: "C11",
		Edits: []Edit{{
			"primitives/keyed.go",
			"	defer close(unlocked) // even if an observer panics\n",
			"	defer close(unlocked) // even if an observer panics\n" +
				"	if err := context.Cause(ctx); err != nil {\n		return err\n	}\n",
		}},
	},
	{
		Name: "a member of a redlock that answers after the release stays", Promise: "RedLock",
		Edits: []Edit{{
			"internal/joint/holding.go",
			"	if o.closed {\n		o.mu.Unlock()\n		return false\n	}\n	o.holds = append(o.holds, hold)\n",
			"	if o.closed {\n		o.mu.Unlock()\n		return true\n	}\n	o.holds = append(o.holds, hold)\n",
		}},
	},
	{
		Name: "a hold that was extended beyond its maximum does not end", Promise: "C13",
		Edits: []Edit{{
			"internal/engine/ownership.go",
			"		o.mu.Unlock()\n		h.watchLimit()\n	}\n	o.r.Core.dog.Confirm(&o.lease, until)\n",
			"		o.mu.Unlock()\n	}\n	o.r.Core.dog.Confirm(&o.lease, until)\n",
		}},
	},
	{
		Name: "Extend does not move the limit of a hold", Promise: "C13",
		Edits: []Edit{{
			"internal/engine/ownership.go",
			"	raised := h.cause == nil && h.limit != 0",
			"	raised := h.renew && h.cause == nil && h.limit != 0",
		}},
	},
	{
		Name: "an adoption counts from its reply", Promise: "C10",
		Edits: []Edit{{
			"internal/engine/hold.go",
			"	return r.NewHold(ctx, q, Result{Granted: true, Sent: sent})\n",
			"	return r.NewHold(ctx, q, Result{Granted: true, Sent: time.Now()})\n",
		}},
	},
	{
		Name: "a waiter that gives up keeps its place in line", Promise: "C5",
		Edits: []Edit{{
			"internal/engine/rollback.go",
			"	if !q.MustRollback && !q.WaitRecorded {\n		return\n	}",
			"	if !q.MustRollback {\n		return\n	}",
		}},
	},
	{
		Name: "a renewal brings back a permit that was released", Promise: "C16",
		Edits: []Edit{
			{
				"scripts/permitsemaphore/renew.lua",
				"    if not score then\n      kept[i] = 0\n    elseif tonumber(score) < ends_at then\n",
				"    if not score or tonumber(score) < ends_at then\n",
			},
			{
				"scripts/permitsemaphore/renew.lua",
				"redis.call('zadd', leases, 'xx', ends_at, id)",
				"redis.call('zadd', leases, ends_at, id)",
			},
		},
	},
	{
		Name: "nobody looks after a reconnection", Promise: "C21",
		Edits: []Edit{{
			"primitives/driver.go", "		case s.Resubscribed:", "		case s.Resubscribed && s.Payload != \"\":",
		}},
	},
	{
		Name: "the release of a multilock says nothing of a member's loss", Promise: "C11",
		Edits: []Edit{{
			"internal/engine/member.go",
			"		case gone[i]:\n			_ = h.Ownership().lose(ctx, h)\n",
			"		case gone[i] && len(holds) == 1:\n			_ = h.Ownership().lose(ctx, h)\n",
		}},
	},

	// Mistakes of elections, of TryDo, and of what a hold is told.
	{
		Name: "a candidate that has resigned stands again at once", Promise: "C29",
		Edits: []Edit{{
			"primitives/election.go",
			"			if !errors.Is(context.Cause(hold.Context()), ErrLost) { // lead has resigned\n",
			"			if false {\n",
		}},
		Suite: [2]string{"./tests/contract", "TestC29HandOver"},
	},
	{
		Name: "an election hands the leadership to its own client", Promise: "C29",
		Edits: []Edit{{"primitives/election.go", "t.HandsOff = false", "t.HandsOff = true"}},
		Suite: [2]string{"./tests/contract", "TestC29EachEndIsPublished"},
	},
	{
		Name: "the context of lead outlives the leadership", Promise: "C29",
		Edits: []Edit{{
			"primitives/election.go",
			"	err := lead(term, Term{Token: hold.Token(), Hold: hold})\n",
			"	err := lead(context.WithoutCancel(term), Term{Token: hold.Token(), Hold: hold})\n",
		}},
	},
	{
		Name: "a watcher looks for a new leader once a second only", Promise: "C29",
		Edits: []Edit{{
			"primitives/election_watch.go", "lookForLeader = 75 * time.Millisecond", "lookForLeader = time.Second",
		}},
	},
	{
		Name: "Leader says that nobody leads while the leader's name is unknown", Promise: "C29",
		Edits: []Edit{{
			"primitives/election_watch.go",
			"	if err != nil || len(info.Holders) == 0 {\n		return Leader{}, err\n",
			"	if err != nil || len(info.Holders) == 0 || info.Holders[0].Client == \"\" {\n		return Leader{}, err\n",
		}},
	},
	{
		Name: "Leader answers what Redis said up to 100 ms ago", Promise: "C29",
		Edits: []Edit{
			{
				"primitives/election.go",
				"	_ noCopy\n\n	lock *Lock\n}\n\n// Term is",
				"	_ noCopy\n\n	lock *Lock\n	mu sync.Mutex\n	last Info\n	heard time.Time\n}\n\n// Term is",
			},
			{"primitives/election.go", "	\"slices\"\n", "	\"slices\"\n	\"sync\"\n"},
			{
				"primitives/election_watch.go",
				"	info, err := e.lock.Info(ctx)\n	if err != nil ||",
				"	e.mu.Lock()\n	defer e.mu.Unlock()\n	info, err := e.last, error(nil)\n" +
					"	if time.Since(e.heard) > 100*time.Millisecond {\n		info, err = e.lock.Info(ctx)\n" +
					"		e.last, e.heard = info, time.Now()\n	}\n	if err != nil ||",
			},
		},
	},
	{
		Name: "holders of permits on other clients are not asked", Promise: "C30",
		Edits: []Edit{{
			"internal/presence/wanted.go", "			_, _, _ = p.AskAllHolders(ctx, ask.Resource)\n", "			_ = ctx\n",
		}},
		Suite: [2]string{"./internal/presence", "TestWaiterAsksAllHoldersWhereTheyAreNotNamed"},
	},
	{
		Name: "a joint hold does not hear of the next in line", Promise: "C30",
		Edits: []Edit{{
			"internal/engine/wanted.go", "of.Identity != nil && holder == \"\" // a joint", "of.Identity != nil // a joint",
		}},
		Suite: [2]string{"./primitives", "TestClockJointHoldHearsOfTheNextInLine"},
	},
	{
		Name: "a joint hold does not hear of waiters for its members", Promise: "C30",
		Edits: []Edit{{
			"internal/joint/holding.go",
			"func (o *Holding) MemberWanted(*engine.Hold) {\n",
			"func (o *Holding) MemberWanted(*engine.Hold) {\n	if o != nil {\n		return\n	}\n",
		}},
		Suite: [2]string{"./tests/contract", "TestC30WantedIsClosedWhenSomebodyWaits"},
	},
	{
		Name: "the user of a lock that may be passed on does not hear that another client asks", Promise: "C30",
		Edits: []Edit{{
			"internal/engine/linger.go",
			"		qs.mu.Unlock()\n		h.NotifyWanted()\n",
			"		qs.mu.Unlock()\n		o := h.Ownership()\n" +
				"		if h.group == nil && o != nil && o.turnTerms.Cohort+o.turnTerms.Linger > 0 {\n" +
				"			continue\n		}\n		h.NotifyWanted()\n",
		}},
		Suite: [2]string{"./internal/turns", "TestUserHearsThatAnotherClientAsks"},
	},
	{
		Name: "a waiter asks for a lock after a second only", Promise: "C30",
		Edits: []Edit{{
			"internal/engine/wanted.go", "	askAfter = 100 * time.Millisecond\n", "	askAfter = time.Second\n",
		}},
	},
	{
		Name: "TryDo skips although Redis has not answered", Promise: "C12",
		Edits: []Edit{{
			"internal/engine/gaveup.go",
			"	return g.confirmed && g.cause == nil && !isUnanswered\n",
			"	_ = isUnanswered\n	return g.refused\n",
		}},
		Suite: [2]string{"./tests/contract", "TestC12TryDo$"},
	},
	{
		Name: "the fence in Redis compares tokens of different lengths as text", Promise: "C14",
		Edits: []Edit{{
			"fence/set.lua",
			"#token < #latest or (#token == #latest and token < latest)",
			"token < latest",
		}},
		Suite:       [2]string{"./fence", "TestRedisRefusesStaleTokens"},
		Unsimulated: "its clients write to no store with a fence",
	},
	{
		Name: "a client that waits no longer says that it waits", Promise: "C25",
		Edits: []Edit{{
			"internal/presence/state.go",
			"	if w.n == 0 {\n",
			"	if w.n < 0 {\n",
		}},
		Suite:       [2]string{"./internal/presence", "TestStateFollowsTheClient"},
		Unsimulated: "nobody there reads what clients say",
	},
	{
		Name: "a forgotten hold is renewed for ever", Promise: "C17",
		Edits: []Edit{{
			"internal/engine/leak.go",
			"	if h.takeAndForget() == nil && h.end(ErrReleased) {",
			"	if h.take() == nil && h.end(ErrReleased) {",
		}},
		Suite: [2]string{"./primitives", "TestC17"},
	},
	{
		Name: "WithWait bounds the hold", Promise: "C6",
		Edits: []Edit{{
			"internal/engine/acquire.go",
			"	hold, err = r.NewHold(ctx, q, res) // with",
			"	hold, err = r.NewHold(attemptCtx, q, res) // with",
		}},
	},
}
