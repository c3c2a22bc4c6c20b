// Package move is the set of interfaces that a driver implements so that
// drivers/migrate can move names to another backend and back. A driver that
// does not support migrations needs nothing from this package.
//
// A name moves in two steps. First its hold on the old backend becomes a seal,
// after which the name is never granted there again ([driver.ErrSealed]). Then
// the name is marked on the new backend, with a floor for the tokens above all
// tokens of the old backend. On the way back, the mark is removed between
// Loosen and Unseal.
package move

import (
	"context"

	"github.com/go-dsync/dsync/driver"
)

// Sealer is an optional interface of a Driver. Its backend can store a grant
// without an end, the seal, by which a name leaves the backend for another one
// (drivers/migrate). A sealed name is never granted again. To clients that do
// not know seals, the lock is taken.
type Sealer interface {
	// Seal replaces the hold of l, a lease of this driver, with the seal of its
	// name, in one step on the backend. It does so only if l still holds the
	// name. From then on every Acquire of the name returns driver.ErrSealed,
	// including waiting calls. Seal returns
	//
	//   - nil if the name is sealed. Then l has ended and is neither renewed
	//     nor released;
	//   - driver.ErrNotHeld if the hold had ended before. Then nothing has
	//     changed;
	//   - any other error if the outcome is unknown. The name may become sealed
	//     for as long as the hold lasts. The caller calls Release, which ends
	//     the hold but never a seal.
	//
	// An error that matches errors.ErrUnsupported means that this driver never
	// seals, and nothing has changed. The driver does not call Events.Lost
	// because of the seal.
	Seal(ctx context.Context, l driver.Lease) error

	// Sealed reports whether name is sealed, and returns the last token granted
	// before the seal; 0 without fencing. A seal and its last token never
	// change again.
	Sealed(ctx context.Context, name string) (last uint64, sealed bool, err error)
}

// Marker is an optional interface of a Driver. Its backend can store a
// permanent mark, which means that the name has come from another backend,
// where the name is sealed. The mark and the floor of the tokens last as long
// as the backend's acknowledged data, and longer than any hold.
type Marker interface {
	// Mark marks the name of l, a lease of this driver, in one step on the
	// backend, if l still holds the name. The same step raises the tokens. All
	// tokens of later grants are above floor, and so are the tokens of l. The
	// lease gets new tokens, up to the number that Events.Tokens of the request
	// returns. Neither a second Mark nor a lower floor lowers anything. Mark
	// returns driver.ErrNotHeld if the hold has ended, and then nothing has
	// changed. After any other error the outcome is unknown, and the caller
	// only releases l. Mark is called before l is used, and not concurrently
	// with its other methods.
	Mark(ctx context.Context, l driver.Lease, floor uint64) error

	// Marked reports whether the name of l, a lease of this driver, is marked.
	// If the mark was returned with the grant, Marked needs no request. Acquire
	// does not know whether the caller needs the mark. So a driver for which
	// marks are costly returns them with grants only after the first call to
	// Marked. Marked returns an error that matches errors.ErrUnsupported if
	// Mark would.
	Marked(ctx context.Context, l driver.Lease) (bool, error)
}

// Unsealer is an optional interface of a Driver that can remove a seal, for a
// name on its way back from the other backend. This takes two requests, and
// between them the mark is removed from the other backend. So an Unseal that
// arrives late, after the name has moved again, finds its id gone and does
// nothing.
type Unsealer interface {
	// Loosen writes id next to the seal of name, in place of the previous id,
	// in one step on the backend. The name stays sealed, and a new seal has no
	// id. The same step ensures that every grant after the seal has a token
	// above floor. This applies to the tokens of this driver and to the tokens
	// of the incumbents that share the key, if they have any. A floor that is
	// 0, or below the tokens of both kinds, raises nothing. The result of
	// Sealed does not change. Loosen returns
	//
	//   - nil on success;
	//   - driver.ErrNotHeld if the name is not sealed. Then nothing has
	//     changed;
	//   - an error that matches errors.ErrUnsupported if the tokens of one kind
	//     cannot be raised that far. Then nothing has changed;
	//   - any other error if the outcome is unknown. The caller may call Loosen
	//     again.
	Loosen(ctx context.Context, name, id string, floor uint64) error

	// Unseal removes the seal of name, in one step on the backend, conditional
	// on id. The name is then free, and all waiters are woken, including
	// clients that do not know seals. Unseal returns driver.ErrNotHeld if there
	// is no seal with this id (even if an earlier request removed the seal, and
	// its answer was lost), and then nothing has changed. After any other error
	// the outcome is unknown.
	Unseal(ctx context.Context, name, id string) error
}

// Unmarker is an optional interface of a Marker that can remove marks.
type Unmarker interface {
	// Unmark removes the mark from the name of l, a lease of this driver, in
	// one step on the backend, if l still holds the name. A name without a mark
	// is not an error. Tokens stay raised: the tokens of every later grant are
	// above the tokens of l. Unmark returns driver.ErrNotHeld if the hold has
	// ended, and then nothing has changed. After any other error the outcome is
	// unknown.
	Unmark(ctx context.Context, l driver.Lease) error
}

// Identifier is an optional interface of a Driver whose backend stores no
// seals, but can be distinguished from all other backends.
type Identifier interface {
	// Identity queries the backend for a number. The number is the same for
	// every driver that excludes this one, regardless of the address, even
	// after a restart or a failover. It is different for every other backend
	// or database, except a physical copy of this one.
	Identity(ctx context.Context) (uint64, error)
}
