package redistest

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadFrameReadsOneValue(t *testing.T) {
	for _, tt := range []struct{ name, raw, word string }{
		{"status", "+OK\r\n", ""},
		{"error", "-ERR no\r\n", ""},
		{"number", ":-1\r\n", ""},
		{"bulk", "$4\r\na\r\nb\r\n", ""},
		{"empty bulk", "$0\r\n\r\n", ""},
		{"null bulk", "$-1\r\n", ""},
		{"null array", "*-1\r\n", ""},
		{"null", "_\r\n", ""},
		{"double", ",1.5\r\n", ""},
		{"boolean", "#t\r\n", ""},
		{"big number", "(12345678901234567890\r\n", ""},
		{"verbatim", "=6\r\ntxt:ab\r\n", ""},
		{"blob error", "!5\r\nERR x\r\n", ""},
		{"empty array", "*0\r\n", ""},
		{"array of numbers", "*2\r\n:1\r\n:2\r\n", ""},
		{"nested", "*2\r\n*1\r\n$1\r\na\r\n$-1\r\n", ""},
		{"set", "~2\r\n+a\r\n+b\r\n", ""},
		{"map", "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n:2\r\n", ""},
		{"attributes", "|1\r\n+ttl\r\n:3\r\n$1\r\nv\r\n", ""},
		{"message", "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n", "message"},
		{"push", ">3\r\n+subscribe\r\n$1\r\nc\r\n:1\r\n", "subscribe"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := bufio.NewReader(strings.NewReader(tt.raw + "+next\r\n"))
			f, err := readFrame(r)
			require.NoError(t, err)
			require.Equal(t, tt.raw, string(f.raw))
			require.Equal(t, tt.word, f.word)
			rest, err := io.ReadAll(r)
			require.NoError(t, err)
			require.Equal(t, "+next\r\n", string(rest))
			for cut := 1; cut < len(tt.raw); cut++ {
				_, err := readFrame(bufio.NewReader(strings.NewReader(tt.raw[:cut])))
				require.Error(t, err, "%q", tt.raw[:cut])
			}
		})
	}
}

func TestReadCommandReadsArraysOfBulkStrings(t *testing.T) {
	r := bufio.NewReader(strings.NewReader("*2\r\n$4\r\nECHO\r\n$3\r\n\r\n!\r\n*1\r\n$4\r\nPING\r\n"))
	c, err := readCommand(r)
	require.NoError(t, err)
	require.Equal(t, []string{"ECHO", "\r\n!"}, c.args)
	require.Equal(t, "*2\r\n$4\r\nECHO\r\n$3\r\n\r\n!\r\n", string(c.raw))
	c, err = readCommand(r)
	require.NoError(t, err)
	require.True(t, c.is("ping"))
	_, err = readCommand(r)
	require.Equal(t, io.EOF, err)
	for _, bad := range []string{
		"PING\r\n", "*0\r\n", "*1\r\n:1\r\n", "*1\r\n$4\r\nPI", "*x\r\n", "*1\r\n$-1\r\n", "\r\n",
	} {
		_, err := readCommand(bufio.NewReader(strings.NewReader(bad)))
		require.Error(t, err, "%q", bad)
	}
}

func FuzzReadFrame(f *testing.F) {
	for _, seed := range []string{
		"+OK\r\n", "*2\r\n$1\r\na\r\n:1\r\n", "%1\r\n+a\r\n_\r\n", "$-1\r\n", "*-1\r\n", ">1\r\n", "|1\r\n",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		frame, err := readFrame(bufio.NewReader(strings.NewReader(s)))
		if err == nil && string(frame.raw) != s[:len(frame.raw)] {
			t.Errorf("%q became %q", s, frame.raw)
		}
	})
}
