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
	{"huge string that does not come", "$536870912\r\nabc", reply{}, io.EOF},
	{"string longer than memory", "$9223372036854775808\r\n", reply{}, errProtocol},
	{"longest payload", ">3\r\n+message\r\n+c\r\n" + bulk(maxText), said("message", "c", strings.Repeat("x", maxText)), nil},
	{"payload too long", ">3\r\n+message\r\n+c\r\n" + bulk(maxText+1), cut("message", "c", ""), nil},
	{
		"payload too long, without end", ">3\r\n+message\r\n+c\r\n$131073\r\n" + strings.Repeat("x", maxText+2) + "\r\n",
		reply{}, errProtocol,
	},
	{"long channel", ">3\r\n+message\r\n" + bulk(maxText+1) + "+0\r\n", said("message", strings.Repeat("x", maxText+1), "0"), nil},
	{"error too long", "!131073\r\n" + strings.Repeat("x", maxText+1) + "\r\n", reply{err: "ERR an error of more than 131072 bytes"}, nil},
	{"array too long", "*9\r\n" + strings.Repeat("+a\r\n", 8) + bulk(maxText), cut("a", "a", "a", "a", "a", "a", "a", "a"), nil},
	{"nested arrays too long", "*2\r\n" + strings.Repeat("*40000\r\n"+strings.Repeat("_\r\n", 40000), 2), cut("", "", "", "", "", "", "", ""), nil},
	{"array longer than any", "*536870913\r\n", reply{}, errProtocol},
	{"bomb", strings.Repeat("*65536\r\n", 20), reply{}, errProtocol},
	{"line without CR", "+PONG\n", reply{}, errProtocol},
	{"endless line", "+" + strings.Repeat("x", 1<<20), reply{}, errProtocol},
	{"string without end", "$1\r\nabc\r\n", reply{}, errProtocol},
}

// bulk is a string of n bytes on the wire.
func bulk(n int) string { return fmt.Sprintf("$%d\r\n%s\r\n", n, strings.Repeat("x", n)) }

// cut is a reply of words of which something was discarded.
func cut(words ...string) reply {
	r := said(words...)
	r.cut = true
	return r
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
					require.Equal(t, tt.want.cut, got.cut)
				}
			}
		})
	}
}

// The decoder keeps no memory of a reply that is longer than any of ours, and finds the reply behind it.
func TestDecoderDiscardsWhatIsTooLong(t *testing.T) {
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
				require.True(t, got.cut || got.err != "")
				got, err = d.next()
				require.NoError(t, err)
				require.Equal(t, []string{"PONG"}, words(got))
			}
			require.Less(t, allocated()-before, uint64(1<<20))
		})
	}
}

// allocated is how many bytes this process has ever allocated.
func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// Memory that a long channel name took is not kept for later replies.
func TestDecoderForgetsLongNames(t *testing.T) {
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
