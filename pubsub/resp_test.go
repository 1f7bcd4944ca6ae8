package pubsub

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"runtime"
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
	{"simple", "+PONG\r\n", replyOf("PONG"), nil},
	{"error", "-NOPERM no\r\n", reply{err: "NOPERM no"}, nil},
	{"bulk error", "!8\r\nERR a\r\nb\r\n", reply{err: "ERR a\r\nb"}, nil},
	{"RESP2 message", "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\na\r\n\r\n", replyOf("message", "c", "a\r\n"), nil},
	{"RESP3 confirmation", ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", replyOf("subscribe", "c", "1"), nil},
	{"nulls", "*4\r\n$-1\r\n*-1\r\n_\r\n$0\r\n\r\n", replyOf("", "", ""), nil},
	{"nested", ">2\r\n+x\r\n%1\r\n+k\r\n~2\r\n#t\r\n,1.5\r\n", replyOf("x", "k", "t", "1.5"), nil},
	{"end", "", reply{}, io.EOF},
	{"end within a length", "*3", reply{}, io.EOF},
	{"end within a string", "$5\r\nab", reply{}, io.EOF},
	{"unknown type", "@\r\n", reply{}, errProtocol},
	{"not a number", "*x\r\n", reply{}, errProtocol},
	{"negative", "$-2\r\n", reply{}, errProtocol},
	{"huge string that never arrives", "$536870912\r\nabc", reply{}, io.EOF},
	{"string longer than memory", "$9223372036854775808\r\n", reply{}, errProtocol},
	{
		"longest payload", ">3\r\n+message\r\n+c\r\n" + bulk(maxText),
		replyOf("message", "c", strings.Repeat("x", maxText)), nil,
	},
	{"payload too long", ">3\r\n+message\r\n+c\r\n" + bulk(maxText+1), truncated("message", "c", ""), nil},
	{
		"payload too long, without CRLF",
		">3\r\n+message\r\n+c\r\n$131073\r\n" + strings.Repeat("x", maxText+2) + "\r\n",
		reply{}, errProtocol,
	},
	{
		"long channel", ">3\r\n+message\r\n" + bulk(maxText+1) + "+0\r\n",
		replyOf("message", strings.Repeat("x", maxText+1), "0"), nil,
	},
	{
		"error too long", "!131073\r\n" + strings.Repeat("x", maxText+1) + "\r\n",
		reply{err: "ERR an error of more than 131072 bytes"}, nil,
	},
	{
		"array too long", "*9\r\n" + strings.Repeat("+a\r\n", 8) + bulk(maxText),
		truncated("a", "a", "a", "a", "a", "a", "a", "a"), nil,
	},
	{
		"nested arrays too long", "*2\r\n" + strings.Repeat("*40000\r\n"+strings.Repeat("_\r\n", 40000), 2),
		truncated("", "", "", "", "", "", "", ""), nil,
	},
	{"array longer than maxLength", "*536870913\r\n", reply{}, errProtocol},
	{"deep nesting", strings.Repeat("*65536\r\n", 20), reply{}, errProtocol},
	{"line without CR", "+PONG\n", reply{}, errProtocol},
	{"endless line", "+" + strings.Repeat("x", 1<<20), reply{}, errProtocol},
	{"string without CRLF", "$1\r\nabc\r\n", reply{}, errProtocol},
}

// bulk encodes a bulk string of n bytes.
func bulk(n int) string { return fmt.Sprintf("$%d\r\n%s\r\n", n, strings.Repeat("x", n)) }

// truncated returns a reply with these parts, marked as incomplete.
func truncated(words ...string) reply {
	r := replyOf(words...)
	r.truncated = true
	return r
}

// replyOf returns a reply with the given parts.
func replyOf(words ...string) reply {
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

func TestDecoderReadsReplies(t *testing.T) {
	for _, tt := range replies {
		t.Run(tt.name, func(t *testing.T) {
			whole, bytewise := strings.NewReader(tt.wire), iotest.OneByteReader(strings.NewReader(tt.wire))
			for _, r := range []io.Reader{whole, bytewise} {
				got, err := newDecoder(r).next()
				require.ErrorIs(t, err, tt.err)
				if tt.err == nil {
					require.Equal(t, tt.want.err, got.err)
					require.Equal(t, words(tt.want), words(got))
					require.Equal(t, tt.want.truncated, got.truncated)
				}
			}
		})
	}
}

// The decoder stores nothing of an oversized reply, and finds the reply after it.
func TestDecoderDiscardsOversizedReplies(t *testing.T) {
	const long = 8 << 20
	for name, wire := range map[string]string{
		"message":    ">3\r\n+message\r\n+c\r\n" + bulk(long),
		"array":      ">300000\r\n+message\r\n+c\r\n" + strings.Repeat(bulk(20), 299_998),
		"bulk error": "!8388608\r\n" + strings.Repeat("x", long) + "\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			wire += "+PONG\r\n"
			r := strings.NewReader(wire)
			d := newDecoder(r)
			before := allocated()
			for range 10 {
				r.Reset(wire)
				got, err := d.next()
				require.NoError(t, err)
				require.True(t, got.truncated || got.err != "")
				got, err = d.next()
				require.NoError(t, err)
				require.Equal(t, []string{"PONG"}, words(got))
			}
			require.Less(t, allocated()-before, uint64(1<<20))
		})
	}
}

// allocated returns how many bytes this process has allocated since its start.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// The memory of a long channel name is freed with the next reply.
func TestDecoderFreesTheBufferOfLongNames(t *testing.T) {
	d := newDecoder(strings.NewReader(">3\r\n+message\r\n" + bulk(1_000_000) + "+0\r\n+PONG\r\n"))
	_, err := d.next()
	require.NoError(t, err)
	r, err := d.next()
	require.NoError(t, err)
	require.Equal(t, []string{"PONG"}, words(r))
	require.LessOrEqual(t, cap(d.text), maxKept)
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
			if len(r.parts) > maxParts {
				t.Fatalf("%d parts", len(r.parts))
			}
		}
	})
}

// messagePath returns a func that decodes one message and delivers it to a listener, without a
// server. calls counts the calls of the listener.
func messagePath(t testing.TB) (next func(), calls *int) {
	h := New(nil, Config{})
	t.Cleanup(h.Close)
	l := newLink(h, server{name: plainServer})
	h.links[plainServer] = l
	require.NoError(t, l.handle(replyOf("PONG"))) // the reply that connect leaves unread
	calls = new(int)
	h.Subscribe("redisson_lock__channel:{orders:42}", func(Signal) { *calls++ })
	l.nextCommands()
	require.NoError(t, l.handle(replyOf("subscribe", "redisson_lock__channel:{orders:42}", "1")))

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
	}, calls
}

func TestDeliveryDoesNotAllocate(t *testing.T) {
	next, calls := messagePath(t)
	require.Zero(t, testing.AllocsPerRun(100, next))
	require.Equal(t, 101, *calls)
}
