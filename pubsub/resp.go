package pubsub

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// errProtocol is wrapped by the errors of replies that make no sense. They end the link.
var errProtocol = errors.New("pubsub: protocol error")

const (
	maxLine  = 64 << 10  // bytes
	maxBulk  = 512 << 20 // bytes, Redis's own limit
	maxParts = 1 << 16   // scalars of one reply
	maxDepth = 8
)

// reply is what the server sent: the scalars of one reply or push, flattened, or an error.
type reply struct {
	parts []string // nulls are ""
	err   string   // of an error reply
}

// decoder reads RESP2 and RESP3.
type decoder struct{ r *bufio.Reader }

func newDecoder(r io.Reader) *decoder { return &decoder{bufio.NewReaderSize(r, 16<<10)} }

// next returns the next reply. parts is reused by the following call.
func (d *decoder) next(parts []string) (reply, error) {
	kind, err := d.r.ReadByte()
	if err != nil {
		return reply{}, err
	}
	if kind == '-' || kind == '!' {
		text, err := d.scalar(kind)
		return reply{err: text}, err
	}
	parts, err = d.value(kind, parts[:0], 0)
	return reply{parts: parts}, err
}

// value appends the scalars of one value to parts.
func (d *decoder) value(kind byte, parts []string, depth int) ([]string, error) {
	perElement := 1
	switch kind {
	case '*', '>', '~':
	case '%', '|':
		perElement = 2
	default:
		text, err := d.scalar(kind)
		return append(parts, text), err
	}
	n, err := d.length(maxParts)
	if err != nil {
		return parts, err
	}
	if depth == maxDepth {
		return parts, fmt.Errorf("%w: nested too deep", errProtocol)
	}
	for range n * perElement {
		kind, err := d.r.ReadByte()
		if err != nil {
			return parts, err
		}
		if parts, err = d.value(kind, parts, depth+1); err != nil {
			return parts, err
		}
		if len(parts) > maxParts {
			return parts, fmt.Errorf("%w: too many elements", errProtocol)
		}
	}
	return parts, nil
}

// scalar reads what follows the type byte of anything but an aggregate.
func (d *decoder) scalar(kind byte) (string, error) {
	switch kind {
	case '+', '-', ':', ',', '#', '(', '_':
		return d.line()
	case '$', '=', '!':
		return d.bulk()
	default:
		return "", fmt.Errorf("%w: unknown type %q", errProtocol, kind)
	}
}

func (d *decoder) line() (string, error) {
	var line []byte
	for {
		chunk, err := d.r.ReadSlice('\n')
		if line == nil && err == nil {
			line = chunk // nearly always: no copy but the string
		} else {
			line = append(line, chunk...)
		}
		switch {
		case len(line) > maxLine:
			return "", fmt.Errorf("%w: line too long", errProtocol)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return "", err
		}
		text, ok := bytes.CutSuffix(line, []byte("\r\n"))
		if !ok {
			return "", fmt.Errorf("%w: line without end", errProtocol)
		}
		return string(text), nil
	}
}

// length reads a length. Null has none: 0.
func (d *decoder) length(limit int) (int, error) {
	n, err := d.signed(limit)
	return max(n, 0), err
}

// signed reads a length of which -1 means null.
func (d *decoder) signed(limit int) (int, error) {
	line, err := d.line()
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(line)
	if err != nil || n < -1 || n > limit {
		return 0, fmt.Errorf("%w: length %q", errProtocol, line)
	}
	return n, nil
}

// bulk reads a string. Its memory grows with what arrives, not with what is announced.
func (d *decoder) bulk() (string, error) {
	n, err := d.signed(maxBulk)
	if n < 0 || err != nil {
		return "", err
	}
	var text strings.Builder
	if n <= maxLine {
		text.Grow(n)
	}
	if _, err := io.CopyN(&text, d.r, int64(n)); err != nil {
		return "", err
	}
	if end, err := d.line(); err != nil || end != "" {
		return "", cmp.Or(err, fmt.Errorf("%w: string without end", errProtocol))
	}
	return text.String(), nil
}

// appendCommand appends a command, n words in all, of which the first is given.
func appendCommand(b []byte, n int, word string) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(n), 10)
	b = append(b, '\r', '\n')
	return appendWord(b, word)
}

func appendWord(b []byte, word string) []byte {
	b = append(b, '$')
	b = strconv.AppendInt(b, int64(len(word)), 10)
	b = append(b, '\r', '\n')
	b = append(b, word...)
	return append(b, '\r', '\n')
}
