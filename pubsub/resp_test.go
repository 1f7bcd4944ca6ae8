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
	{"simple", "+PONG\r\n", reply{parts: []string{"PONG"}}, nil},
	{"error", "-NOPERM no\r\n", reply{err: "NOPERM no"}, nil},
	{"bulk error", "!8\r\nERR a\r\nb\r\n", reply{err: "ERR a\r\nb"}, nil},
	{"RESP2 message", "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\na\r\n\r\n", reply{parts: []string{"message", "c", "a\r\n"}}, nil},
	{"RESP3 confirmation", ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n", reply{parts: []string{"subscribe", "c", "1"}}, nil},
	{"nulls", "*4\r\n$-1\r\n*-1\r\n_\r\n$0\r\n\r\n", reply{parts: []string{"", "", ""}}, nil},
	{"nested", ">2\r\n+x\r\n%1\r\n+k\r\n~2\r\n#t\r\n,1.5\r\n", reply{parts: []string{"x", "k", "t", "1.5"}}, nil},
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

func TestDecode(t *testing.T) {
	for _, tt := range replies {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.wire), iotest.OneByteReader(strings.NewReader(tt.wire))} {
				got, err := newDecoder(r).next(nil)
				require.ErrorIs(t, err, tt.err)
				if tt.err == nil {
					require.Equal(t, tt.want, got)
				}
			}
		})
	}
}

func FuzzDecode(f *testing.F) {
	for _, tt := range replies {
		f.Add([]byte(tt.wire))
	}
	f.Fuzz(func(t *testing.T, wire []byte) {
		d := newDecoder(bytes.NewReader(wire))
		for {
			r, err := d.next(nil)
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
