// Package move is what a driver implements so that names can move to another backend and back, by drivers/migrate. A driver that takes no
// part in migrations needs nothing of this package.
//
// A name moves in two steps: its hold on the old backend becomes a seal, after which the name is never granted there again
// ([driver.ErrSealed]); then the name is marked on the new backend, with a floor for the tokens that is above all tokens of the old one.
// On its way back the mark is taken off between Loosen and Unseal.
package move

import (
	"context"

	"github.com/go-dsync/dsync/driver"
)

// Sealer is implemented by drivers whose backend can keep a grant that never ends: the seal, by which a name leaves the backend for
// another one (drivers/migrate). A sealed name is never granted again. Clients that know no seals see a lock that is taken.
type Sealer interface {
	// Seal turns the hold of l, a lease of this driver, into the seal of its name, in one step at the backend that is conditional on
	// the hold. From then on every Acquire of the name returns driver.ErrSealed, those that already wait included. It returns
	//
	//   - nil if the name is sealed: then l is over, and is neither renewed nor released;
	//   - driver.ErrNotHeld if the hold was over before: then nothing has changed;
	//   - any other error if it is unknown. The name may be sealed for as long as the hold lasts. The caller calls Release, which
	//     ends the hold if it has not become a seal, and never ends a seal.
	//
	// An error that matches errors.ErrUnsupported says that this driver never seals, and that nothing has changed. Events.Lost is not
	// called because of the seal.
	Seal(ctx context.Context, l driver.Lease) error

	// Sealed asks the backend whether name is sealed, and which was the last token that it granted; 0 without fencing. That never
	// changes any more.
	Sealed(ctx context.Context, name string) (last uint64, sealed bool, err error)
}

// Marker is implemented by drivers whose backend can keep for good that a name has come from another backend, where it is sealed:
// the mark. The mark and the floor of the tokens last as long as what the backend acknowledges, and longer than any hold.
type Marker interface {
	// Mark marks the name of l, a lease of this driver, in one step at the backend that is conditional on the hold. In that step it
	// raises the tokens: those of every later grant are above floor, and so are those of l, which are new ones from then on; the
	// driver asks Events.Tokens of the request how many. Neither a second Mark nor a lower floor lowers anything. It returns
	// driver.ErrNotHeld if the hold is over, and then nothing has changed; after any other error it is unknown, and l is only to be released.
	// Mark is called before l is used, not beside its other methods.
	Mark(ctx context.Context, l driver.Lease, floor uint64) error

	// Marked reports whether the name of l, a lease of this driver, is marked. What came with the grant needs no request; a request that
	// grants cannot say that the mark is wanted, so a driver for which it costs something has it come with the grants that follow the
	// first Marked. It returns an error that matches errors.ErrUnsupported where Mark would.
	Marked(ctx context.Context, l driver.Lease) (bool, error)
}

// Unsealer is implemented by drivers that can take a seal back, for a name that returns from the backend that it moved to. That takes
// two requests, and between them the mark is taken off the other backend: so an Unseal that arrives late, when the name has moved
// again, finds that its id is gone, and does nothing.
type Unsealer interface {
	// Loosen writes id next to the seal of name, in place of the one that is there, in one step at the backend. The name stays sealed,
	// and a new seal has no id. In the same step it raises the tokens: those of every grant after the seal are above floor, those of
	// this driver and those of the incumbents that share the key, where they have tokens. It is not enough that one kind is. A floor of 0,
	// or one that both kinds have passed, raises nothing. What Sealed returns does not change. It returns
	//
	//   - nil if that is done;
	//   - driver.ErrNotHeld if the name is not sealed: then nothing has changed;
	//   - an error that matches errors.ErrUnsupported if the tokens of one kind cannot be raised so far: then nothing has changed;
	//   - any other error if it is unknown. It may be called again.
	Loosen(ctx context.Context, name, id string, floor uint64) error

	// Unseal takes the seal of name away, in one step at the backend that is conditional on id: the name is free then, and those who
	// wait for it are woken, clients that know no seals among them. It returns driver.ErrNotHeld if there is no seal with that id (also when
	// an earlier request, whose answer was lost, took it away), and then nothing has changed; after any other error it is unknown.
	Unseal(ctx context.Context, name, id string) error
}

// Unmarker is implemented by a Marker that can take marks back.
type Unmarker interface {
	// Unmark takes the mark off the name of l, a lease of this driver, in one step at the backend that is conditional on the hold. It
	// returns nil also if there was none. The tokens, and what raises them, stay: those of every later grant are above those of l. It
	// returns driver.ErrNotHeld if the hold is over, and then nothing has changed; after any other error it is unknown.
	Unmark(ctx context.Context, l driver.Lease) error
}
