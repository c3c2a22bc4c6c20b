package zk

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

// The parts of a frame.
const (
	lengthSize  = 4
	headerSize  = 4 + 8 + 4 // of an answer: its number, the id of the transaction, the error
	welcomeSize = 4 + 4 + 8 // of the answer to the request for a session: version, timeout, session; the password follows
	maxWelcome  = 256       // with the password
)

// keptFrame is the greatest buffer that a connection keeps for its next frame.
const keptFrame = 64 << 10

// readFrame reads a frame of at most so many bytes, with its length, into a buffer, or into a new one. The buffer grows with what arrives,
// so that a wrong length costs no memory.
func readFrame(r io.Reader, buffer []byte, most int64) ([]byte, error) {
	if cap(buffer) > keptFrame {
		buffer = nil
	}
	frame := slices.Grow(buffer[:0], lengthSize)[:lengthSize]
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	size := int64(binary.BigEndian.Uint32(frame))
	if size > most {
		return nil, fmt.Errorf("%w: it claims to have %d bytes", errAnswer, size)
	}
	for left := int(size); left > 0; {
		have := len(frame)
		next := min(left, max(have, keptFrame))
		frame = slices.Grow(frame, next)[:have+next]
		if _, err := io.ReadFull(r, frame[have:]); err != nil {
			return nil, err
		}
		left -= next
	}
	return frame, nil
}

// makesSense reports whether the library may decode the body of an answer. The library makes room for as many bytes and names as the
// server claims to send, before it looks whether they are there, and panics at a transaction's answer without an end: both end the
// program. Wrong lengths of strings are errors there.
func makesSense(op int32, body []byte) bool {
	switch op {
	case opGetData:
		return fits(body, 1)
	case opChildren:
		return fits(body, 4) // the length of each name
	case opMulti:
		return hasEnd(body)
	}
	return true
}

// fits reports whether bytes begin with a number of things of at least a size, and are enough for as many. A negative number stands for
// none, except for names, of which the library would take it for a great number.
func fits(b []byte, size int) bool {
	count, b, ok := readNumber(b)
	return ok && int(count) <= len(b)/size && (count >= 0 || size == 1)
}

// hasEnd reports whether the answer to a transaction has a header and a body for each operation, and the header that ends the answer.
func hasEnd(b []byte) bool {
	const header = 4 + 1 + 4 // operation, whether this is the end, error
	for len(b) >= header {
		op, end := int32(binary.BigEndian.Uint32(b)), b[4] != 0
		if end {
			return true
		}
		b = b[header:]
		size := 0
		switch op {
		case opCreate: // the path
			length, _, ok := readNumber(b)
			if !ok || length < 0 {
				return false
			}
			size = 4 + int(length)
		case opSetData:
			size = statSize
		case opError:
			size = 4
		case opDelete, opCheck:
		default:
			return true // the library refuses such an answer
		}
		if size > len(b) {
			return false
		}
		b = b[size:]
	}
	return false
}
