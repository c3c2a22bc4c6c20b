package etcd

import (
	"context"
	"encoding/json"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/go-dsync/dsync/driver"
)

var _ driver.Passer = (*hold)(nil)

// Pass implements driver.Passer. The key is put again, on the same lease: it stays the oldest one, the waiters behind it go on waiting, and
// the revision of the answer is the token. If there is no answer, the key is there in either case, for Release to delete.
func (h *hold) Pass(ctx context.Context, owner, note string) error {
	if h.isOver() {
		return driver.ErrNotHeld
	}
	bounded, cancel := h.driver.ends.ending(ctx)
	defer cancel()
	v := h.nextValue(owner, note)
	o := &op{dir: h.dir(), compare: append(h.stands(), h.overlookedByNobody()...), then: []clientv3.Op{opPut(h.key, h.driver.textOf(v), clientv3.WithIgnoreLease())}}
	if err := h.driver.sender.do(bounded, o); err != nil {
		err, _ = fault(ctx, err)
		return err
	}
	if !o.answer.Succeeded {
		if h.request.Mode != driver.Exclusive {
			return errOverlooked // or the hold is over, as its release will tell
		}
		h.vanish()
		return driver.ErrNotHeld
	}
	revision := o.answer.Header.Revision
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tokenFrom(h.record, revision)
	return nil
}

// nextValue returns what the key is to say of its next holder, and remembers it for putAgain.
func (h *hold) nextValue(owner, note string) value {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := value{Owner: owner, Host: h.driver.host, Time: time.Now(), Note: note, Hold: h.request.Hold, Pass: 1}
	if h.passed != nil {
		v.Pass = h.passed.Pass + 1
	}
	h.passed = &v
	return v
}

// putAgain puts the key of the hold without a change but for the count of passes, so that the event does not look like a pass. It tells the
// waiters behind the key that the record of the name has changed.
func (h *hold) putAgain() clientv3.Op {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.passed == nil {
		return clientv3.OpPut(h.key, "", clientv3.WithIgnoreValue(), clientv3.WithIgnoreLease())
	}
	v := *h.passed
	v.Pass = 0
	return opPut(h.key, h.driver.textOf(v), clientv3.WithIgnoreLease())
}

// textOf is what the key of a hold says. A note alone does not tell that the hold was passed, so those who wait behind it look again.
func (d *Driver) textOf(v value) []byte {
	if d.options.NoteAlone {
		return []byte(v.Note)
	}
	return v.text()
}

// text is v as the key has it.
func (v value) text() []byte {
	text, _ := json.Marshal(v) // which does not fail with strings, a number and a time
	return text
}

// opPut makes the operation that puts a key with a value.
func opPut(key string, text []byte, options ...clientv3.OpOption) clientv3.Op {
	op := clientv3.OpPut(key, "", options...)
	op.WithValueBytes(text)
	return op
}
