package pubsub

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// script drives a link by hand: "+c" listens to a channel, "-c" leaves it, "send" takes what is to be written, anything else is a reply of
// the server. It returns the commands that were sent.
func script(t *testing.T, h *Hub, l *link, steps []string) (sent []string, err error) {
	t.Helper()
	subs := map[string]*Subscription{}
	for _, step := range steps {
		words := strings.Fields(step)
		switch name := words[0][1:]; {
		case step == "send":
			for _, cmd := range l.pending() {
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
			err = l.handle(said(words...))
		}
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// What the server says and when is up to the server; whatever comes, an answer is booked to the command it answers.
func TestAnswers(t *testing.T) {
	confirmed := func(c *channel) bool { return c != nil && c.link != nil && c.confirmed() }
	unconfirmed := func(c *channel) bool { return c != nil && c.link != nil && !c.confirmed() }
	homeless := func(c *channel) bool { return c != nil && c.link == nil }
	unknown := func(c *channel) bool { return c == nil }
	for _, tt := range []struct {
		name  string
		steps []string
		sent  []string
		c     func(*channel) bool // what has become of channel c
		err   error
	}{
		{"confirmed", []string{"+c", "send", "ssubscribe c 1"}, []string{"SUBSCRIBE c"}, confirmed, nil},
		{"left before anything was sent", []string{"+c", "-c", "send"}, nil, unknown, nil},
		{"left and back before anything was sent", []string{"+c", "-c", "+c", "send"}, []string{"SUBSCRIBE c"}, unconfirmed, nil},
		{
			"left and back, nothing to send", []string{"+c", "send", "ssubscribe c 1", "-c", "+c", "send"},
			[]string{"SUBSCRIBE c"}, confirmed, nil,
		},
		{
			"left unconfirmed, back", []string{"+c", "send", "-c", "send", "+c", "send", "ssubscribe c 1"},
			[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, unconfirmed, nil,
		},
		{
			"left unconfirmed, back, confirmed",
			[]string{"+c", "send", "-c", "send", "+c", "send", "ssubscribe c 1", "sunsubscribe c 0", "ssubscribe c 1"},
			[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, confirmed, nil,
		},
		{
			"left confirmed, back", []string{"+c", "send", "ssubscribe c 1", "-c", "send", "+c", "send", "sunsubscribe c 0"},
			[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, unconfirmed, nil,
		},
		{"moved away", []string{"+c", "send", "ssubscribe c 1", "sunsubscribe c 0"}, []string{"SUBSCRIBE c"}, homeless, nil},
		{
			"moved away while there is an answer to come",
			[]string{"+c", "send", "ssubscribe c 1", "-c", "send", "+c", "send", "sunsubscribe c 0", "sunsubscribe c 0"},
			[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, unconfirmed, nil,
		},
		{
			"moved away after it was left", []string{"+c", "send", "ssubscribe c 1", "-c", "sunsubscribe c 0"},
			[]string{"SUBSCRIBE c"}, unknown, nil,
		},
		{"never been here", []string{"+c", "send", "!MOVED 1 127.0.0.1:1"}, []string{"SUBSCRIBE c"}, homeless, nil},
		{
			"moved while the end is on its way", []string{"+c", "send", "ssubscribe c 1", "-c", "send", "!MOVED 1 127.0.0.1:1"},
			[]string{"SUBSCRIBE c", "UNSUBSCRIBE c"}, unknown, nil,
		},
		{"refused", []string{"+c", "send", "!NOPERM c"}, []string{"SUBSCRIBE c"}, unknown, nil},
		{
			"an earlier one refused", []string{"+c", "send", "-c", "send", "+c", "send", "!NOPERM c", "sunsubscribe c 0", "ssubscribe c 1"},
			[]string{"SUBSCRIBE c", "UNSUBSCRIBE c", "SUBSCRIBE c"}, confirmed, nil,
		},
		{
			"another one refused", []string{"+{c}", "+c", "send", "!NOPERM", "send", "!NOPERM", "ssubscribe c 1"},
			[]string{"SUBSCRIBE {c} c", "SUBSCRIBE {c}", "SUBSCRIBE c"}, confirmed, nil,
		},
		{
			"left before its part of a refused command went out again", []string{"+{c}", "+c", "send", "!NOPERM", "-c", "send"},
			[]string{"SUBSCRIBE {c} c", "SUBSCRIBE {c}"}, unknown, nil,
		},
		{
			"left before the refusal of a command that is to go out again in parts", []string{"+{c}", "+c", "send", "-c", "!NOPERM", "send"},
			[]string{"SUBSCRIBE {c} c", "SUBSCRIBE {c}"}, unknown, nil,
		},
		{"a push of another kind", []string{"+c", "send", "invalidate c c", "ssubscribe c 1"}, []string{"SUBSCRIBE c"}, confirmed, nil},
		{"an answer to nothing", []string{"ssubscribe c 1"}, nil, unknown, errProtocol},
		{"a PONG to nothing", []string{"pong x"}, nil, unknown, errProtocol},
		{"an answer for another", []string{"+c", "send", "ssubscribe d 1"}, []string{"SUBSCRIBE c"}, unconfirmed, errProtocol},
		{"an end too early", []string{"+c", "send", "unsubscribe c 0"}, []string{"SUBSCRIBE c"}, unconfirmed, errProtocol},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := New(nil, Config{})
			defer h.Close()
			h.settling = true // nobody does; the test sees what is homeless
			l := newLink(h, server{name: plainServer, sharded: true})
			h.links[plainServer] = l
			require.NoError(t, l.handle(said("PONG"))) // connect's

			sent, err := script(t, h, l, tt.steps)
			require.ErrorIs(t, err, tt.err)
			require.Equal(t, tt.sent, sent)
			require.True(t, tt.c(h.channels["c"]), "%+v", h.channels["c"])
			for c := range l.channels {
				require.Same(t, l, c.link)
				require.GreaterOrEqual(t, c.unanswered, 0)
			}
		})
	}
}
