package redistest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// command is a command that a client sent.
type command struct {
	raw  []byte
	args []string // never empty
}

// is reports whether the command's name is one of names, which must be lower-case.
func (c command) is(names ...string) bool {
	return slices.Contains(names, strings.ToLower(c.args[0]))
}

// readCommand reads one command. It accepts only an array of bulk strings, the
// form that all client libraries use.
func readCommand(r *bufio.Reader) (command, error) {
	var c command
	line, err := c.line(r)
	if err != nil {
		return c, err
	}
	n, err := size(line, '*')
	if err != nil || n < 1 {
		return c, fmt.Errorf("redistest: %q does not start a command", line)
	}
	for range n {
		arg, err := c.bulk(r)
		if err != nil {
			return c, unexpected(err)
		}
		c.args = append(c.args, arg)
	}
	return c, nil
}

func (c *command) line(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	c.raw = append(c.raw, line...)
	return line, err
}

func (c *command) bulk(r *bufio.Reader) (string, error) {
	line, err := c.line(r)
	if err != nil {
		return "", err
	}
	n, err := size(line, '$')
	if err != nil {
		return "", err
	}
	start := len(c.raw)
	if c.raw, err = take(c.raw, r, n+2); err != nil {
		return "", err
	}
	return string(c.raw[start : start+n]), nil
}

// frame is one complete RESP2 or RESP3 value that a server sent.
type frame struct {
	raw  []byte
	word string // the first element of an array or push, if that is a string
}

// kind is the type byte, such as '*' or '>'.
func (f frame) kind() byte { return f.raw[0] }

func readFrame(r *bufio.Reader) (frame, error) {
	raw, err := appendValue(nil, r)
	if err != nil {
		return frame{}, err
	}
	return frame{raw: raw, word: firstWord(raw)}, nil
}

// appendValue reads one value of any type and appends its bytes to raw.
func appendValue(raw []byte, r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	raw = append(raw, line...)
	if err != nil {
		return raw, err
	}
	kind := line[0]
	switch kind {
	case '+', '-', ':', '_', ',', '#', '(':
		return raw, nil
	case '$', '=', '!', '*', '~', '>', '%', '|':
	default:
		return raw, fmt.Errorf("redistest: %q does not start a reply", line)
	}
	n, err := size(line, kind)
	if err != nil {
		return raw, err
	}
	switch kind {
	case '$', '=', '!':
		if n < 0 {
			return raw, nil // RESP2's null
		}
		return take(raw, r, n+2)
	case '%':
		n = 2 * n
	case '|':
		n = 2*n + 1 // the value that the attributes belong to follows them
	}
	for range n {
		if raw, err = appendValue(raw, r); err != nil {
			return raw, unexpected(err)
		}
	}
	return raw, nil
}

func firstWord(raw []byte) string {
	if raw[0] != '*' && raw[0] != '>' {
		return ""
	}
	_, rest, _ := bytes.Cut(raw, []byte("\r\n"))
	head, rest, _ := bytes.Cut(rest, []byte("\r\n"))
	switch {
	case len(head) == 0:
		return ""
	case head[0] == '+':
		return string(head[1:])
	case head[0] == '$':
		word, _, _ := bytes.Cut(rest, []byte("\r\n"))
		return string(word)
	}
	return ""
}

// size parses the number in a line such as "*3\r\n".
func size(line []byte, kind byte) (int, error) {
	if line[0] != kind {
		return 0, fmt.Errorf("redistest: %q is not of type %q", line, kind)
	}
	return strconv.Atoi(string(bytes.TrimSpace(line[1:])))
}

// take appends the next n bytes of r to raw.
func take(raw []byte, r *bufio.Reader, n int) ([]byte, error) {
	start := len(raw)
	raw = append(raw, make([]byte, n)...)
	_, err := io.ReadFull(r, raw[start:])
	return raw, unexpected(err)
}

// unexpected turns an io.EOF inside a value into io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
