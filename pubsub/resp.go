package pubsub

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// errProtocol is wrapped by the errors of replies that make no sense. They end the link.
var errProtocol = errors.New("pubsub: protocol error")

const (
	maxLine  = 64 << 10  // bytes
	maxBulk  = 512 << 20 // bytes, Redis's own limit
	maxParts = 1 << 16   // scalars of one reply
	maxDepth = 8
	maxKept  = 64 << 10 // bytes, and parts, of memory that is kept from one reply for the next
)

// reply is what the server sent: the scalars of one reply or push, flattened, or an error.
type reply struct {
	parts [][]byte // nulls are empty
	err   string   // of an error reply
}

// decoder reads RESP2 and RESP3. A message costs no memory: text and parts are used again for each reply.
type decoder struct {
	r     *bufio.Reader
	text  []byte   // the scalars of the reply, one behind the other
	parts [][]byte // each within text, or within what text was before it grew
}

func newDecoder(r io.Reader) *decoder { return &decoder{r: bufio.NewReaderSize(r, 4<<10)} }

// next returns the next reply. Its parts are valid until next is called again.
func (d *decoder) next() (reply, error) {
	d.text, d.parts = d.text[:0], d.parts[:0]
	if cap(d.text) > maxKept || cap(d.parts) > maxKept {
		d.text, d.parts = nil, nil
	}
	kind, err := d.r.ReadByte()
	if err != nil {
		return reply{}, err
	}
	if kind == '-' || kind == '!' {
		text, err := d.scalar(kind)
		return reply{err: string(text)}, err
	}
	err = d.value(kind, 0)
	return reply{parts: d.parts}, err
}

// value adds the scalars of one value to parts.
func (d *decoder) value(kind byte, depth int) error {
	perElement := 1
	switch kind {
	case '*', '>', '~':
	case '%', '|':
		perElement = 2
	default:
		text, err := d.scalar(kind)
		d.parts = append(d.parts, text)
		return err
	}
	n, err := d.length(maxParts)
	if err != nil {
		return err
	}
	if depth == maxDepth {
		return fmt.Errorf("%w: nested too deep", errProtocol)
	}
	for range n * perElement {
		kind, err := d.r.ReadByte()
		if err != nil {
			return err
		}
		if err := d.value(kind, depth+1); err != nil {
			return err
		}
		if len(d.parts) > maxParts {
			return fmt.Errorf("%w: too many elements", errProtocol)
		}
	}
	return nil
}

// scalar reads what follows the type byte of anything but an aggregate into text.
func (d *decoder) scalar(kind byte) ([]byte, error) {
	start := len(d.text)
	var err error
	switch kind {
	case '+', '-', ':', ',', '#', '(', '_':
		var line []byte
		line, err = d.line()
		d.text = append(d.text, line...)
	case '$', '=', '!':
		err = d.bulk()
	default:
		err = fmt.Errorf("%w: unknown type %q", errProtocol, kind)
	}
	return d.text[start:], err
}

// line reads a line without its end. It is valid until more is read.
func (d *decoder) line() ([]byte, error) {
	var line []byte
	for {
		chunk, err := d.r.ReadSlice('\n')
		if line == nil && err == nil {
			line = chunk // nearly always
		} else {
			line = append(line, chunk...)
		}
		switch {
		case len(line) > maxLine:
			return nil, fmt.Errorf("%w: line too long", errProtocol)
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil:
			return nil, err
		}
		text, ok := bytes.CutSuffix(line, []byte("\r\n"))
		if !ok {
			return nil, fmt.Errorf("%w: line without end", errProtocol)
		}
		return text, nil
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
	n, err := strconv.Atoi(string(line))
	if err != nil || n < -1 || n > limit {
		return 0, fmt.Errorf("%w: length %q", errProtocol, line)
	}
	return n, nil
}

// bulk reads a string into text, whose memory grows with what arrives, not with what is announced.
func (d *decoder) bulk() error {
	n, err := d.signed(maxBulk)
	if n < 0 || err != nil {
		return err
	}
	for n > 0 {
		chunk, err := d.r.Peek(min(n, d.r.Size()))
		if err != nil {
			return err
		}
		d.text = append(d.text, chunk...)
		n -= len(chunk)
		_, _ = d.r.Discard(len(chunk)) // it is in the buffer
	}
	if end, err := d.line(); err != nil || len(end) > 0 {
		return cmp.Or(err, fmt.Errorf("%w: string without end", errProtocol))
	}
	return nil
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
