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

// errProtocol is wrapped by all errors about malformed or unexpected replies. They end the link.
var errProtocol = errors.New("pubsub: protocol error")

// Limits of what the decoder stores of one reply. Any client that may publish on a channel can send
// a message of any size. The decoder reads an oversized message to its end, to find the next reply,
// and discards its content.
const (
	// maxText limits a string, in bytes. The longest payload of this library is the grant of a fair
	// lock, "<id> <since> <ttl>". The id is a UUID and a number, or an owner id that a caller
	// chose; all are shorter than 64 KiB. The limit does not apply to channel names, which callers
	// choose.
	maxText  = 128 << 10
	maxParts = 8 // scalars; a message has 3

	maxKept   = 64 << 10 // bytes of the text buffer that are reused for the next reply
	maxLine   = 64 << 10 // bytes of an error, a number or a length
	maxLength = 1 << 29  // elements of an array; twice that still fits a 32-bit int
	maxDepth  = 8
)

// channelPart is the position of the channel name in all messages and confirmations. This client
// subscribed to that name, so it is never too long.
const channelPart = 1

// reply is one reply or push of the server: its scalars, flattened, or an error.
type reply struct {
	parts     [][]byte // at most maxParts; nulls and oversized strings are empty
	err       string   // the text of an error reply
	truncated bool     // parts is incomplete, so the message is not from this library
}

// decoder reads RESP2 and RESP3. Decoding a message allocates nothing: text and parts are reused
// for each reply.
type decoder struct {
	r         *bufio.Reader
	text      []byte   // the scalars of the reply, concatenated
	parts     [][]byte // slices of text, or of an older array of text that was outgrown
	truncated bool     // a piece of the reply was discarded
}

func newDecoder(r io.Reader) *decoder { return &decoder{r: bufio.NewReaderSize(r, 4<<10)} }

// next returns the next reply. Its parts are valid until the following call of next.
func (d *decoder) next() (reply, error) {
	d.text = d.text[:0]
	d.parts = d.parts[:0]
	d.truncated = false
	if cap(d.text) > maxKept { // one long channel name must not occupy memory forever
		d.text = nil
		d.parts = nil
	}
	kind, err := d.r.ReadByte()
	if err != nil {
		return reply{}, err
	}
	if kind == '-' || kind == '!' {
		text, err := d.scalar(kind, maxText)
		if d.truncated {
			text = []byte("ERR an error of more than " + strconv.Itoa(maxText) + " bytes")
		}
		return reply{err: string(text)}, err
	}
	err = d.value(kind, 0)
	return reply{parts: d.parts, truncated: d.truncated}, err
}

// value appends the scalars of one value to parts. Aggregates are flattened, so that RESP2 arrays
// and RESP3 pushes look the same.
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
	if depth == maxDepth { // the recursion must not be unbounded
		return fmt.Errorf("%w: nested too deeply", errProtocol)
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

// part reads a scalar and appends it to parts. Once parts is full, the scalar is discarded.
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
		d.truncated = true
	}
	return err
}

// scalar reads the body of any type except aggregates into text, and returns it. A body longer than
// limit is read and discarded.
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
			d.truncated = true
		}
	case '$', '=', '!':
		err = d.bulk(limit)
	default:
		err = fmt.Errorf("%w: unknown type %q", errProtocol, kind)
	}
	return d.text[start:], err
}

// line reads a line and returns it without its end. The result is valid until the next read.
func (d *decoder) line() ([]byte, error) {
	var line []byte
	for {
		chunk, err := d.r.ReadSlice('\n')
		if line == nil && err == nil {
			line = chunk // the common case: the line fits the buffer and is not copied
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
			return nil, fmt.Errorf("%w: line without CRLF", errProtocol)
		}
		return text, nil
	}
}

// length reads the length of an aggregate. The length of null is 0.
func (d *decoder) length(limit int) (int, error) {
	n, err := d.signed(limit)
	return max(n, 0), err
}

// signed reads a length that may be -1, which means null.
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

// bulk reads a string into text. A string longer than limit is read and discarded. text grows with
// the bytes that arrive, so an announced length alone allocates nothing.
func (d *decoder) bulk(limit int) error {
	n, err := d.signed(math.MaxInt)
	if n < 0 || err != nil {
		return err
	}
	if n > limit {
		d.truncated = true
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
		_, _ = d.r.Discard(len(chunk)) // cannot fail: the bytes are buffered
	}
	if end, err := d.line(); err != nil || len(end) > 0 {
		return cmp.Or(err, fmt.Errorf("%w: string without CRLF", errProtocol))
	}
	return nil
}

// appendCommand appends the start of a command of n words: the header and the first word.
func appendCommand(b []byte, n int, word string) []byte {
	b = append(b, '*')
	b = strconv.AppendInt(b, int64(n), 10)
	b = append(b, '\r', '\n')
	return appendWord(b, word)
}

// appendWord appends one word of a command as a bulk string.
func appendWord(b []byte, word string) []byte {
	b = append(b, '$')
	b = strconv.AppendInt(b, int64(len(word)), 10)
	b = append(b, '\r', '\n')
	b = append(b, word...)
	return append(b, '\r', '\n')
}
