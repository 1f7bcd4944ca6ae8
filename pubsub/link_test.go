package pubsub

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// runScript drives a link without a connection. Each step is one of:
//
//	+c      subscribe to channel c
//	-c      close that subscription
//	send    take the commands that the writer would send
//	!text   the server sends an error reply
//	words   the server sends any other reply
//
// It returns the commands that were sent.
func runScript(t *testing.T, h *Hub, l *link, steps []string) (sent []string, err error) {
	t.Helper()
	subs := map[string]*Subscription{}
	for _, step := range steps {
		words := strings.Fields(step)
		switch name := words[0][1:]; {
		case step == "send":
			for _, cmd := range l.nextCommands() {
				line := cmd.word
				for _, c := range cmd.channels {
					line += " " + c.name
				}
				sent = append(sent, line)
			}
		case words[0][0] == '+':
			subs[name] = h.Subscribe(name, func(Signal) {})
		case words[0][0] == '-' && len(words) == 1:
			subs[name].Close()
		case words[0][0] == '!':
			err = l.handle(reply{err: step[1:]})
		default:
			err = l.handle(replyOf(words...))
		}
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

var scriptCases = []struct {
	name  string
	steps []string
	sent  []string
	want  func(*channel) bool // the state of channel c in the end
	err   error
}{
	{"confirmed", []string{"+c", "send", "ssubscribe c 1"}, []string{"SUBSCRIBE c"}, isConfirmed, nil},
	{"closed before anything was sent", []string{"+c", "-c", "send"}, nil, isUnknown, nil},
	{
		"closed and subscribed again before anything was sent", []string{"+c", "-c", "+c", "send"},
		[]string{"SUBSCRIBE c"}, isUnconfirmed, nil,
	},
	{
		"closed and subscribed again, nothing to send",
		[]string{"+c", "send", "ssubscribe c 1", "-c", "+c", "send"},
		[]string{"SUBSCRIBE c"}, isConfirmed, nil,
	},
	{
		"closed unconfirmed, subscribed again",
		[]string{"+c", "send", "-c", "send", "+c", "send", "ssubscribe c 1"},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, isUnconfirmed, nil,
	},
	{
		"closed unconfirmed, subscribed again, confirmed",
		[]string{
			"+c", "send", "-c", "send", "+c", "send", "ssubscribe c 1", "sunsubscribe c 0", "PONG", "ssubscribe c 1",
		},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, isConfirmed, nil,
	},
	{
		"closed unconfirmed, subscribed and closed again", []string{"+c", "send", "-c", "send", "+c", "-c", "send"},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c"}, isUnconfirmed, nil,
	},
	{
		"closed twice, and the first SUBSCRIBE is answered",
		[]string{"+c", "send", "-c", "send", "+c", "send", "-c", "send", "ssubscribe c 1"},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c", "UNSUBSCRIBE c"}, isUnconfirmed, nil,
	},
	{
		"closed confirmed, subscribed again",
		[]string{"+c", "send", "ssubscribe c 1", "-c", "send", "+c", "send", "sunsubscribe c 0"},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, isUnconfirmed, nil,
	},
	{
		"slot moved", []string{"+c", "send", "ssubscribe c 1", "sunsubscribe c 0"},
		[]string{"SUBSCRIBE c"}, isUnplaced, nil,
	},
	{
		"slot moved while a command for another channel is unanswered",
		[]string{"+c", "send", "ssubscribe c 1", "+d", "send", "sunsubscribe c 0", "ssubscribe d 1"},
		[]string{"SUBSCRIBE c", "SUBSCRIBE d"}, isUnplaced, nil,
	},
	{
		"slot moved while UNSUBSCRIBE of another channel is unanswered",
		[]string{
			"+c", "send", "ssubscribe c 1", "+d", "send", "ssubscribe d 1", "-d", "send",
			"sunsubscribe c 0", "sunsubscribe d 0", "PONG",
		},
		[]string{"SUBSCRIBE c", "SUBSCRIBE d", "UNSUBSCRIBE d"}, isUnplaced, nil,
	},
	{
		"slot moved while an answer is outstanding",
		[]string{"+c", "send", "ssubscribe c 1", "-c", "send", "+c", "send", "sunsubscribe c 0", "sunsubscribe c 0"},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, isUnconfirmed, nil,
	},
	{
		"slot moved before UNSUBSCRIBE and SUBSCRIBE were executed",
		[]string{
			"+c", "send", "ssubscribe c 1", "-c", "send", "+c", "send",
			"sunsubscribe c 0", "!MOVED 1 127.0.0.1:1", "PONG", "!MOVED 1 127.0.0.1:1",
		},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, isUnplaced, nil,
	},
	{
		"slot moved before UNSUBSCRIBE was executed, and a channel of another slot is subscribed",
		[]string{
			"+d", "send", "ssubscribe d 1", "-d", "send", "+c", "send",
			"sunsubscribe d 0", "!MOVED 1 127.0.0.1:1", "PONG", "ssubscribe c 1",
		},
		[]string{"SUBSCRIBE d", "UNSUBSCRIBE d", "SUBSCRIBE c"}, isConfirmed, nil,
	},
	{
		"slot moved away, back, and away again around UNSUBSCRIBE and SUBSCRIBE",
		[]string{
			"+c", "send", "ssubscribe c 1", "-c", "send", "+c", "send",
			"sunsubscribe c 0", "sunsubscribe c 0", "PONG", "ssubscribe c 1", "sunsubscribe c 0",
		},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, isUnplaced, nil,
	},
	{
		"UNSUBSCRIBE refused, subscribed again",
		[]string{
			"+c", "send", "ssubscribe c 1", "-c", "send", "+c", "send", "!NOPERM x", "PONG", "ssubscribe c 1",
		},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, isConfirmed, nil,
	},
	{
		"PING refused",
		[]string{
			"+c", "send", "ssubscribe c 1", "-c", "send", "+c", "send", "sunsubscribe c 0", "!NOPERM x",
			"ssubscribe c 1",
		},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, isConfirmed, nil,
	},
	{
		"UNSUBSCRIBE and PING refused",
		[]string{
			"+c", "send", "ssubscribe c 1", "-c", "send", "+c", "send", "!NOPERM x", "!NOPERM x", "ssubscribe c 1",
		},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, isConfirmed, nil,
	},
	{
		"slot moved after the close", []string{"+c", "send", "ssubscribe c 1", "-c", "sunsubscribe c 0"},
		[]string{"SUBSCRIBE c"}, isUnknown, nil,
	},
	{
		"slot of another server", []string{"+c", "send", "!MOVED 1 127.0.0.1:1"},
		[]string{"SUBSCRIBE c"}, isUnplaced, nil,
	},
	{
		"slot moved before UNSUBSCRIBE was executed",
		[]string{"+c", "send", "ssubscribe c 1", "-c", "send", "!MOVED 1 127.0.0.1:1"},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c"}, isUnknown, nil,
	},
	{"refused", []string{"+c", "send", "!NOPERM c"}, []string{"SUBSCRIBE c"}, isUnknown, nil},
	{
		"earlier SUBSCRIBE refused",
		[]string{"+c", "send", "-c", "send", "+c", "send", "!NOPERM c", "sunsubscribe c 0", "PONG", "ssubscribe c 1"},
		[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, isConfirmed, nil,
	},
	{
		"other channel of the command refused",
		[]string{"+{c}", "+c", "send", "!NOPERM", "send", "!NOPERM", "ssubscribe c 1"},
		[]string{"SUBSCRIBE {c} c", "SUBSCRIBE {c}", "SUBSCRIBE c"}, isConfirmed, nil,
	},
	{
		"closed before its half of a refused command was sent again",
		[]string{"+{c}", "+c", "send", "!NOPERM", "-c", "send"},
		[]string{"SUBSCRIBE {c} c", "SUBSCRIBE {c}"}, isUnknown, nil,
	},
	{
		"closed before its command was refused and split", []string{"+{c}", "+c", "send", "-c", "!NOPERM", "send"},
		[]string{"SUBSCRIBE {c} c", "SUBSCRIBE {c}"}, isUnknown, nil,
	},
	{
		"push of another kind", []string{"+c", "send", "invalidate c c", "ssubscribe c 1"},
		[]string{"SUBSCRIBE c"}, isConfirmed, nil,
	},
	{"answer without a command", []string{"ssubscribe c 1"}, nil, isUnknown, errProtocol},
	{"PONG without a command", []string{"pong x"}, nil, isUnknown, errProtocol},
	{
		"answer for another channel", []string{"+c", "send", "ssubscribe d 1"},
		[]string{"SUBSCRIBE c"}, isUnconfirmed, errProtocol,
	},
	{
		"UNSUBSCRIBE answered before SUBSCRIBE", []string{"+c", "send", "unsubscribe c 0"},
		[]string{"SUBSCRIBE c"}, isUnconfirmed, errProtocol,
	},
}

func isConfirmed(c *channel) bool   { return c != nil && c.link != nil && c.confirmed() }
func isUnconfirmed(c *channel) bool { return c != nil && c.link != nil && !c.confirmed() }
func isUnplaced(c *channel) bool    { return c != nil && c.link == nil }
func isUnknown(c *channel) bool     { return c == nil }

// Each reply is applied to the command that it answers, in every order of events.
func TestRepliesAreMatchedToTheirCommands(t *testing.T) {
	for _, tt := range scriptCases {
		t.Run(tt.name, func(t *testing.T) {
			h, l := newTestLink(t, true)
			sent, err := runScript(t, h, l, tt.steps)
			require.ErrorIs(t, err, tt.err)
			require.Equal(t, tt.sent, sent)
			require.True(t, tt.want(h.channels["c"]), "%+v", h.channels["c"])
			for c := range l.channels {
				require.Same(t, l, c.link)
				require.GreaterOrEqual(t, c.unanswered, 0)
			}
		})
	}
}

// newTestLink returns a link without a connection, and its hub.
func newTestLink(t *testing.T, sharded bool) (*Hub, *link) {
	t.Helper()
	h := New(nil, Config{})
	t.Cleanup(h.Close)
	h.placing = true // no placer runs, so unplaced channels stay visible
	l := newLink(h, server{name: plainServer, sharded: sharded})
	h.links[plainServer] = l
	require.NoError(t, l.handle(replyOf("PONG"))) // the reply that connect leaves unread
	return h, l
}

// The channels of a lost link are placed on a new one, except those without listeners. A link that
// has served is the first failure of its server. The end of an idle link is no failure.
func TestLostLinkReturnsItsChannels(t *testing.T) {
	for _, tt := range []struct {
		name     string
		steps    []string
		lost     bool
		unplaced int
		failures int // there were 5 before
	}{
		{"not connected", []string{"+c"}, true, 1, 6},
		{"has served", []string{"+c", "send", "subscribe c 1"}, true, 1, 1},
		{"one channel is closed", []string{"+c", "+d", "send", "subscribe c 1", "subscribe d 1", "-d"}, true, 1, 1},
		{"all channels are closed", []string{"+c", "send", "subscribe c 1", "-c"}, true, 0, 1},
		{"idle", nil, false, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, l := newTestLink(t, false)
			h.failures[plainServer] = 5
			_, err := runScript(t, h, l, tt.steps)
			require.NoError(t, err)

			require.Equal(t, tt.lost, l.returnChannels())
			require.Len(t, h.unplaced, tt.unplaced)
			require.Len(t, h.channels, tt.unplaced)
			require.Equal(t, tt.failures, h.failures[plainServer])
			require.Empty(t, h.links)
		})
	}
}

// A link does not end if a channel was placed on it while its idle timer fired. Otherwise no more
// channels are placed on it from that moment on.
func TestLinkExpiresOnlyWithoutChannels(t *testing.T) {
	h, l := newTestLink(t, false)
	_, err := runScript(t, h, l, []string{"+c", "send", "subscribe c 1"})
	require.NoError(t, err)
	l.expire()
	require.NoError(t, l.ctx.Err())
	require.Same(t, l, h.links[plainServer])

	delete(l.channels, h.channels["c"])
	l.expire()
	require.Error(t, l.ctx.Err())
	require.Empty(t, h.links)
}

// A link ends when the server keeps more subscriptions without listeners than maxLeftover.
func TestTooManyRefusedUnsubscribesEndTheLink(t *testing.T) {
	h, l := newTestLink(t, false)
	l.leftover = maxLeftover - 1
	leave := []string{"+c", "send", "subscribe c 1", "-c", "send", "!NOPERM x"}
	_, err := runScript(t, h, l, leave)
	require.NoError(t, err)
	_, err = runScript(t, h, l, leave)
	require.ErrorContains(t, err, "too many channels")
}

// A channel that has moved to another link keeps its place when the old server reports that its
// slot has moved.
func TestFormerLinkDoesNotUnplaceAChannel(t *testing.T) {
	h, former := newTestLink(t, true)
	l := newLink(h, server{name: plainServer, sharded: true})
	h.links[plainServer] = l
	_, err := runScript(t, h, l, []string{"PONG", "+c", "send", "ssubscribe c 1"})
	require.NoError(t, err)
	require.NoError(t, former.handle(replyOf("sunsubscribe", "c", "0")))
	require.True(t, isConfirmed(h.channels["c"]))
}

// Sharded pub/sub has commands of its own. PING is the same for all.
func TestCommandsOnTheWire(t *testing.T) {
	c := []*channel{{name: "c"}}
	for _, tt := range []struct {
		cmd     command
		sharded bool
		want    string
	}{
		{command{word: ping}, false, "*1 $4 PING "},
		{command{word: ping}, true, "*1 $4 PING "},
		{command{word: subscribe, channels: c}, false, "*2 $9 SUBSCRIBE $1 c "},
		{command{word: subscribe, channels: c}, true, "*2 $10 SSUBSCRIBE $1 c "},
		{
			command{word: unsubscribe, channels: c, fenced: true}, true,
			"*2 $12 SUNSUBSCRIBE $1 c *1 $4 PING ",
		},
	} {
		got := string(tt.cmd.append(nil, tt.sharded))
		require.Equal(t, tt.want, strings.ReplaceAll(got, "\r\n", " "))
	}
}
