package pubsub

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
)

// errProtocol is wrapped by the errors of replies that make no sense. They end the link.
var errProtocol = errors.New("pubsub: protocol error")

// Limits of what the decoder keeps of one reply. Anybody who may publish on a channel can send a
// message of any size. The decoder reads such a message to its end, so that the next one is found,
// but keeps nothing of it.
const (
	// maxText is the limit of a string, in bytes. Our longest payload is a fair lock's grant,
	// "<id> <since> <ttl>". The id is a uuid and a number, or an owner's that a caller chose; 64 KiB
	// is more than any of them has. So no string of 128 KiB is ours. The limit does not concern names
	// of channels, which are as long as callers make them.
	maxText  = 128 << 10
	maxParts = 8 // scalars; a message has 3

	maxKept   = 64 << 10 // bytes of memory that are kept from one reply for the next
	maxLine   = 64 << 10 // bytes of an error, a number or a length
	maxLength = 1 << 29  // elements of an array; twice that still fits an int of 32 bits
	maxDepth  = 8
)

// channelPart is the place of the channel's name in all messages and confirmations. We chose that
// name, so it is never too long.
const channelPart = 1

// reply is what the server sent: the scalars of one reply or push, flattened, or an error.
type reply struct {
	parts [][]byte // the first maxParts; nulls are empty, and so is what was too long
	err   string   // of an error reply
	cut   bool     // something is missing in parts, as nothing of ours is so long
}

// decoder reads RESP2 and RESP3. A message costs no memory: text and parts are used again for each
// reply.
type decoder struct {
	r     *bufio.Reader
	text  []byte   // the scalars of the reply, one behind the other
	parts [][]byte // each within text, or within what text was before it grew
	cut   bool     // something of the reply was discarded
}

func newDecoder(r io.Reader) *decoder { return &decoder{r: bufio.NewReaderSize(r, 4<<10)} }

// next returns the next reply. Its parts are valid until next is called again.
func (d *decoder) next() (reply, error) {
	d.text, d.parts, d.cut = d.text[:0], d.parts[:0], false
	if cap(d.text) > maxKept {
		d.text, d.parts = nil, nil
	}
	kind, err := d.r.ReadByte()
	if err != nil {
		return reply{}, err
	}
	if kind == '-' || kind == '!' {
		text, err := d.scalar(kind, maxText)
		if d.cut {
			text = []byte("ERR an error of more than " + strconv.Itoa(maxText) + " bytes")
		}
		return reply{err: string(text)}, err
	}
	err = d.value(kind, 0)
	return reply{parts: d.parts, cut: d.cut}, err
}

// value adds the scalars of one value to parts.
func (d *decoder) value(kind byte, depth int) error {
	perElement := 1
	switch kind {
	case '*', '>', '~':
	case '%', '|':
		perElement = 2
	default:
		return d.part(kind)
	}
	n, err := d.length(maxLength)
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
	}
	return nil
}

// part reads a scalar and adds it to parts, unless parts is full.
func (d *decoder) part(kind byte) error {
	limit := maxText
	switch len(d.parts) {
	case channelPart:
		limit = math.MaxInt
	case maxParts:
		limit = 0
	}
	text, err := d.scalar(kind, limit)
	if len(d.parts) < maxParts {
		d.parts = append(d.parts, text)
	} else {
		d.cut = true
	}
	return err
}

// scalar reads what follows the type byte of anything but an aggregate into text, or discards it if
// it is longer than limit.
func (d *decoder) scalar(kind byte, limit int) ([]byte, error) {
	start := len(d.text)
	var err error
	switch kind {
	case '+', '-', ':', ',', '#', '(', '_':
		var line []byte
		line, err = d.line()
		if len(line) <= limit {
			d.text = append(d.text, line...)
		} else {
			d.cut = true
		}
	case '$', '=', '!':
		err = d.bulk(limit)
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

// bulk reads a string into text, or discards one that is longer than limit. The memory of text grows
// with what arrives, not with what is announced.
func (d *decoder) bulk(limit int) error {
	n, err := d.signed(math.MaxInt)
	if n < 0 || err != nil {
		return err
	}
	if n > limit {
		d.cut = true
		if _, err := d.r.Discard(n); err != nil {
			return err
		}
		n = 0
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
