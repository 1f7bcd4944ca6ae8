package joint_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/redlatch/redlatch/internal/engine"
	. "github.com/redlatch/redlatch/internal/test/enginetest"
)

// found is when the first renewal after an acquisition has found that a member has forgotten the
// lock.
const found = DefaultTTL/3 + ms

// A retaken member counts as the lost one did: when it is lost, too, it is retaken at once, and it
// can end the hold.
func TestRetakenMemberIsWatched(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		hold := Acquire(t, t.Context(), redOf(k.clients))
		k.servers[0].Forget("x")
		Sleep(found)
		require.Equal(t, 3, k.holders(hold.ID()))
		Sleep(time.Hour)
		k.servers[0].Forget("x")
		k.servers[0].Seize("x", "other", found+50*ms) // a rival's attempt holds it for a moment
		Sleep(found + time.Second)
		require.Equal(t, 3, k.holders(hold.ID()))

		k.servers[1].Forget("x")
		k.servers[1].Seize("x", "other", 0)
		Sleep(found)
		require.NoError(t, Carry(hold).Err())
		k.servers[0].Forget("x")
		Sleep(found)
		require.ErrorIs(t, context.Cause(Carry(hold)), engine.ErrLost)
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
		k.servers[1].Free("x")
	})
}

// If the user listens for waiters, waiters for a retaken member are reported, too.
func TestRetakenMemberListensForWaiters(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		hold := Acquire(t, t.Context(), redOf(k.clients))
		hold.Wanted()
		listening := func() int { return len(k.clients[1].ListeningTags()) }
		require.Equal(t, 1, listening())
		k.servers[1].Forget("x")
		Sleep(found)
		require.Equal(t, 3, k.holders(hold.ID()))
		require.Equal(t, 1, listening())
		Release(t, hold)
		require.Zero(t, listening())
	})
}

// One of three servers has forgotten the lock, and another one stops answering after the first
// confirmation. Another client may have had a majority meanwhile, so the member is released.
func TestRetakenMemberIsReleasedWithoutAMajority(t *testing.T) {
	for _, tt := range []struct {
		name    string
		release Fault // of the member
		held    int   // servers that have the id before the time of late copies of the release is over
		sent    int   // acquisitions until then
	}{
		{name: "and its release is answered", held: 3, sent: 3},
		{name: "and its release is not answered", release: Fault{Mute: true}, held: 2, sent: 2},
	} {
		runCluster(t, tt.name, 3, func(t *testing.T, k *cluster) {
			hold := Acquire(t, t.Context(), redOf(k.clients))
			k.servers[0].Forget("x")
			k.servers[0].Script("release", tt.release)
			k.servers[1].Script("check", Fault{}, Fault{Err: ErrDown})
			k.servers[2].Script("check", Fault{}, Fault{Err: ErrDown})
			Sleep(found + time.Minute)
			assert.NotEmpty(t, k.servers[0].Sent("release"))
			assert.Equal(t, tt.held, k.holders(hold.ID()))
			assert.Len(t, k.servers[0].Sent("acquire"), tt.sent)
			Sleep(k.clients[0].LateCopies)
			assert.Equal(t, 3, k.holders(hold.ID()))
			require.NoError(t, Carry(hold).Err())
			Release(t, hold)
		})
	}
}

// All attempts of one retake are the same request, so that an answer that is lost does no harm.
func TestRetakeThatIsNotAnsweredIsRepeated(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		hold := Acquire(t, t.Context(), redOf(k.clients))
		k.servers[0].Forget("x")
		k.servers[0].Script("acquire", Fault{Mute: true}, Fault{Lost: true})
		Sleep(found + 5*time.Second)
		assert.Equal(t, 3, k.holders(hold.ID()))
		assert.Len(t, k.servers[0].Sent("acquire"), 4)
		assert.Empty(t, k.servers[0].Sent("rollback"))
		Release(t, hold)
	})
}

// The joint hold ends, or the user releases the lost member, while the retake of the member is not
// answered. What it took is rolled back at once.
func TestRetakeIsWithdrawnAtOnce(t *testing.T) {
	for _, name := range []string{"the joint hold ends", "the member is released"} {
		runCluster(t, name, 3, func(t *testing.T, k *cluster) {
			k.each(3, (*Server).KeepLeases)
			hold := Acquire(t, t.Context(), redOf(k.clients))
			member, _ := engine.HoldFrom(Carry(hold), k.clients[0].Lock("x"))
			k.servers[0].Forget("x")
			k.servers[0].OnEach(func(cmd Command) Fault { return Fault{Mute: cmd.Op == "acquire"} })
			Sleep(found + 20*time.Second)
			require.Equal(t, 3, k.holders(hold.ID()), "without an answer")
			require.NoError(t, Carry(hold).Err())
			if name == "the joint hold ends" {
				Release(t, hold)
				Sleep(2 * time.Second) // the budget of an attempt
				k.requireFree(t)
			} else {
				require.ErrorIs(t, member.Release(t.Context()), engine.ErrLost)
				Sleep(DefaultTTL / 3)
				assert.Equal(t, 2, k.holders(hold.ID()))
				require.NoError(t, Carry(hold).Err())
				Release(t, hold)
			}
		})
	}
}

// The hold of a lost member and its replacement have one id. The user releases the lost one.
func TestReleaseOfALostMemberDoesNotFreeItsReplacement(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		hold := Acquire(t, t.Context(), redOf(k.clients))
		member, _ := engine.HoldFrom(Carry(hold), k.clients[0].Lock("x"))
		k.servers[0].Forget("x")
		Sleep(found)
		require.ErrorIs(t, member.Release(t.Context()), engine.ErrLost)
		Settle()
		assert.Equal(t, 3, k.holders(hold.ID()))
		Release(t, hold)
	})
}

// Members with a fixed lease, or with an id that the caller names, are not retaken.
func TestOnlyRenewedMembersOfAPrivateIDAreRetaken(t *testing.T) {
	for _, option := range []func(*engine.Terms){FixedLease(time.Hour), OwnedBy("me")} {
		onCluster(t, 3, func(t *testing.T, k *cluster) {
			hold := Acquire(t, t.Context(), redOf(k.clients), option)
			k.servers[0].Forget("x")
			require.NoError(t, hold.Check(t.Context()))
			Sleep(DefaultTTL)
			assert.Equal(t, 2, k.holders(hold.ID()))
			assert.Len(t, k.servers[0].Sent("acquire"), 1)
			assert.Len(t, k.servers[1].Sent("acquire"), 1)
			Release(t, hold)
		})
	}
}

// Whichever members have forgotten the lock, at the same time or one of them, all of them are
// retaken.
func TestAnyMembersAreRetaken(t *testing.T) {
	for _, forgotten := range [][]int{{0}, {1}, {4}, {0, 3}, {1, 2}, {3, 4}} {
		onCluster(t, 5, func(t *testing.T, k *cluster) {
			hold := Acquire(t, t.Context(), redOf(k.clients))
			for _, i := range forgotten {
				k.servers[i].Forget("x")
			}
			Sleep(found + time.Second)
			assert.Equal(t, 5, k.holders(hold.ID()), "%v", forgotten)
			require.NoError(t, Carry(hold).Err())
			Release(t, hold)
		})
	}
}

// A nested joint hold's member is retaken after the outer one's, under its new hold. Until then it
// is lost.
func TestMemberOfANestedHoldIsRetakenAfterTheOuterOnes(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		r := redOf(k.clients)
		outer := Acquire(t, t.Context(), r)
		inner := Acquire(t, Carry(outer), r)
		k.servers[1].Forget("x")
		k.servers[1].Seize("x", "other", found+5*time.Second)
		Sleep(found + time.Second)
		assert.Equal(t, 2, k.holders(outer.ID()))
		Sleep(found + time.Minute)
		for i, s := range k.servers {
			assert.Equal(t, 2, s.Holder("x", outer.ID()).Count, "member %d", i)
		}
		Release(t, inner, outer)
	})
}

// Somebody has acquired the forgotten member with the same id meanwhile. The server counts both, so
// neither release frees the other's.
func TestRetakenMemberIsCountedBesideTheSameID(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		hold := Acquire(t, t.Context(), redOf(k.clients))
		k.servers[0].Forget("x")
		k.servers[0].Seize("x", "a rival", 0)
		require.NoError(t, hold.Check(t.Context())) // finds the loss
		k.servers[0].Forget("x")
		other := Acquire(t, t.Context(), k.clients[0].Lock("x"), OwnedBy(hold.ID()))
		Sleep(time.Second)
		assert.Equal(t, 2, k.servers[0].Holder("x", hold.ID()).Count)
		Release(t, other)
		assert.Equal(t, 3, k.holders(hold.ID()))
		Release(t, hold)
	})
}

// All members are retaken one after another. The joint hold ends at its limit all the same.
func TestRetakenMembersHaveTheRestOfTheLimit(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		hold := Acquire(t, t.Context(), redOf(k.clients), MaxHold(time.Minute))
		limit := time.Now().Add(time.Minute)
		for _, s := range k.servers {
			s.Forget("x")
			Sleep(found)
			require.Equal(t, 3, k.holders(hold.ID()))
		}
		<-Carry(hold).Done()
		assert.InDelta(t, 0, time.Until(limit), float64(time.Second))
		require.ErrorIs(t, hold.Release(t.Context()), engine.ErrLost)
		Sleep(time.Second) // the retake of the member that ended first may be under way
	})
}

// The client of a lost member closes before the joint hold ends.
func TestRetakeOnAClosedClientIsDropped(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		hold := Acquire(t, t.Context(), redOf(k.clients))
		k.servers[2].Forget("x")
		k.servers[2].OnEach(func(cmd Command) Fault { return Fault{Mute: cmd.Op == "acquire"} })
		Sleep(found + 5*time.Second)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		_ = k.clients[2].Shut(ended)
		attempts := len(k.servers[2].Sent("acquire"))
		Sleep(time.Minute)
		require.NoError(t, Carry(hold).Err())
		assert.Len(t, k.servers[2].Sent("acquire"), attempts)
		Release(t, hold)
		Sleep(DefaultTTL)
	})
}

// A retake's goroutine may begin to run after the end of the joint hold. It must notice the end,
// because Close waits for it.
func TestEndOfAJointHoldIsKnownAfterIt(t *testing.T) {
	Bubble(t, func(t *testing.T, _ *Server) {
		k := newCluster(t, 3)
		r := redOf(k.clients)
		attempts := &spy{Driver: r.Driver}
		r.Driver = attempts
		hold := Acquire(t, t.Context(), r)
		Release(t, hold)
		require.Error(t, attempts.granted.UntilOver().Err())
	})
}

// A hold takes the place of a lost one only while the joint hold is held without a break.
func TestReplacementThatComesTooLateIsRefused(t *testing.T) {
	for _, name := range []string{"in time", "twice", "it has ended", "the joint hold is closed", "the others are over"} {
		t.Run(name, func(t *testing.T) {
			Bubble(t, func(t *testing.T, _ *Server) {
				k := newCluster(t, 3)
				r := redOf(k.clients)
				attempts := &spy{Driver: r.Driver}
				r.Driver = attempts
				hold := Acquire(t, t.Context(), r)
				o := attempts.granted
				lost := o.Member(k.clients[0].Lock("x"))
				fresh := Acquire(t, t.Context(), k.clients[0].Lock("fresh"))
				want := false
				switch name {
				case "in time":
					want = true
				case "twice":
					require.True(t, o.Replace(lost, fresh))
				case "it has ended":
					Release(t, fresh)
				case "the joint hold is closed":
					o.DetachMembers()
				case "the others are over":
					// The process stands still until the lease is over: nothing has ended the holds
					// when it goes on.
					fresh = Acquire(t, t.Context(), k.clients[0].Lock("later"), FixedLease(time.Hour))
					k.each(3, func(s *Server) { s.OnEach(silent) })
					time.Sleep(DefaultTTL - margin)
				}
				assert.Equal(t, want, o.Replace(lost, fresh))
				k.each(3, (*Server).ResetFaults)
				_ = hold.Release(t.Context())
				_ = lost.Release(t.Context())
			})
		})
	}
}

// Servers forget a redlock again and again. Commands are lost, delayed and repeated meanwhile. If
// so many forget it that a rival gets it before the hold has ended, the hold is lost: its majority
// is not acquired again. In the other runs a majority stands all the time, and no rival gets it.
// Nothing is left.
func TestRetakesNeverBringABrokenMajorityBack(t *testing.T) {
	const servers, majority = 5, 3
	rapid.Check(t, func(rt *rapid.T) {
		faults := rapid.SliceOfN(rapid.Custom(drawFault), 0, 60).Draw(rt, "faults")
		forgets := rapid.SliceOfN(rapid.IntRange(0, servers-1), 1, 12).Draw(rt, "forgets")
		breaks := rapid.Bool().Draw(rt, "so many that the majority is broken")
		pauses := rapid.SliceOfN(duration(0, time.Second), len(forgets), len(forgets)).Draw(rt, "pauses")
		rapid.SyncTest(rt, func(rt *rapid.T) {
			k, rivals := &cluster{}, []*Client{}
			next := oneByOne(faults)
			for i := range servers {
				s := NewServer()
				k.servers = append(k.servers, s)
				k.clients = append(k.clients, s.NewClient(fmt.Sprint("a", i)))
				rivals = append(rivals, s.NewClient(fmt.Sprint("b", i)))
			}
			hold, err := redOf(k.clients).Acquire(context.Background(), NewTerms(TTL(3*time.Second)), engine.Forever)
			require.NoError(rt, err)
			for _, s := range k.servers {
				s.OnEach(next)
			}
			ctx, cancel := context.WithCancel(context.Background())
			var rival sync.WaitGroup
			overlap := false
			rival.Go(func() {
				for ctx.Err() == nil {
					other, err := redOf(rivals).Acquire(ctx, NewTerms(TTL(time.Second)), engine.NoWait)
					if err == nil {
						overlap = overlap || Carry(hold).Err() == nil && time.Now().Before(hold.ValidUntil())
						_ = other.Release(context.Background())
					}
					time.Sleep(200 * ms)
				}
			})
			held := func(i int) bool {
				member, _ := engine.HoldFrom(Carry(hold), k.clients[i].Lock("x"))
				return member != nil && k.servers[i].Holder("x", hold.ID()).Count > 0
			}
			for n, i := range forgets {
				time.Sleep(pauses[n])
				others := 0
				for j := range servers {
					if j != i && held(j) {
						others++
					}
				}
				if breaks || others >= majority {
					k.servers[i].Forget("x")
				}
			}
			time.Sleep(10 * time.Second) // unanswered renewals end before
			cancel()
			rival.Wait()
			require.False(rt, overlap && !breaks, "two holders")
			require.False(rt, overlap && Carry(hold).Err() == nil, "the majority was broken")
			_ = hold.Release(context.Background())
			time.Sleep(10 * time.Minute)
			for _, s := range k.servers {
				require.Empty(rt, s.IDs("x"))
			}
			for _, c := range slices.Concat(k.clients, rivals) {
				require.NoError(rt, c.Shut(context.Background()))
				require.Empty(rt, c.Leftovers())
			}
		})
	})
}

// A server restarts without its data. The member is acquired again, under the same id.
func TestRedRetakesAMemberThatForgotTheLock(t *testing.T) {
	seize := func(d time.Duration) func(k *cluster) {
		return func(k *cluster) { k.servers[0].Seize("x", "other", d) }
	}
	for _, tt := range []struct {
		name         string
		act          func(k *cluster) // when the lock was forgotten
		sleep        time.Duration
		want         int  // servers that have the id then
		sendsNothing bool // to the server that forgot the lock, after the acquisition
	}{
		{name: "at once", act: func(*cluster) {}, sleep: 11 * time.Second, want: 3},
		{
			name: "a rival's attempt holds it for a moment", act: seize(10*time.Second + 50*ms), // found lost after 10 s
			sleep: 11 * time.Second, want: 3,
		},
		{name: "held by another for a while", act: seize(20 * time.Second), sleep: 35 * time.Second, want: 3},
		{
			name: "held by another for long", act: seize(time.Hour), // five budgets of a member
			sleep: time.Hour + 10*time.Second, want: 3,
		},
		{name: "held by another", act: seize(0), sleep: 35 * time.Second, want: 2},
		{
			name: "an attempt is not answered",
			act:  func(k *cluster) { k.servers[0].Script("acquire", Fault{Mute: true}) }, sleep: 35 * time.Second, want: 3,
		},
		{
			name: "not while too few others confirm", act: func(k *cluster) {
				k.servers[1].OnEach(func(cmd Command) Fault { return Fault{Mute: cmd.Op == "check"} })
			}, sleep: 35 * time.Second, want: 2, sendsNothing: true,
		},
	} {
		runCluster(t, tt.name, 3, func(t *testing.T, k *cluster) {
			hold := Acquire(t, t.Context(), redOf(k.clients))
			k.servers[0].Forget("x")
			tt.act(k)
			Sleep(tt.sleep)
			assert.NoError(t, Carry(hold).Err())
			assert.Equal(t, tt.want, k.holders(hold.ID()))
			if tt.sendsNothing {
				assert.Len(t, k.servers[0].Sent("acquire"), 1, "the attempt that acquired")
			}
			for _, s := range k.servers {
				s.ResetFaults()
			}
			if tt.want == 3 { // one more may fail now
				k.servers[1].Forget("x")
				Sleep(time.Hour)
				assert.NoError(t, Carry(hold).Err())
				assert.Equal(t, 3, k.holders(hold.ID()))
			}
			Release(t, hold)
			k.servers[0].Free("x")
			Sleep(time.Minute)
		})
	}
}

// A copy of the command that acquired the member comes after the member has forgotten the lock.
func TestRedRetakesNoMemberWhileACopyMayCome(t *testing.T) {
	onCluster(t, 3, func(t *testing.T, k *cluster) {
		k.servers[0].Script("acquire", Fault{Copy: 2 * time.Minute}, Fault{Copy: 4 * time.Minute})
		hold := Acquire(t, t.Context(), redOf(k.clients))
		k.servers[0].Forget("x")
		Sleep(time.Minute)
		assert.NoError(t, Carry(hold).Err())
		Release(t, hold)
		Sleep(time.Minute)
		k.requireFree(t)

		hold = Acquire(t, t.Context(), redOf(k.clients))
		k.servers[0].Forget("x")
		Sleep(k.clients[0].LateCopies - time.Minute)
		assert.Equal(t, 3, k.holders(hold.ID()), "the copy has come")
		k.servers[0].Forget("x")
		Sleep(2 * time.Minute)
		assert.Equal(t, 3, k.holders(hold.ID()), "no further one can come")
		Release(t, hold)
	})
}

// The joint hold ends while a member is being retaken: nothing is left.
func TestReleaseDuringARetakeLeavesNothing(t *testing.T) {
	for _, f := range []Fault{{Reply: 5 * time.Second}, {Mute: true}, {Delay: 5 * time.Second}, {Lost: true,
		Copy: 20 * time.Second}} {
		runCluster(t, fmt.Sprintf("%+v", f), 3, func(t *testing.T, k *cluster) {
			k.each(len(k.servers), (*Server).KeepLeases)
			hold := Acquire(t, t.Context(), redOf(k.clients))
			k.servers[0].Forget("x")
			k.servers[0].Script("acquire", f)
			Sleep(10*time.Second + 500*ms)
			assert.Len(t, k.servers[0].Sent("acquire"), 2, "the retake is under way")
			Release(t, hold)
			Sleep(2 * time.Minute)
		})
	}
}

// duration draws a duration of an odd number of nanoseconds, so that two events rarely meet.
func duration(lo, hi time.Duration) *rapid.Generator[time.Duration] {
	return rapid.Map(rapid.Int64Range(int64(lo), int64(hi)), func(n int64) time.Duration { return time.Duration(n | 1) })
}

// oneByOne returns a func that gives each command the next fault, whichever server gets it, until
// none is left.
func oneByOne(faults []Fault) func(Command) Fault {
	var mu sync.Mutex
	return func(Command) (f Fault) {
		mu.Lock()
		defer mu.Unlock()
		if len(faults) > 0 {
			f, faults = faults[0], faults[1:]
		}
		return f
	}
}

// drawFault draws what happens to a command: mostly nothing but a short delay.
func drawFault(rt *rapid.T) Fault {
	late := duration(ms, 8*time.Second)
	switch rapid.IntRange(0, 16).Draw(rt, "fault") {
	case 8:
		return Fault{Delay: late.Draw(rt, "delay")}
	case 9:
		return Fault{Reply: late.Draw(rt, "reply")}
	case 10:
		return Fault{Mute: true}
	case 11:
		return Fault{Lost: true}
	case 12:
		return Fault{Lost: true, Copy: late.Draw(rt, "copy")}
	case 13:
		return Fault{Copy: late.Draw(rt, "copy")}
	case 14:
		return Fault{Err: ErrDown}
	case 15:
		return Fault{Err: ErrBusy}
	case 16:
		return Fault{Err: ErrFatal}
	}
	return Fault{Delay: duration(0, 3*ms).Draw(rt, "delay"), Reply: duration(0, 3*ms).Draw(rt, "reply")}
}
