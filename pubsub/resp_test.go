package pubsub

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

var replies = []struct {
	name, wire string
	want       reply
	err        error
}{
	{"simple", "+PONG\r\n", said("PONG"), nil},
	{"error", "-NOPERM no\r\n", reply{err: "NOPERM no"}, nil},
	{"bulk error", "!8\r\nERR a\r\nb\r\n", reply{err: "ERR a\r\nb"}, nil},
	{"RESP2 message", "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\na\r\n\r\n", said("message", "c", "a\r\n"), nil},
	{"RESP3 confirmation", ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", said("subscribe", "c", "1"), nil},
	{"nulls", "*4\r\n$-1\r\n*-1\r\n_\r\n$0\r\n\r\n", said("", "", ""), nil},
	{"nested", ">2\r\n+x\r\n%1\r\n+k\r\n~2\r\n#t\r\n,1.5\r\n", said("x", "k", "t", "1.5"), nil},
	{"end", "", reply{}, io.EOF},
	{"cut in a length", "*3", reply{}, io.EOF},
	{"cut in a string", "$5\r\nab", reply{}, io.EOF},
	{"unknown type", "@\r\n", reply{}, errProtocol},
	{"no number", "*x\r\n", reply{}, errProtocol},
	{"negative", "$-2\r\n", reply{}, errProtocol},
	{"huge string", "$536870913\r\n", reply{}, errProtocol},
	{"huge string that does not come", "$536870912\r\nabc", reply{}, io.EOF},
	{"huge array", "*2000000\r\n", reply{}, errProtocol},
	{"two that are huge together", "*2\r\n" + strings.Repeat("*40000\r\n"+strings.Repeat("_\r\n", 40000), 2), reply{}, errProtocol},
	{"bomb", strings.Repeat("*65536\r\n", 20), reply{}, errProtocol},
	{"line without CR", "+PONG\n", reply{}, errProtocol},
	{"endless line", "+" + strings.Repeat("x", 1<<20), reply{}, errProtocol},
	{"string without end", "$1\r\nabc\r\n", reply{}, errProtocol},
}

// said is a reply of words.
func said(words ...string) reply {
	r := reply{parts: make([][]byte, len(words))}
	for i, word := range words {
		r.parts[i] = append(r.parts[i], word...)
	}
	return r
}

func words(r reply) (all []string) {
	for _, part := range r.parts {
		all = append(all, string(part))
	}
	return all
}

func TestDecode(t *testing.T) {
	for _, tt := range replies {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.wire), iotest.OneByteReader(strings.NewReader(tt.wire))} {
				got, err := newDecoder(r).next()
				require.ErrorIs(t, err, tt.err)
				if tt.err == nil {
					require.Equal(t, tt.want.err, got.err)
					require.Equal(t, words(tt.want), words(got))
				}
			}
		})
	}
}

// A huge message is not remembered for ever.
func TestDecoderForgetsHugeReplies(t *testing.T) {
	for _, huge := range []string{
		"$1000000\r\n" + strings.Repeat("x", 1_000_000) + "\r\n",
		"*2\r\n" + strings.Repeat("*32768\r\n"+strings.Repeat("_\r\n", 32768), 2),
	} {
		d := newDecoder(strings.NewReader(huge + "+PONG\r\n"))
		_, err := d.next()
		require.NoError(t, err)
		r, err := d.next()
		require.NoError(t, err)
		require.Equal(t, []string{"PONG"}, words(r))
		require.LessOrEqual(t, cap(d.text), maxKept)
		require.LessOrEqual(t, cap(d.parts), maxKept)
	}
}

func FuzzDecode(f *testing.F) {
	for _, tt := range replies {
		f.Add([]byte(tt.wire))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		d := newDecoder(bytes.NewReader(wire))
		for {
			r, err := d.next()
			if err != nil {
				if !errors.Is(err, io.EOF) && !errors.Is(err, errProtocol) {
					t.Fatalf("%v", err)
				}
				return
			}
			if len(r.parts) > maxParts+1 {
				t.Fatalf("%d parts", len(r.parts))
			}
		}
	})
}

// wired returns a func that takes the next message off a link to the one listener of its channel, and what counts the calls of it.
func wired(t testing.TB) (next func(), heard *int) {
	h := New(nil, Config{})
	t.Cleanup(h.Close)
	l := newLink(h, server{name: plainServer})
	h.links[plainServer] = l
	require.NoError(t, l.handle(said("PONG"))) // connect's
	heard = new(int)
	h.Subscribe("redisson_lock__channel:{orders:42}", func(Signal) { *heard++ })
	l.pending()
	require.NoError(t, l.handle(said("subscribe", "redisson_lock__channel:{orders:42}", "1")))

	const wire = ">3\r\n$7\r\nmessage\r\n$34\r\nredisson_lock__channel:{orders:42}\r\n$1\r\n0\r\n"
	r := strings.NewReader(wire)
	d := newDecoder(r)
	return func() {
		r.Reset(wire)
		reply, err := d.next()
		if err == nil {
			err = l.handle(reply)
		}
		if err != nil {
			t.Fatal(err)
		}
	}, heard
}

func TestMessageCostsNoMemory(t *testing.T) {
	next, heard := wired(t)
	require.Zero(t, testing.AllocsPerRun(100, next))
	require.Equal(t, 101, *heard)
}
