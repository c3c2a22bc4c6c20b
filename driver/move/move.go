// Package move is what a driver implements so that names can move to another
// backend and back, by drivers/migrate. A driver that takes no part in
// migrations needs nothing of this package.
//
// A name moves in two steps: its hold on the old backend becomes a seal, after
// which the name is never granted there again ([driver.ErrSealed]); then the
// name is marked on the new backend, with a floor for the tokens above all
// tokens of the old backend. On its way back the mark is taken off between
// Loosen and Unseal.
package move

import (
	"context"

	"github.com/go-dsync/dsync/driver"
)

// Sealer is an optional interface of a Driver: its backend can keep a grant
// without an end, the seal, by which a name leaves the backend for another one
// (drivers/migrate). A sealed name is never granted again. Clients without
// seals see a taken lock.
type Sealer interface {
	// Seal turns the hold of l, a lease of this driver, into the seal of its
	// name, in one step at the backend, conditional on the hold. From then on
	// every Acquire of the name returns driver.ErrSealed, waiting calls
	// included. Seal returns
	//
	//   - nil if the name is sealed: then l is over, and is neither renewed nor
	//     released;
	//   - driver.ErrNotHeld if the hold was over before: then nothing has
	//     changed;
	//   - any other error if the outcome is unknown. The name may become sealed
	//     for as long as the hold lasts. The caller calls Release, which ends
	//     the hold, and never ends a seal.
	//
	// An error that matches errors.ErrUnsupported says: this driver never
	// seals, and nothing has changed. The seal is no reason to call
	// Events.Lost.
	Seal(ctx context.Context, l driver.Lease) error

	// Sealed asks the backend whether name is sealed, and for the last token
	// granted before the seal; 0 without fencing. A seal and its last token
	// never change any more.
	Sealed(ctx context.Context, name string) (last uint64, sealed bool, err error)
}

// Marker is an optional interface of a Driver: its backend can keep a mark for
// good, which says that the name has come from another backend, where the name
// is sealed. The mark and the floor of the tokens last as long as what the
// backend acknowledges, and longer than any hold.
type Marker interface {
	// Mark marks the name of l, a lease of this driver, in one step at the
	// backend, conditional on the hold. The same step raises the tokens: all
	// tokens of later grants are above floor, and so are the tokens of l, which
	// gets new ones, up to as many as Events.Tokens of the request says.
	// Neither a second Mark nor a lower floor lowers anything. Mark returns
	// driver.ErrNotHeld if the hold is over, and then nothing has changed;
	// after any other error the outcome is unknown, and the caller only
	// releases l. Mark is called before l is used, not beside its other
	// methods.
	Mark(ctx context.Context, l driver.Lease, floor uint64) error

	// Marked reports whether the name of l, a lease of this driver, is marked.
	// A mark that came with the grant needs no request. Acquire is not told
	// whether the caller wants the mark, so a driver with costs for a mark
	// brings marks with the grants after the first call of Marked. Marked
	// returns an error that matches errors.ErrUnsupported where Mark would.
	Marked(ctx context.Context, l driver.Lease) (bool, error)
}

// Unsealer is an optional interface of a Driver: to take a seal back, for a
// name on its way back from the other backend. The way takes two requests, and
// between them the mark is taken off the other backend: so a late Unseal, which
// arrives when the name has moved again, finds its id gone, and does nothing.
type Unsealer interface {
	// Loosen writes id next to the seal of name, in place of the previous id,
	// in one step at the backend. The name stays sealed, and a new seal has no
	// id. The same step raises the tokens of every grant after the seal above
	// floor: both kinds, the tokens of this driver and, where the incumbents
	// that share the key have tokens, theirs. A floor of 0, or below both
	// kinds, raises nothing. What Sealed returns does not change. Loosen
	// returns
	//
	//   - nil if all is done;
	//   - driver.ErrNotHeld if the name is not sealed: then nothing has
	//     changed;
	//   - an error that matches errors.ErrUnsupported if the tokens of one kind
	//     cannot be raised so far: then nothing has changed;
	//   - any other error if the outcome is unknown. The caller may call Loosen
	//     again.
	Loosen(ctx context.Context, name, id string, floor uint64) error

	// Unseal takes the seal of name away, in one step at the backend,
	// conditional on id: the name is free then, and all waiters are woken,
	// clients without seals among them. Unseal returns driver.ErrNotHeld if
	// there is no seal with this id (also when an earlier request took the seal
	// away, and the answer was lost), and then nothing has changed; after any
	// other error the outcome is unknown.
	Unseal(ctx context.Context, name, id string) error
}

// Unmarker is an optional interface of a Marker: to take marks back.
type Unmarker interface {
	// Unmark takes the mark off the name of l, a lease of this driver, in one
	// step at the backend, conditional on the hold. A name without a mark is no
	// error. The tokens, and what raises them, stay: tokens of every later
	// grant are above the tokens of l. Unmark returns driver.ErrNotHeld if the
	// hold is over, and then nothing has changed; after any other error the
	// outcome is unknown.
	Unmark(ctx context.Context, l driver.Lease) error
}

// Identifier is an optional interface of a Driver whose backend keeps no seals,
// and can be told from all others without any.
type Identifier interface {
	// Identity asks the backend for a number: the same for every driver that
	// excludes this one, whatever the address, also after a restart or a
	// fail-over, and another one for every other backend or database, but for a
	// physical copy of this one.
	Identity(ctx context.Context) (uint64, error)
}
