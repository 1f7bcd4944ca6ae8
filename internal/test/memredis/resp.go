package memredis

import (
	"bytes"
	"errors"
	"strconv"
)

// Replies are nil, int64, string, []any, and these.
type (
	failure string // an error, with its code
	status  string // a simple string
	pairs   []any  // a map: keys and values in turn
	push    []any  // what is no reply
	several []any  // replies to one command, such as SUBSCRIBE
)

// appendReply encodes a reply.
func appendReply(b []byte, reply any, resp3 bool) []byte {
	switch r := reply.(type) {
	case nil:
		if resp3 {
			return append(b, "_\r\n"...)
		}
		return append(b, "$-1\r\n"...)
	case int64:
		return append(strconv.AppendInt(append(b, ':'), r, 10), "\r\n"...)
	case string:
		b = append(strconv.AppendInt(append(b, '$'), int64(len(r)), 10), "\r\n"...)
		return append(append(b, r...), "\r\n"...)
	case failure:
		return append(append(append(b, '-'), r...), "\r\n"...)
	case status:
		return append(append(append(b, '+'), r...), "\r\n"...)
	case []any:
		return appendAll(b, '*', len(r), r, resp3)
	case push:
		if resp3 {
			return appendAll(b, '>', len(r), r, true)
		}
		return appendAll(b, '*', len(r), r, false)
	case pairs:
		if resp3 {
			return appendAll(b, '%', len(r)/2, r, true)
		}
		return appendAll(b, '*', len(r), r, false)
	case several:
		for _, each := range r {
			b = appendReply(b, each, resp3)
		}
		return b
	}
	panic("memredis: a reply of an unknown type")
}

func appendAll(b []byte, kind byte, n int, all []any, resp3 bool) []byte {
	b = append(strconv.AppendInt(append(b, kind), int64(n), 10), "\r\n"...)
	for _, each := range all {
		b = appendReply(b, each, resp3)
	}
	return b
}

// errProtocol is the error of bytes that are no command.
var errProtocol = errors.New("memredis: no command")

// ReadCommand returns the first command in data, and the number of its bytes; 0 if it is not
// complete.
func ReadCommand(data []byte) (args []string, size int, err error) {
	n, at, err := readCount(data, 0, '*')
	if at == 0 || err != nil {
		return nil, 0, err
	}
	args = make([]string, 0, n)
	for range n {
		length, next, err := readCount(data, at, '$')
		if next == 0 || err != nil {
			return nil, 0, err
		}
		end := next + length
		if len(data) < end+2 {
			return nil, 0, nil
		}
		args = append(args, string(data[next:end]))
		at = end + 2
	}
	if n == 0 {
		return nil, 0, errProtocol
	}
	return args, at, nil
}

// readCount reads a line that consists of a mark and a number. next is where the line after it
// begins; 0 if the line is not complete.
func readCount(data []byte, at int, mark byte) (n, next int, err error) {
	end := bytes.Index(data[at:], []byte("\r\n"))
	if end < 0 {
		return 0, 0, nil
	}
	line := data[at : at+end]
	if len(line) < 2 || line[0] != mark {
		return 0, 0, errProtocol
	}
	for _, digit := range line[1:] {
		if digit < '0' || digit > '9' {
			return 0, 0, errProtocol
		}
		n = 10*n + int(digit-'0')
	}
	return n, at + end + 2, nil
}
